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
from collections.abc import Sequence
from functools import reduce

from array_api_compat import array_namespace

from .widths import FOURS, SQUARE, Array, check_operands


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

    Raises
    ------
    ValueError
        If there is no block.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.fusion.operators import concat
    >>> concat([np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])])
    array([[1., 2., 3., 4.]])
    """
    check_operands(blocks, "concat", None)
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
    check_operands(blocks, "sum")
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
    check_operands(blocks, "mean")
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
    check_operands(blocks, "hadamard")
    return reduce(_operator.mul, blocks)


def multiplication(blocks: Sequence[Array]) -> Array:
    """Multiply blocks as matrices: vec(mat(u_1) mat(u_2)), both row-major √d by √d.

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
    check_operands(blocks, "multiplication", SQUARE, 2)
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
    check_operands(blocks, "quaternion", FOURS, 2)
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
    check_operands(blocks, "bilinear")
    xp = array_namespace(*blocks)
    spectrum = reduce(_operator.mul, [xp.fft.rfft(u, axis=-1) for u in blocks])
    return xp.fft.irfft(spectrum, n=blocks[0].shape[-1], axis=-1)
