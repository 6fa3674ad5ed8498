"""Operators of one's own, and the combinations of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import joblib

from .operators import ANY, OPERATORS, Function, Operator, Width

BUILT_IN = frozenset(OPERATORS)

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


def register_operator(
    name: str,
    function: Function,
    *,
    width: int | Callable[[int], bool] | None = None,
) -> None:
    """Make a function available as ``operator=name``.

    The registration travels with pickled estimators, so joblib's workers have it too. Registering
    a name again replaces the function.

    Parameters
    ----------
    name : str
        The operator's name. Those of skfusion itself cannot be replaced.
    function : callable
        Takes a sequence of two or more arrays of shape (n_samples, d) and gives one array of
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
    >>> from skfusion.fusion.registry import register_operator
    >>> from skfusion.fusion.transformer import FusionTransformer
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


_RESERVED = BUILT_IN | {"weighted", "gated"}


def _make_width(width: int | Callable[[int], bool] | None) -> Width:
    if width is None:
        return ANY
    if callable(width):
        return Width(width, "valid for its `width` function")
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"width must be an int from 1, a callable or None, got {width!r}.")
    return Width(_MultipleOf(width), f"a multiple of {width}")


class _MultipleOf:
    """A predicate that can be pickled."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, d: int) -> bool:
        return d % self.factor == 0


def find_operator(name: str) -> Operator:
    """Look an operator up.

    Parameters
    ----------
    name : str
        The `operator` parameter.

    Returns
    -------
    Operator
        The operator.

    Raises
    ------
    ValueError
        If there is none of this name, or it works in the neural network only.
    """
    if name == "gated":
        raise ValueError(
            "operator='gated' has weights that are trained with the classifier, so it works in "
            "FusionMLPClassifier only. Here operator='weighted' adapts to the data."
        )
    if name not in OPERATORS:
        raise ValueError(
            f"There is no operator {name!r}. Use one of {', '.join(OPERATORS)}, weighted, or "
            f"register_operator({name!r}, function) to add it."
        )
    return OPERATORS[name]


def export_operators() -> dict[str, tuple[Any, Any, str]]:
    """Give the user's own operators in a form that can be pickled, lambdas too.

    Returns
    -------
    dict
        For each name the function, the predicate of valid widths and its text. Put it in the
        state of an estimator that names an operator: a worker process starts without them.
    """
    wrap = joblib.wrap_non_picklable_objects
    return {
        name: (wrap(op.function), wrap(op.width.valid), op.width.text)
        for name, op in OPERATORS.items()
        if name not in BUILT_IN
    }


def import_operators(exported: Mapping[str, tuple[Any, Any, str]]) -> None:
    """Register what `export_operators` gave, where the name is not registered here.

    Parameters
    ----------
    exported : mapping
        As `export_operators` gives it.
    """
    for name, (function, valid, text) in exported.items():
        OPERATORS.setdefault(name, Operator(name, function, Width(valid, text)))
