"""The width that blocks are projected to: what is asked for, what suits, and what there is."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from .projection import ProjectionWarning
from .registry import Operator


def common_width(
    operator: Operator,
    widths: Sequence[int],
    n_components: int | None,
    *,
    projection: str | None,
    n_rows: int,
) -> int:
    """Settle the common width d of the projected blocks.

    Parameters
    ----------
    operator : Operator
        Which widths are valid.
    widths : sequence of int
        Widths of the blocks.
    n_components : int or None
        The parameter. None takes the smallest block's width, rounded down to a valid one.
    projection : str or None
        How blocks are projected. "pca" cannot give more than ``n_rows - 1`` components.
    n_rows : int
        Number of training rows.

    Returns
    -------
    int
        The width.

    Raises
    ------
    ValueError
        If the width asked for cannot be had, or none can.

    Warns
    -----
    ProjectionWarning
        If there are too few rows for the smallest block's width.

    Examples
    --------
    >>> from skfusion.fusion.registry import OPERATORS
    >>> from skfusion.fusion.common_width import common_width
    >>> common_width(OPERATORS["multiplication"], [384, 576], None, projection="pca", n_rows=500)
    361
    """
    if projection is None:
        return _unprojected_width(operator, widths, n_components)
    limit = min(*widths, n_rows - 1) if projection == "pca" else None
    if limit == 0:
        raise ValueError(
            "projection='pca' needs two training rows at least, got n_samples=1. Use "
            "projection='random', or None where the blocks have one width."
        )
    if n_components is None:
        return _default_width(operator, min(widths), limit)
    operator.width.check(n_components, operator.name)
    if limit is not None and n_components > limit:
        raise ValueError(
            f"n_components={n_components} is more than PCA can give: {limit}, the smaller of the "
            f"smallest block's width {min(widths)} and n_samples - 1 = {n_rows - 1} training "
            f"rows. Use at most that, None for the most, or projection='random'."
        )
    return n_components


def _unprojected_width(operator: Operator, widths: Sequence[int], n_components: int | None) -> int:
    if len(set(widths)) > 1:
        raise ValueError(
            f"projection=None leaves the blocks' widths {list(widths)}, but operator "
            f"{operator.name!r} needs them equal. Use projection='pca', 'random' or 'supervised'."
        )
    if n_components not in (None, widths[0]):
        raise ValueError(
            f"projection=None leaves the blocks' width {widths[0]}, but n_components="
            f"{n_components}. Set n_components=None, or a projection."
        )
    operator.width.check(widths[0], operator.name)
    return widths[0]


def _default_width(operator: Operator, smallest: int, limit: int | None) -> int:
    wanted = operator.width.largest(smallest)
    width = wanted if limit is None else operator.width.largest(min(smallest, limit))
    if width is None:
        raise ValueError(
            f"operator {operator.name!r} needs a common width that is {operator.width.text}, but "
            f"the most there is is {smallest if limit is None else limit}: the smallest block has "
            f"{smallest} columns, and PCA gives at most n_samples - 1 components. Use wider "
            f"blocks, more rows, or projection='random' with n_components set."
        )
    if width != wanted:
        warnings.warn(
            f"The common width is {width}, not {wanted} as the blocks' width would allow: PCA "
            f"gives at most n_samples - 1 = {limit} components. Set n_components to choose it, or "
            f"use projection='random'.",
            ProjectionWarning,
            stacklevel=6,
        )
    return width
