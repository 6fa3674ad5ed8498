"""Every fusion operator once, on the array API: numpy arrays and torch tensors run the same code.

An operator takes arrays u_1, ..., u_n of shape (..., d), the blocks of the same rows after scaling
and projection to a common width, and returns one array of their type and dtype. More than two
blocks are folded from the left. Gradients flow where the arrays have them.

==============  ==============================================================  =================
operator        definition                                                      valid d
==============  ==============================================================  =================
concat          [u_1 ‖ ... ‖ u_n]                                               any, may differ
sum             u_1 + ... + u_n                                                 any
mean            (u_1 + ... + u_n) / n                                           any
hadamard        u_1 ∘ ... ∘ u_n, entry by entry                                 any
multiplication  vec(mat(u_1) ... mat(u_n)), mat: row-major √d by √d             a perfect square
quaternion      u_1 ⊗ ... ⊗ u_n, Hamilton products of d/4 quaternions each,     a multiple of 4
                their components in four parts [r ‖ i ‖ j ‖ k]
bilinear        u_1 * ... * u_n, circular convolution: the count sketch of the  any
                outer product of vectors whose count sketches the u_i are
==============  ==============================================================  =================

`bilinear` is compact bilinear pooling (Pham and Pagh, KDD 2013; Gao et al., CVPR 2016). The order
of the blocks matters for `multiplication` and `quaternion`, which do not commute and need two
blocks, and for `concat`; the others commute up to rounding.

>>> import numpy as np
>>> p, q = np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0, 8.0])
>>> multiplication([p, q])
array([19., 22., 43., 50.])
>>> quaternion([p, q])
array([-60.,  12.,  30.,  24.])
>>> bilinear([np.array([1.0, 2.0, 0.0]), np.array([0.0, 1.0, 0.0])]).round(6) + 0.0
array([0., 1., 2.])
"""

from __future__ import annotations

import math
import operator as _operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

#: A numpy array, a torch tensor, or another array that array-api-compat knows.
Array = Any
Function = Callable[[Sequence[Array]], Array]


@dataclass(frozen=True)
class Width:
    """Which common widths d an operator can work with, and how messages call them."""

    valid: Callable[[int], bool]
    text: str

    def largest(self, limit: int) -> int | None:
        """Return the largest valid width up to `limit`, or None where there is none."""
        return next((d for d in range(limit, 0, -1) if self.valid(d)), None)

    def check(self, d: int, name: str) -> None:
        """Refuse a width that operator `name` cannot work with, naming the nearest valid ones."""
        if self.valid(d):
            return
        above = islice((k for k in range(d + 1, 4 * d + 65) if self.valid(k)), 1)
        nearest = [str(k) for k in [self.largest(d - 1), *above] if k is not None]
        raise ValueError(
            f"operator {name!r} needs a common width (n_components) that is {self.text}, got {d}. "
            f"The nearest valid are {' and '.join(nearest) or 'not near'}."
        )


ANY = Width(lambda d: True, "any")
SQUARE = Width(lambda d: math.isqrt(d) ** 2 == d, "a perfect square")
FOURS = Width(lambda d: d % 4 == 0, "a multiple of 4")


@dataclass(frozen=True)
class Operator:
    """A function of blocks and what it needs of them; a call checks that first."""

    name: str
    function: Function
    width: Width = ANY
    least: int = 1  # blocks; one alone is returned as it is where 1 will do
    has_equal_widths: bool = True
    # Of a product: the vector of width d that leaves any other as it is, and how many products
    # of entries make one entry of the result.
    neutral: Callable[[int], NDArray[np.float64]] | None = None
    terms: Callable[[int], float] = lambda d: 1

    def __call__(self, blocks: Sequence[Array]) -> Array:
        """Fuse blocks; their number and widths are checked."""
        if len(blocks) < self.least:
            raise ValueError(
                f"operator {self.name!r} needs "
                f"{'at least two blocks' if self.least > 1 else 'a block'}, got {len(blocks)}. "
                f"Operators that take a single block: concat, sum, mean, hadamard, bilinear."
            )
        widths = [u.shape[-1] for u in blocks]
        if self.has_equal_widths:
            if len(set(widths)) > 1:
                raise ValueError(
                    f"operator {self.name!r} needs blocks of equal width, got {widths}. Project "
                    f"them to a common width first: projection='pca', 'random' or 'supervised'."
                )
            self.width.check(widths[0], self.name)
        return blocks[0] if len(blocks) == 1 else self.function(blocks)


def _operator_of(**needs: Any) -> Callable[[Function], Operator]:
    return lambda function: Operator(function.__name__, function, **needs)


@_operator_of(has_equal_widths=False)
def concat(blocks: Sequence[Array]) -> Array:
    """[u_1 ‖ ... ‖ u_n]."""
    return array_namespace(*blocks).concat(list(blocks), axis=-1)


@_operator_of()
def sum(blocks: Sequence[Array]) -> Array:  # named as the option is
    """u_1 + ... + u_n."""
    return reduce(_operator.add, blocks)


@_operator_of()
def mean(blocks: Sequence[Array]) -> Array:
    """(u_1 + ... + u_n) / n."""
    return reduce(_operator.add, blocks) / len(blocks)


@_operator_of(neutral=np.ones)
def hadamard(blocks: Sequence[Array]) -> Array:
    """u_1 ∘ ... ∘ u_n."""
    return reduce(_operator.mul, blocks)


@_operator_of(
    width=SQUARE, least=2, neutral=lambda d: np.eye(math.isqrt(d)).ravel(), terms=math.sqrt
)
def multiplication(blocks: Sequence[Array]) -> Array:
    """vec(mat(u_1) ... mat(u_n))."""
    xp = array_namespace(*blocks)
    side = math.isqrt(blocks[0].shape[-1])
    matrices = [xp.reshape(u, (*u.shape[:-1], side, side)) for u in blocks]
    return xp.reshape(reduce(_operator.matmul, matrices), blocks[0].shape)


@_operator_of(
    width=FOURS,
    least=2,
    neutral=lambda d: np.repeat([1.0, 0.0], [d // 4, d - d // 4]),
    terms=lambda d: 4,
)
def quaternion(blocks: Sequence[Array]) -> Array:
    """u_1 ⊗ ... ⊗ u_n."""
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


@_operator_of(neutral=lambda d: np.eye(1, d)[0], terms=float)
def bilinear(blocks: Sequence[Array]) -> Array:
    """u_1 * ... * u_n."""
    xp = array_namespace(*blocks)
    spectrum = reduce(_operator.mul, [xp.fft.rfft(u, axis=-1) for u in blocks])
    return xp.fft.irfft(spectrum, n=blocks[0].shape[-1], axis=-1)
