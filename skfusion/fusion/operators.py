"""Every fusion operator once, on the array API: numpy arrays and torch tensors run the same code.

An operator takes a sequence of arrays u_1, ..., u_n of shape (..., d), the blocks of the same rows
after scaling and projection to a common width, and gives one array of their type and dtype. More
than two blocks are folded from the left. Gradients flow where the arrays have them. The order of
the blocks matters for `multiplication` and `quaternion`, which do not commute, and for `concat`;
the others commute up to rounding.
"""

from __future__ import annotations

import math
import operator as _operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

from array_api_compat import array_namespace

#: A numpy array, a torch tensor, or another array that array-api-compat knows.
Array = Any
Function = Callable[[Sequence[Array]], Array]


@dataclass(frozen=True)
class Width:
    """Which common widths d an operator can work with.

    Parameters
    ----------
    valid : callable of int to bool
        Whether a width will do.
    text : str
        What stands in messages, such as "a multiple of 4".
    """

    valid: Callable[[int], bool]
    text: str

    def largest(self, limit: int) -> int | None:
        """Give the largest valid width up to `limit`, or None where there is none."""
        return next((d for d in range(limit, 0, -1) if self.valid(d)), None)

    def check(self, d: int, name: str) -> None:
        """Refuse a width, naming the nearest valid ones.

        Raises
        ------
        ValueError
            If the operator cannot work with `d`.
        """
        if self.valid(d):
            return
        above = islice((k for k in range(d + 1, 4 * d + 65) if self.valid(k)), 1)
        nearest = [str(k) for k in [self.largest(d - 1), *above] if k is not None]
        raise ValueError(
            f"operator {name!r} needs a common width (n_components) that is {self.text}, got {d}. "
            f"The nearest valid are {' and '.join(nearest) or 'not near'}."
        )


ANY = Width(lambda d: True, "any")
_SQUARE = Width(lambda d: math.isqrt(d) ** 2 == d, "a perfect square")
_FOURS = Width(lambda d: d % 4 == 0, "a multiple of 4")


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
    """

    name: str
    function: Function
    width: Width = ANY
    least: int = 1

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
        if self.name != "concat":
            _check(blocks, self.name, self.width, self.least)
        return blocks[0] if len(blocks) == 1 else self.function(blocks)


def concat(blocks: Sequence[Array]) -> Array:
    """Put blocks side by side: [u_1 ‖ ... ‖ u_n]; their widths may differ.

    Parameters
    ----------
    blocks : sequence of array of shape (..., d_i)
        The blocks.

    Returns
    -------
    array of shape (..., d_1 + ... + d_n)
        The blocks in their order.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.operators import concat
    >>> concat([np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])])
    array([[1., 2., 3., 4.]])
    """
    return array_namespace(*blocks).concat(list(blocks), axis=-1)


def sum(blocks: Sequence[Array]) -> Array:  # named as the option is
    """Add blocks: u_1 + ... + u_n.

    Parameters
    ----------
    blocks : sequence of array of shape (..., d)
        The blocks.

    Returns
    -------
    array of shape (..., d)
        The sum.

    Raises
    ------
    ValueError
        If widths differ.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion import operators
    >>> operators.sum([np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])])
    array([[4., 6.]])
    """
    _check(blocks, "sum")
    return reduce(_operator.add, blocks)


def mean(blocks: Sequence[Array]) -> Array:
    """Average blocks: (u_1 + ... + u_n) / n.

    Parameters
    ----------
    blocks : sequence of array of shape (..., d)
        The blocks.

    Returns
    -------
    array of shape (..., d)
        The mean.

    Raises
    ------
    ValueError
        If widths differ.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.operators import mean
    >>> mean([np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])])
    array([[2., 3.]])
    """
    _check(blocks, "mean")
    return sum(blocks) / len(blocks)


def hadamard(blocks: Sequence[Array]) -> Array:
    """Multiply blocks entry by entry: u_1 ∘ ... ∘ u_n.

    Parameters
    ----------
    blocks : sequence of array of shape (..., d)
        The blocks.

    Returns
    -------
    array of shape (..., d)
        The product.

    Raises
    ------
    ValueError
        If widths differ.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.operators import hadamard
    >>> hadamard([np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])])
    array([[3., 8.]])
    """
    _check(blocks, "hadamard")
    return reduce(_operator.mul, blocks)


def multiplication(blocks: Sequence[Array]) -> Array:
    """Multiply blocks as matrices: vec(mat(u_1) mat(u_2)), both row-major √d × √d.

    It does not commute: the order of the blocks matters.

    Parameters
    ----------
    blocks : sequence of array of shape (..., d)
        Two blocks or more; d is a perfect square.

    Returns
    -------
    array of shape (..., d)
        The product.

    Raises
    ------
    ValueError
        If there is one block only, widths differ, or d is no perfect square.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.operators import multiplication
    >>> multiplication([np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 1.0, 1.0, 0.0])])
    array([2., 1., 4., 3.])
    """
    _check(blocks, "multiplication", _SQUARE, 2)
    xp = array_namespace(*blocks)
    side = math.isqrt(blocks[0].shape[-1])
    matrices = [xp.reshape(u, (*u.shape[:-1], side, side)) for u in blocks]
    return xp.reshape(reduce(_operator.matmul, matrices), blocks[0].shape)


def quaternion(blocks: Sequence[Array]) -> Array:
    """Multiply blocks as d/4 quaternions each, their components in four parts [r ‖ i ‖ j ‖ k].

    The Hamilton product does not commute: the order of the blocks matters.

    Parameters
    ----------
    blocks : sequence of array of shape (..., d)
        Two blocks or more; d is a multiple of 4.

    Returns
    -------
    array of shape (..., d)
        The product u_1 ⊗ u_2 ⊗ ... ⊗ u_n.

    Raises
    ------
    ValueError
        If there is one block only, widths differ, or d is no multiple of 4.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.operators import quaternion
    >>> quaternion([np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0, 8.0])])
    array([-60.,  12.,  30.,  24.])
    """
    _check(blocks, "quaternion", _FOURS, 2)
    return reduce(_hamilton, blocks)


def _hamilton(p: Array, q: Array) -> Array:
    k = p.shape[-1] // 4
    a, b, c, d = (p[..., i * k : (i + 1) * k] for i in range(4))
    e, f, g, h = (q[..., i * k : (i + 1) * k] for i in range(4))
    parts = [
        a * e - b * f - c * g - d * h,
        a * f + b * e + c * h - d * g,
        a * g - b * h + c * e + d * f,
        a * h + b * g - c * f + d * e,
    ]
    return array_namespace(p, q).concat(parts, axis=-1)


def bilinear(blocks: Sequence[Array]) -> Array:
    """Convolve blocks circularly, by FFT: u_1 * ... * u_n.

    Of count sketches of n vectors (`count_sketch`) this is the count sketch of their outer
    product: compact bilinear pooling (Pham and Pagh, KDD 2013; Gao et al., CVPR 2016).

    Parameters
    ----------
    blocks : sequence of array of shape (..., d)
        The blocks, each sketched or projected to d entries.

    Returns
    -------
    array of shape (..., d)
        The convolution.

    Raises
    ------
    ValueError
        If widths differ.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.operators import bilinear
    >>> bilinear([np.array([1.0, 2.0, 0.0]), np.array([0.0, 1.0, 0.0])]).round(6) + 0.0
    array([0., 1., 2.])
    """
    _check(blocks, "bilinear")
    xp = array_namespace(*blocks)
    spectrum = reduce(_operator.mul, [xp.fft.rfft(u, axis=-1) for u in blocks])
    return xp.fft.irfft(spectrum, n=blocks[0].shape[-1], axis=-1)


def _check(blocks: Sequence[Array], name: str, width: Width = ANY, least: int = 1) -> None:
    if len(blocks) < least:
        raise ValueError(
            f"operator {name!r} needs {'at least two blocks' if least > 1 else 'a block'}, got "
            f"{len(blocks)}. Operators that take a single block: concat, sum, mean, hadamard, "
            f"bilinear."
        )
    widths = [u.shape[-1] for u in blocks]
    if len(set(widths)) > 1:
        raise ValueError(
            f"operator {name!r} needs blocks of equal width, got {widths}. Project them to a "
            f"common width first: projection='pca', 'random' or 'supervised'."
        )
    width.check(widths[0], name)


#: Every operator by the name that the `operator` parameter takes; see `register_operator`.
OPERATORS: dict[str, Operator] = {
    op.name: op
    for op in [
        Operator("concat", concat),
        Operator("sum", sum),
        Operator("mean", mean),
        Operator("hadamard", hadamard),
        Operator("multiplication", multiplication, _SQUARE, 2),
        Operator("quaternion", quaternion, _FOURS, 2),
        Operator("bilinear", bilinear),
    ]
}
