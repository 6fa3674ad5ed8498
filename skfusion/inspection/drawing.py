"""What the displays share: colours, markers, cells with numbers, notes; matplotlib is late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._optional_dependencies import check_matplotlib_support

Floats = NDArray[np.float64]

#: Okabe and Ito's colours that are darkest, told apart by the colour blind; beside them markers
#: and line styles, for grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
QUIET = "#777777"
TIED = "within one standard error of the best"
#: Cells and columns of a heat map beyond which numbers would not be legible.
_MOST_NUMBERS, _MOST_NUMBERED_COLUMNS = 160, 20


def axes(display: Any, ax: Any, size: tuple[float, float] = (6.4, 4.0)) -> tuple[Any, Any]:
    """Return the figure and the axes that a display draws on."""
    check_matplotlib_support(f"{type(display).__name__}.plot")
    import matplotlib.pyplot as plt

    if ax is None:
        figure, ax = plt.subplots(figsize=size, layout="constrained")
        return figure, ax
    return ax.figure, ax


def style(i: int) -> dict[str, Any]:
    """Return the colour, marker and line of the i-th thing that is drawn."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": LINES[i % len(LINES)],
    }


def note(ax: Any, *lines: str) -> None:
    """Write small print under a picture."""
    text = "\n".join(line for line in lines if line)
    if text:
        below = ax.xaxis.label  # which is itself below the longest of the ticks' labels
        ax.annotate(
            text,
            (0, 0),
            xycoords=("axes fraction", below),
            xytext=(0, -6),
            textcoords="offset points",
            va="top",
            fontsize="small",
            color=QUIET,
            annotation_clip=False,
        )


def ring(ax: Any, x: Any, y: Any, name: str | None) -> None:
    """Mark points by a ring around them."""
    ax.scatter(
        x, y, s=120, facecolors="none", edgecolors="black", linewidths=1.4, zorder=4, label=name
    )


def heatmap(
    ax: Any,
    values: Floats,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    name: str,
    diverging: bool = False,
    digits: int = 3,
) -> Any:
    """Draw cells with their numbers and a bar of colours; NaN is left white."""
    known = values[np.isfinite(values)]
    if diverging:
        reach = float(np.abs(known).max(initial=0)) or 1.0
        limits, colours = (-reach, reach), "PuOr"
    else:
        limits, colours = (float(known.min()), float(known.max())), "cividis"
    image = ax.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    if values.size <= _MOST_NUMBERS and values.shape[1] <= _MOST_NUMBERED_COLUMNS:
        size = "small" if values.shape[1] <= 10 else "x-small"
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                text = f"{value:{'+' if diverging else ''}.{digits}f}"
                ax.text(
                    column,
                    row,
                    text,
                    ha="center",
                    va="center",
                    fontsize=size,
                    color="white" if _is_dark(image.cmap(image.norm(value))) else "black",
                )
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)
    if sum(map(len, columns)) > 60 and max(map(len, columns)) > 3:
        ax.tick_params(axis="x", labelrotation=45)
    ax.figure.colorbar(image, ax=ax, label=name)
    return image


def frame(ax: Any, cells: NDArray[np.bool_]) -> None:
    """Frame cells of a heat map, legibly on dark and on light ones."""
    from matplotlib.patches import Rectangle

    for row, column in np.argwhere(cells):
        for colour, width in (("black", 3.2), ("white", 1.4)):
            corner = (column - 0.45, row - 0.45)
            ax.add_patch(Rectangle(corner, 0.9, 0.9, fill=False, edgecolor=colour, lw=width))


def hatch(ax: Any, cells: NDArray[np.bool_]) -> None:
    """Hatch cells of a heat map."""
    from matplotlib.patches import Rectangle

    for row, column in np.argwhere(cells):
        corner = (column - 0.5, row - 0.5)
        ax.add_patch(
            Rectangle(corner, 1, 1, fill=False, edgecolor=QUIET, hatch="///", lw=0, alpha=0.7)
        )


def _is_dark(colour: tuple[float, ...]) -> bool:
    red, green, blue = colour[:3]
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.5


def interval_note(n_splits: int) -> str:
    """Say what the intervals are."""
    if n_splits < 2:
        return "one split: no intervals"
    return f"95 % intervals over {n_splits} splits, corrected for shared training rows"


def left_out_note(n: int) -> str:
    """Say how many candidates are missing."""
    return f"{n} candidates without scores in all splits left out" if n else ""
