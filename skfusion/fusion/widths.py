"""What operators need of the blocks they are given."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

#: A numpy array, a torch tensor, or another array that array-api-compat knows.
Array = Any


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
SQUARE = Width(lambda d: math.isqrt(d) ** 2 == d, "a perfect square")
FOURS = Width(lambda d: d % 4 == 0, "a multiple of 4")


def check_operands(
    blocks: Sequence[Array], name: str, width: Width | None = ANY, least: int = 1
) -> None:
    """Refuse blocks that an operator cannot fuse.

    Parameters
    ----------
    blocks : sequence of array of shape (..., d)
        The blocks.
    name : str
        The operator's name, for messages.
    width : Width or None, default=ANY
        The common widths it can work with; None where widths may differ.
    least : int, default=1
        Fewest blocks.

    Raises
    ------
    ValueError
        If blocks are too few, their widths differ, or the width is not valid.
    """
    if len(blocks) < least:
        raise ValueError(
            f"operator {name!r} needs {'at least two blocks' if least > 1 else 'a block'}, got "
            f"{len(blocks)}. Operators that take a single block: concat, sum, mean, hadamard, "
            f"bilinear."
        )
    if width is None:
        return
    widths = [u.shape[-1] for u in blocks]
    if len(set(widths)) > 1:
        raise ValueError(
            f"operator {name!r} needs blocks of equal width, got {widths}. Project them to a "
            f"common width first: projection='pca', 'random' or 'supervised'."
        )
    width.check(widths[0], name)
