"""Measures of stability, against enumeration and values computed by hand."""

from __future__ import annotations

from itertools import chain, combinations, permutations
from typing import Any

import numpy as np
import pytest

from skfusion import stability_report
from skfusion.inspection.candidates import half_intervals
from skfusion.inspection.stability import (
    complementarity,
    cvar,
    expected_minimum,
    harm_rate,
    pareto_front,
    sampled_shapley_values,
    shapley_values,
)


@pytest.mark.parametrize("m", range(1, 7))
def test_expected_minimum_is_the_mean_over_all_draws(rng, m):
    scores = rng.normal(size=6)
    scores[3] = scores[1]  # a tie
    drawn = [min(chosen) for chosen in combinations(scores, m)]
    assert expected_minimum(scores, m) == pytest.approx(np.mean(drawn), rel=1e-12)


def test_expected_minimum_of_many_scores(rng):
    scores = rng.normal(size=4095)  # C(4095, 2000) is beyond any float
    assert scores.min() <= expected_minimum(scores, 2000) <= np.quantile(scores, 0.01)


@pytest.mark.parametrize("m", [0, 4])
def test_expected_minimum_of_more_than_there_are(m):
    with pytest.raises(ValueError, match=f"m={m} of 3 scores"):
        expected_minimum([1.0, 2.0, 3.0], m)


def test_cvar_counts_the_last_score_by_the_rest():
    assert cvar([4.0, 1.0, 2.0, 3.0, 5.0], alpha=0.5) == pytest.approx((1 + 2 + 0.5 * 3) / 2.5)
    assert cvar([4.0, 1.0], alpha=0.1) == 1.0
    assert cvar([4.0, 1.0], alpha=1.0) == 2.5
    with pytest.raises(ValueError, match="alpha=0"):
        cvar([1.0], alpha=0)


def test_gain_and_harm_by_hand():
    scores, members = [0.8, 0.6, 0.5], [[0.7, 0.8], [0.5, 0.7], [0.4, 0.6]]
    np.testing.assert_allclose(complementarity(scores, members), [0.0, -0.1, -0.1])
    np.testing.assert_allclose(complementarity(scores, members, against="mean"), [0.05, 0, 0])
    assert harm_rate(scores, members) == pytest.approx(2 / 3)
    assert harm_rate([0.8, 0.5], members[:2], against="mean") == 0.5
    with pytest.raises(ValueError, match="do not fit 2 scores"):
        harm_rate([0.8, 0.5], members)
    with pytest.raises(ValueError, match="against='worst'"):
        complementarity(scores, members, against="worst")


def _random_game(rng, members):
    subsets = chain.from_iterable(combinations(members, k) for k in range(len(members) + 1))
    return {frozenset(subset): float(rng.normal()) for subset in subsets}


def test_shapley_values_are_the_mean_over_all_orders(rng):
    game = _random_game(rng, "abcd")
    exact = shapley_values(game)
    assert exact == pytest.approx(sampled_shapley_values(game, permutations("abcd")), rel=1e-9)
    assert sum(exact.values()) == pytest.approx(game[frozenset("abcd")] - game[frozenset()])


def test_any_orders_share_out_the_whole(rng):
    game = _random_game(rng, "abcd")
    shares = sampled_shapley_values(game, ["acbd", "dcba", "acbd"])
    assert sum(shares.values()) == pytest.approx(game[frozenset("abcd")] - game[frozenset()])


def test_a_missing_subset_is_named(rng):
    game = _random_game(rng, "ab")
    del game[frozenset("b")]
    with pytest.raises(ValueError, match="the subset of b is missing"):
        shapley_values(game)
    with pytest.raises(ValueError, match="No order"):
        sampled_shapley_values(game, [])


def test_pareto_front_is_what_nothing_beats(rng):
    scores, costs = rng.integers(0, 6, 40) / 6, rng.integers(0, 6, 40) * 1.0
    front = pareto_front(scores, costs)
    beaten = [
        any(
            scores[j] >= scores[i]
            and costs[j] <= costs[i]
            and (scores[j] > scores[i] or costs[j] < costs[i])
            for j in range(40)
        )
        for i in range(40)
    ]
    kept = {(scores[i], costs[i]) for i in range(40) if not beaten[i]}
    assert {(scores[i], costs[i]) for i in front} == kept and len(front) == len(kept)
    assert (np.diff(costs[front]) > 0).all() and (np.diff(scores[front]) > 0).all()


def test_a_score_that_is_not_known_is_not_on_the_front():
    assert pareto_front([np.nan, 0.5], [0.0, 1.0]).tolist() == [1]


# --- reports -----------------------------------------------------------------------------------


def true_and_found(
    rng: np.random.Generator, spread: float, n: int, n_splits: int
) -> tuple[np.ndarray, np.ndarray]:
    """True scores of n candidates, and what independent splits with common noise say of them."""
    true = rng.normal(0.7, spread, size=n)
    common = rng.normal(0, 0.02, size=n_splits)
    return true, true[:, None] + common + rng.normal(0, 0.01, size=(n, n_splits))


def test_a_report_has_the_figures_of_each_group() -> None:
    single = np.array([[0.5, 0.6], [0.7, 0.8], [0.6, 0.7]])
    pairs = np.array([[0.7, 0.7], [0.5, 0.7]])
    members = np.array([[[0.5, 0.6], [0.7, 0.8]], [[0.5, 0.6], [0.6, 0.7]]])
    report = stability_report({"1": single, "2": pairs}, members={"2": members}, random_state=0)
    values = report["value"]
    assert values["1", "min"] == pytest.approx(0.55)
    assert values["1", "range"] == pytest.approx(0.2)
    assert values["1", "cvar"] == pytest.approx(cvar(single.mean(axis=1)))
    # Of two out of three: as many as the pairs are.
    assert values["1", "expected_min"] == pytest.approx(expected_minimum([0.55, 0.75, 0.65], 2))
    assert values["2", "harm_rate"] == 1.0
    assert values["2", "complementarity"] == pytest.approx(-0.05)
    assert ("1", "harm_rate") not in report.index
    assert (report["low"] <= report["high"]).all()
    assert report.equals(
        stability_report({"1": single, "2": pairs}, members={"2": members}, random_state=0)
    )


def test_the_interval_of_a_mean_is_that_of_the_corrected_t_test(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(1, 8))
    report = stability_report({"a": scores}, n_resamples=40_000, random_state=0)
    half = half_intervals(scores[0], None)
    expected = (scores.mean() - half, scores.mean() + half)
    found = report.loc[("a", "mean"), ["low", "high"]]
    assert tuple(found) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("figure", ["mean", "min", "cvar", "range"])
def test_intervals_hold_the_true_figure(rng: np.random.Generator, figure: str) -> None:
    """Independent splits, which is what a tiny share of test rows says."""
    functions = {"mean": np.mean, "min": np.min, "cvar": cvar, "range": np.ptp}
    held = []
    for _ in range(150):
        true, found = true_and_found(rng, 0.03, 12, 10)
        report = stability_report(
            {"a": found}, test_fraction=1e-9, n_resamples=300, random_state=rng.integers(1000)
        )
        low, high = report.loc[("a", figure), ["low", "high"]]
        held.append(low <= functions[figure](true) <= high)
    assert 0.89 <= np.mean(held) <= 1.0


@pytest.mark.parametrize(
    ("scores", "members", "message"),
    [
        ({}, None, "same splits"),
        ({"a": [[0.5, 0.6]], "b": [[0.5]]}, None, "same splits"),
        ({"a": [0.5, 0.6]}, None, "same splits"),
        ({"a": [[0.5]]}, None, "One split"),
        ({"a": [[0.5, np.nan]]}, None, "finite"),
        ({"a": [[0.5, 0.6]]}, {"a": [[0.5, 0.6]]}, r"members\['a'\]"),
        ({"a": [[0.5, 0.6]]}, {"b": [[[0.5, 0.6]]]}, r"members\['b'\]"),
    ],
)
def test_groups_that_do_not_fit_are_refused(scores: Any, members: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stability_report(scores, members=members)
