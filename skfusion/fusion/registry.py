"""Operators by name: those of skfusion, one's own, and the combinations of the paper."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from .operators import bilinear, concat, hadamard, mean, multiplication, quaternion, sum
from .widths import ANY, FOURS, SQUARE, Array, Width, check_operands

Function = Callable[[Sequence[Array]], Array]


@dataclass(frozen=True)
class Operator:
    """An operator and what it needs; calling it checks that and runs the function.

    Parameters
    ----------
    name : str
        What the `operator` parameter takes.
    function : callable
        Takes a sequence of arrays of shape (..., d) and gives one array.
    width : Width
        The widths d that it can work with.
    least : int, default=1
        Fewest blocks. A single block is returned as it is where 1 will do.
    neutral : callable of int to ndarray, or None, default=None
        For a product: gives the vector e of width d that leaves any other as it is.
    terms : callable of int to float, default=one
        For a product: how many products of entries make one entry of the result.
    """

    name: str
    function: Function
    width: Width = ANY
    least: int = 1
    neutral: Callable[[int], NDArray[np.float64]] | None = None
    terms: Callable[[int], float] = lambda d: 1

    def __call__(self, blocks: Sequence[Array]) -> Array:
        """Fuse blocks of equal width.

        Parameters
        ----------
        blocks : sequence of array of shape (..., d)
            The blocks.

        Returns
        -------
        array
            The fused rows.

        Raises
        ------
        ValueError
            If blocks are too few or of different widths, or the width is not valid.
        """
        width = None if self.name == "concat" else self.width
        check_operands(blocks, self.name, width, self.least)
        return blocks[0] if len(blocks) == 1 else self.function(blocks)


def _identity(d: int) -> NDArray[np.float64]:
    return np.eye(math.isqrt(d)).ravel()


def _real_ones(d: int) -> NDArray[np.float64]:
    return np.repeat([1.0, 0.0], [d // 4, d - d // 4])


#: Every operator by the name that the `operator` parameter takes; see `register_operator`.
OPERATORS: dict[str, Operator] = {
    op.name: op
    for op in [
        Operator("concat", concat),
        Operator("sum", sum),
        Operator("mean", mean),
        Operator("hadamard", hadamard, neutral=np.ones),
        Operator("multiplication", multiplication, SQUARE, 2, _identity, math.sqrt),
        Operator("quaternion", quaternion, FOURS, 2, _real_ones, lambda d: 4),
        Operator("bilinear", bilinear, neutral=lambda d: np.eye(1, d)[0], terms=float),
    ]
}

BUILT_IN = frozenset(OPERATORS)

#: These put the blocks side by side: no projection, and nothing that a residual could add.
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
    _REGISTERED_AT[name] = time.time_ns()


_RESERVED = BUILT_IN | {"weighted", "gated"}
_REGISTERED_AT: dict[str, int] = {}


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


Exported = dict[str, tuple[int, Any, Any, str]]


def export_operators() -> Exported:
    """Give the user's own operators in a form that can be pickled, lambdas too.

    Returns
    -------
    dict
        For each name the time of its registration, the function, the predicate of valid widths
        and its text. Put it in the state of an estimator that names an operator: a worker
        process starts without them.
    """
    wrap = joblib.wrap_non_picklable_objects
    return {
        name: (_REGISTERED_AT[name], wrap(op.function), wrap(op.width.valid), op.width.text)
        for name, op in OPERATORS.items()
        if name not in BUILT_IN
    }


def import_operators(exported: Exported) -> None:
    """Register what `export_operators` gave, where it is newer than what is registered here.

    Workers live on between calls, so they must learn of a function that was replaced; an old
    pickle must not bring the replaced one back.

    Parameters
    ----------
    exported : dict
        As `export_operators` gives it.
    """
    for name, (at, function, valid, text) in exported.items():
        if at > _REGISTERED_AT.get(name, 0):
            OPERATORS[name] = Operator(name, function, Width(valid, text))
            _REGISTERED_AT[name] = at


class OwnOperatorsMixin:
    """Carries the user's own operators in the pickled state of an estimator that names one."""

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        own = export_operators()
        return {**state, "_own_operators": own} if own else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        import_operators(state.pop("_own_operators", {}))
        super().__setstate__(state)  # type: ignore[misc]
