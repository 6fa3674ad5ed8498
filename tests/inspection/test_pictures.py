"""What displays draw, compared with pictures that have been looked at.

Words are taken away, since fonts differ from one matplotlib to the next. After a wanted change run
``PYTHONPATH=tests python tests/inspection/test_pictures.py`` and look at what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.testing.compare import compare_images
from matplotlib.text import Text

from skfusion import (
    CriticalDifferenceDisplay,
    FusionHeatmapDisplay,
    LayerHeatmapDisplay,
    LayerProfileDisplay,
    PoolingDisplay,
    SubsetDisplay,
    TradeoffDisplay,
    WeightsDisplay,
)

#: Root of the mean square, of 255: edges of marks differ between releases of matplotlib.
TOLERANCE = 3.0
PICTURES = Path(__file__).with_name("pictures")
LAYERS = {
    "mean": [[0.50, 0.54], [0.80, 0.84], [0.79, 0.86], [0.60, 0.70]],
    "last": [[0.30, 0.40], [0.50, 0.52], [0.70, 0.74], [0.72, 0.80]],
}
FUSED = {
    (("a", "b"), "sum"): [0.90, 0.92, 0.91],
    (("a", "b"), "concat"): [0.71, 0.79, 0.74],
    (("b", "c"), "sum"): [0.50, 0.52, 0.51],
}
ALONE = {"a": [0.60, 0.62, 0.64], "b": [0.70, 0.78, 0.74], "c": [0.50, 0.51, 0.50]}
SUBSETS = {("a",): 0.60, ("b",): 0.74, ("c",): 0.50, ("a", "b"): 0.80, ("b", "c"): 0.70}
RANKED = {
    "a": [0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.90, 0.92],
    "b": [0.80, 0.81, 0.82, 0.83, 0.84, 0.85, 0.95, 0.80],
    "c": [0.10, 0.20, 0.30, 0.20, 0.10, 0.20, 0.30, 0.10],
}

DRAW: dict[str, Callable[[Any], Any]] = {
    "layer_profile": lambda ax: LayerProfileDisplay.from_scores(LAYERS, ax=ax),
    "layer_heatmap": lambda ax: LayerHeatmapDisplay.from_scores(LAYERS, ax=ax),
    "pooling": lambda ax: PoolingDisplay.from_scores(LAYERS, ax=ax),
    "fusion_heatmap": lambda ax: FusionHeatmapDisplay.from_scores(FUSED, ALONE, ax=ax),
    "tradeoff": lambda ax: TradeoffDisplay.from_scores(
        list(ALONE.values()), [3.0, 2.0, 1.0], list(ALONE), chosen=1, ax=ax
    ),
    "subsets": lambda ax: SubsetDisplay.from_scores(SUBSETS, chosen=("a", "b"), ax=ax),
    "weights": lambda ax: WeightsDisplay(
        ["a", "b", "c"], [0.5, 0.3, 0.2], spread=[[0.4, 0.1, 0.1], [0.7, 0.5, 0.3]]
    ).plot(ax),
    "critical_difference": lambda ax: CriticalDifferenceDisplay.from_scores(RANKED, ax=ax),
}


def draw(name: str, path: Path) -> None:
    """Draw marks without words, 400 pixels wide."""
    import matplotlib.pyplot as plt

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg"}):
        figure, ax = plt.subplots(figsize=(5, 3.5), dpi=80)
        DRAW[name](ax)
        for axis in figure.axes:
            if axis.get_legend() is not None:
                axis.get_legend().remove()
        for text in figure.findobj(Text):
            text.set_visible(False)
        figure.savefig(path, dpi=80)
        plt.close(figure)


@pytest.mark.parametrize("name", DRAW)
def test_marks_are_those_of_the_picture(name: str, tmp_path: Path) -> None:
    drawn = tmp_path / f"{name}.png"
    draw(name, drawn)
    assert compare_images(str(PICTURES / f"{name}.png"), str(drawn), tol=TOLERANCE) is None


def test_another_colour_or_place_of_a_mark_is_seen(tmp_path: Path, monkeypatch: Any) -> None:
    changed = {"mean": LAYERS["mean"], "last": np.array(LAYERS["last"]) + 0.1}
    for name in ("layer_profile", "layer_heatmap", "pooling"):
        monkeypatch.setitem(globals(), "LAYERS", changed)
        draw(name, tmp_path / "drawn.png")
        picture = str(PICTURES / f"{name}.png")
        found = compare_images(picture, str(tmp_path / "drawn.png"), tol=0, in_decorator=True)
        assert found["rms"] > 2 * TOLERANCE, name


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for each in DRAW:
        draw(each, PICTURES / f"{each}.png")
