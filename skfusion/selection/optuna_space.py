"""What `OptunaSearchCV` searches, in the form that Optuna asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rv_discrete
from scipy.stats.distributions import rv_frozen

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution, CategoricalDistribution

#: From what Optuna suggests to the value that the estimator is given.
Decoder = Callable[[Any], Any]
#: A distribution, its decoder, and what tells it from another one, in a form that can be hashed.
Entry = tuple["BaseDistribution", Decoder, Any]

# The quantiles 0 and 1 of a normal distribution are infinite.
_EDGE = 1e-6


@dataclass(frozen=True)
class Space:
    """What one trial draws.

    Parameters
    ----------
    distributions : dict of str to optuna distribution
        What is drawn when the trial is asked for; nothing where `decode` suggests by itself.
    decode : callable
        Takes a trial, a running one or one that was read from a storage, and gives the
        parameters of the estimator.
    identity : object
        What makes it this space and no other.
    """

    distributions: dict[str, BaseDistribution]
    decode: Callable[[Any], dict[str, Any]]
    identity: Any


def read_space(given: Mapping[str, Any] | Callable[[Any], dict[str, Any]]) -> Space:
    """Read the parameter `param_distributions`.

    Parameters
    ----------
    given : mapping of str to distribution, or callable
        See `OptunaSearchCV`.

    Returns
    -------
    Space
        The space.

    Raises
    ------
    ValueError
        If there is no parameter, or a list of values is empty.
    TypeError
        If an entry is neither a distribution nor a list.

    Examples
    --------
    >>> from scipy.stats import randint
    >>> from skfusion.selection.optuna_space import read_space
    >>> space = read_space({"k": randint(1, 5), "how": ["mean", "last"]})
    >>> space.distributions["k"]
    IntDistribution(high=4, log=False, low=1, step=1)
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
        return given, _as_it_is, given
    if isinstance(given, rv_frozen):
        return _read_scipy(given)
    if isinstance(given, np.ndarray | Sequence) and not isinstance(given, str | bytes):
        return _read_values(name, list(given))
    raise TypeError(
        f"param_distributions[{name!r}] is {given!r}. It must be a distribution of Optuna, a "
        f"frozen one of scipy.stats, or a list of values."
    )


def _as_it_is(drawn: Any) -> Any:
    return drawn


def _read_values(name: str, values: list[Any]) -> Entry:
    if not values:
        raise ValueError(f"param_distributions[{name!r}] is an empty list. Give it values.")
    distribution = _choices(values)
    return (
        distribution,
        lambda drawn: values[distribution.choices.index(drawn)],
        {"choices": distribution.choices, "values": values},
    )


def _choices(values: list[Any]) -> CategoricalDistribution:
    """Let values stand for themselves where a storage can hold them and tell them apart."""
    from optuna.distributions import CategoricalDistribution

    primitive = all(v is None or isinstance(v, bool | int | float | str) for v in values)
    distinct = primitive and len(set(values)) == len(values) and all(v == v for v in values)
    return CategoricalDistribution(values if distinct else range(len(values)))


def _read_scipy(given: Any) -> Entry:
    identity = (given.dist.name, given.args, given.kwds)
    if given.dist.name in _TRANSLATIONS:
        low, high = (bound.item() for bound in given.support())
        return _TRANSLATIONS[given.dist.name](low, high), _as_it_is, identity
    whole = isinstance(given.dist, rv_discrete)

    def quantile(drawn: float) -> float:
        value = given.ppf(drawn)
        return int(value) if whole else float(value)

    return _uniform(_EDGE, 1 - _EDGE), quantile, identity


def _uniform(low: float, high: float) -> BaseDistribution:
    from optuna.distributions import FloatDistribution

    return FloatDistribution(low, high)


def _log_uniform(low: float, high: float) -> BaseDistribution:
    from optuna.distributions import FloatDistribution

    return FloatDistribution(low, high, log=True)


def _integers(low: int, high: int) -> BaseDistribution:
    from optuna.distributions import IntDistribution

    return IntDistribution(low, high)


# Those that Optuna has itself; of all others it draws the quantile.
_TRANSLATIONS: dict[str, Callable[[Any, Any], BaseDistribution]] = {
    "uniform": _uniform,
    "loguniform": _log_uniform,
    "reciprocal": _log_uniform,
    "randint": _integers,
}
