"""How distributions of several libraries and lists of values become a space of Optuna."""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from scipy import stats
from sklearn.preprocessing import StandardScaler

from skfusion.selection.optuna_space import read_space
from skfusion.selection.optuna_study import fingerprint


def draw(given, n=200):
    """Return the values of n random trials, and again as read back from the study."""
    space = read_space({"p": given})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    values = [space.decode(study.ask(space.distributions))["p"] for _ in range(n)]
    again = [space.decode(trial)["p"] for trial in study.trials]
    assert all(a is b or a == b for a, b in zip(values, again, strict=True))
    return values


@pytest.mark.parametrize(
    ("given", "distribution"),
    [
        (stats.uniform(2, 3), FloatDistribution(2, 5)),
        (stats.uniform(loc=2, scale=3), FloatDistribution(2, 5)),
        (stats.loguniform(1e-3, 10), FloatDistribution(1e-3, 10, log=True)),
        (stats.randint(2, 5), IntDistribution(2, 4)),
        (IntDistribution(0, 8, step=2), IntDistribution(0, 8, step=2)),
        (["mean", "last"], CategoricalDistribution(["mean", "last"])),
        ([None, 1, 2.5], CategoricalDistribution([None, 1, 2.5])),
    ],
)
def test_what_optuna_has_itself_is_translated(given, distribution):
    assert read_space({"p": given}).distributions == {"p": distribution}


def test_the_quantile_is_drawn_of_other_distributions():
    for given in (stats.norm(3, 0.5), stats.gamma(2), stats.poisson(4)):
        values = draw(given)
        assert stats.kstest(draw(given), given.cdf).pvalue > 1e-3 or isinstance(values[0], int)
        assert abs(np.mean(values) - given.mean()) < 0.25
    assert all(type(value) is int for value in draw(stats.poisson(4)))


@pytest.mark.parametrize(
    "values",
    [
        [StandardScaler(), "passthrough"],
        [(1, 2), (3,)],
        [1, True, 1.0],
        [float("nan"), 0.0],
        [np.int64(3), np.int64(4)],
        [len, print],
    ],
)
def test_values_are_given_as_they_are(values):
    drawn = draw(values, 60)
    for value in values:
        assert any(value is other for other in drawn)


def test_arrays_are_lists_of_values():
    assert set(draw(np.logspace(-2, 2, 3))) == {0.01, 1.0, 100.0}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ValueError, "param_distributions is empty"),
        ({"layer": []}, ValueError, r"\['layer'\] is an empty list"),
        ({"layer": "mean"}, TypeError, r"\['layer'\] is 'mean'. It must be a distribution"),
        ({"layer": 3}, TypeError, "a frozen one of scipy.stats, or a list"),
        ({"layer": stats.norm}, TypeError, "must be a distribution"),
    ],
)
def test_other_entries_are_errors(given, error, message):
    with pytest.raises(error, match=message):
        read_space(given)


def test_a_callable_must_return_parameters():
    space = read_space(lambda trial: trial.suggest_float("C", 0, 1))
    with pytest.raises(TypeError, match="must return a dict"):
        space.decode(optuna.trial.FixedTrial({"C": 0.5}))


def test_spaces_are_told_apart_by_their_content():
    def identity(given):
        return fingerprint({"space": read_space({"p": given}).identity})

    given = [
        stats.norm(0, 1), stats.norm(0, 2), stats.uniform(0, 1), FloatDistribution(0, 2),
        ["mean", "last"], ["last", "mean"], [StandardScaler(), None],
        [StandardScaler(with_mean=False), None], [len, None], [print, None],
    ]  # fmt: skip
    assert len({str(identity(entry)) for entry in given}) == len(given)
    assert identity(stats.norm(0, 1)) == identity(stats.norm(0, 1))
    assert identity([StandardScaler(), None]) == identity([StandardScaler(), None])
