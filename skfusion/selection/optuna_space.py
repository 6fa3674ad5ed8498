"""What `OptunaSearchCV` searches, in the form that Optuna asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rv_discrete
from scipy.stats.distributions import rv_frozen

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

#: From what Optuna suggests to the value that the estimator is given.
Decoder = Callable[[Any], Any]
#: A distribution, its decoder, and what tells it from another one, in a form that can be hashed.
Entry = tuple["BaseDistribution", Decoder, Any]

# The quantiles 0 and 1 of a normal distribution are infinite.
_EDGE = 1e-6


@dataclass(frozen=True)
class Space:
    """What one trial draws, and how the estimator's parameters follow from that."""

    distributions: dict[str, BaseDistribution]  # empty where `decode` suggests by itself
    decode: Callable[[Any], dict[str, Any]]  # of a trial, running or read from a storage
    identity: Any  # what makes it this space and no other


def read_space(given: Mapping[str, Any] | Callable[[Any], dict[str, Any]]) -> Space:
    """Read the parameter `param_distributions`.

    >>> read_space({"k": [1, 2], "how": ["mean", "last"]}).distributions["how"]
    CategoricalDistribution(choices=('mean', 'last'))
    """
    if not isinstance(given, Mapping):
        return Space({}, lambda trial: _check_drawn(given(trial)), given)
    if not given:
        raise ValueError("param_distributions is empty. Name at least one parameter to search.")
    entries = {name: _read_entry(name, entry) for name, entry in given.items()}
    return Space(
        {name: distribution for name, (distribution, _, _) in entries.items()},
        lambda trial: {name: entries[name][1](trial.params[name]) for name in entries},
        {name: identity for name, (_, _, identity) in entries.items()},
    )


def _check_drawn(params: Any) -> dict[str, Any]:
    if not isinstance(params, dict):
        raise TypeError(
            f"The callable param_distributions must return a dict of the estimator's parameters, "
            f"got {params!r}."
        )
    return params


def _read_entry(name: str, given: Any) -> Entry:
    from optuna.distributions import BaseDistribution

    if isinstance(given, BaseDistribution):
        return given, _unchanged, given
    if isinstance(given, rv_frozen):
        return _read_scipy(given)
    if isinstance(given, np.ndarray | Sequence) and not isinstance(given, str | bytes):
        return _read_values(name, list(given))
    raise TypeError(
        f"param_distributions[{name!r}] is {given!r}. It must be a distribution of Optuna, a "
        f"frozen one of scipy.stats, or a list of values."
    )


def _unchanged(drawn: Any) -> Any:
    return drawn


def _read_values(name: str, values: list[Any]) -> Entry:
    from optuna.distributions import CategoricalDistribution

    if not values:
        raise ValueError(f"param_distributions[{name!r}] is an empty list. Give it values.")
    # Values stand for themselves where a storage can hold them and tell them apart.
    primitive = all(v is None or isinstance(v, bool | int | float | str) for v in values)
    distinct = primitive and len(set(values)) == len(values) and all(v == v for v in values)
    distribution = CategoricalDistribution(values if distinct else range(len(values)))
    return (
        distribution,
        lambda drawn: values[distribution.choices.index(drawn)],
        {"choices": distribution.choices, "values": values},
    )


def _read_scipy(given: Any) -> Entry:
    from optuna.distributions import FloatDistribution, IntDistribution

    name, identity = given.dist.name, (given.dist.name, given.args, given.kwds)
    if name in ("uniform", "loguniform", "reciprocal", "randint"):  # Optuna has them itself
        low, high = (bound.item() for bound in given.support())
        if name == "randint":
            return IntDistribution(low, high), _unchanged, identity
        return FloatDistribution(low, high, log=name != "uniform"), _unchanged, identity
    whole = isinstance(given.dist, rv_discrete)

    def quantile(drawn: float) -> float:
        value = given.ppf(drawn)
        return int(value) if whole else float(value)

    return FloatDistribution(_EDGE, 1 - _EDGE), quantile, identity
