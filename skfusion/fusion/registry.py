"""Operators by name: those of skfusion, one's own, and the combinations of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

import joblib

from . import operators
from .operators import ANY, Function, Operator, Width

#: Every operator by the name that the `operator` parameter takes; see `register_operator`.
OPERATORS: dict[str, Operator] = {
    name: op for name, op in vars(operators).items() if isinstance(op, Operator)
}

BUILT_IN = frozenset(OPERATORS)

#: These hold the blocks side by side: no common width, and nothing that a residual could add.
SIDE_BY_SIDE = ("concat", "weighted")

#: The paper's nine settings of `FusionTransformer` and `FusionMLPClassifier`: concatenation, and
#: four operators each plain and with the unprojected originals beside them. As a parameter grid:
#: ``[{f"fuse__{k}": [v] for k, v in setting.items()} for setting in PAPER_OPERATORS]``.
PAPER_OPERATORS: tuple[dict[str, Any], ...] = (
    {"operator": "concat", "residual": False},
    *(
        {"operator": operator, "residual": residual}
        for operator in ("sum", "quaternion", "multiplication", "hadamard")
        for residual in (False, "concat")
    ),
)

_RESERVED = BUILT_IN | {"weighted", "gated"}


def register_operator(
    name: str,
    function: Function,
    *,
    width: int | Callable[[int], bool] | None = None,
) -> None:
    """Make a function available as ``operator=name``.

    Pickled estimators carry the functions that are registered, so joblib's workers have them too.
    An unpickled estimator uses the ones that it carries and registers none of them; its clones
    use what is registered here, where the name is. Registering a name again replaces the
    function.

    Parameters
    ----------
    name : str
        The operator's name. Those of skfusion itself cannot be replaced.
    function : callable
        Takes a sequence of two or more arrays of shape (n_samples, d) and returns one array of
        shape (n_samples, any width). It is called with numpy arrays by `FusionTransformer`, and
        with torch tensors where it is trained through, so it should use their common operations.
        It must treat each row by itself.
    width : int, callable or None, default=None
        Which d it can work with: multiples of an int, those for which a callable is true, or all.

    Raises
    ------
    TypeError
        If `function` cannot be called.
    ValueError
        If the name is empty or taken by skfusion, or an int `width` is below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import FusionTransformer, register_operator
    >>> register_operator("gap", lambda blocks: abs(blocks[0] - blocks[1]))
    >>> fuse = FusionTransformer("gap", projection=None, scale=None, block_sizes=[2, 2])
    >>> fuse.fit_transform(np.array([[1.0, 2.0, 3.0, 1.0]]))
    array([[2., 1.]])
    """
    if not isinstance(name, str) or not name or name in _RESERVED:
        raise ValueError(
            f"An operator cannot be named {name!r}: it must be a non-empty str other than "
            f"{', '.join(sorted(_RESERVED))}."
        )
    if not callable(function):
        raise TypeError(f"The function of operator {name!r} cannot be called: {function!r}.")
    OPERATORS[name] = Operator(name, function, _make_width(width))


def _make_width(width: int | Callable[[int], bool] | None) -> Width:
    if width is None:
        return ANY
    if callable(width):
        return Width(width, "valid for its `width` function")
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"width must be an int from 1, a callable or None, got {width!r}.")
    return Width(lambda d: d % width == 0, f"a multiple of {width}")


#: The own operators that the estimator now at work carries; see `OwnOperatorsMixin`.
_CARRIED: ContextVar[Mapping[str, Operator]] = ContextVar("carried", default=MappingProxyType({}))


def find_operator(name: str) -> Operator:
    """Return the operator of a name: what the estimator at work carries, or what is registered."""
    operator = _CARRIED.get().get(name) or OPERATORS.get(name)
    if operator is not None:
        return operator
    if name == "gated":
        raise ValueError(
            "operator='gated' has weights that are trained with the classifier, so it works in "
            "FusionMLPClassifier only. Here operator='weighted' adapts to the data."
        )
    raise ValueError(
        f"There is no operator {name!r}. Use one of {', '.join(OPERATORS)}, weighted, or "
        f"register_operator({name!r}, function) to add it."
    )


class OwnOperatorsMixin:
    """Carries one's own operators in the pickled state; unpickling registers nothing."""

    # All that are registered, since a search in a worker may set any of them as `operator`.
    _own_operators: dict[str, Operator]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        own = {name: op for name, op in OPERATORS.items() if name not in BUILT_IN}
        own |= vars(self).get("_own_operators", {})
        packed = {name: _pack(operator) for name, operator in own.items()}
        return {**state, "_own_operators": packed} if packed else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if packed := state.get("_own_operators"):
            own = {
                name: Operator(name, function, Width(valid, text))
                for name, (function, valid, text) in packed.items()
                if name not in BUILT_IN
            }
            state = {**state, "_own_operators": own}
        super().__setstate__(state)  # type: ignore[misc]

    def __sklearn_clone__(self) -> Any:
        clone = super().__sklearn_clone__()  # type: ignore[misc]
        own = vars(self).get("_own_operators", {})
        if missing := {name: op for name, op in own.items() if name not in OPERATORS}:
            clone._own_operators = missing
        return clone


def _pack(operator: Operator) -> tuple[Any, Any, str]:
    """Return what makes one's own operator, lambdas too, in a form that can be pickled."""
    wrapped = (
        joblib.wrap_non_picklable_objects(f, keep_wrapper=False)
        for f in (operator.function, operator.width.valid)
    )
    return *wrapped, operator.width.text


_Self = TypeVar("_Self", bound=OwnOperatorsMixin)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def uses_own_operators(
    method: Callable[Concatenate[_Self, _P], _R],
) -> Callable[Concatenate[_Self, _P], _R]:
    """Let `find_operator`, however deep in a method, find what its estimator carries."""

    @wraps(method)
    def run(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        own = vars(self).get("_own_operators", {})
        token = _CARRIED.set({**_CARRIED.get(), **own})
        try:
            return method(self, *args, **kwargs)
        finally:
            _CARRIED.reset(token)

    return run
