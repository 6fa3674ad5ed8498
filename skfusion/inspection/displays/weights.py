"""What models, layers and blocks count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..candidates import (
    fitted_parts,
)
from ..drawing import (
    COLOURS,
    axes,
    note,
)

Floats = NDArray[np.float64]


class WeightsDisplay:
    """What each model, layer or block counts.

    Use `from_estimator` to make one.

    Parameters
    ----------
    names : sequence of str
        What has weight.
    weights : array-like of shape (n,)
        They add up to 1, or less where small ones are left out.
    spread : array-like of shape (2, n) or None, default=None
        The 5th and 95th percentile over rows, for weights that differ from row to row.
    name : str, default="weight"
        Name of the weights.
    notes : sequence of str, default=()
        Small print.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where `plot` has drawn.
    figure_ : matplotlib Figure
        The figure of these axes.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import EmbeddingBlocks, FusionTransformer, WeightsDisplay
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 20)
    >>> X = EmbeddingBlocks({"noise": rng.normal(size=(40, 2)), "signal": y[:, None] + 0.0})
    >>> display = WeightsDisplay.from_estimator(FusionTransformer("weighted").fit(X, y))
    >>> display.names
    ['signal', 'noise']
    """

    def __init__(
        self,
        names: Sequence[str],
        weights: ArrayLike,
        *,
        spread: ArrayLike | None = None,
        name: str = "weight",
        notes: Sequence[str] = (),
    ) -> None:
        self.names = names
        self.weights = weights
        self.spread = spread
        self.name = name
        self.notes = notes

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any = None, *, max_bars: int = 15, ax: Any = None
    ) -> Self:
        """Draw the weights of the outermost part that has some.

        Parameters
        ----------
        estimator : fitted estimator
            A `FusionClassifier` or `FusionRegressor` (weights of models), a
            ``FusionTransformer("weighted")`` (of blocks), an ``LLMLayerEmbedder(layer="blend")``
            (of layers), a ``FusionMLPClassifier(operator="gated")`` (of blocks), or a pipeline or
            search with such a part.
        X : array-like or None, default=None
            Rows for gates, which differ from row to row; what the gated network itself takes.
        max_bars : int, default=15
            How many bars there are; the smallest weights are left out.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        WeightsDisplay
            Drawn, the largest weight first.
        """
        for _, part in fitted_parts(estimator):
            found = _weights_of(part, X)
            if found is not None:
                break
        else:
            raise ValueError(
                f"Nothing in {type(estimator).__name__} has weights. They come from "
                f"FusionClassifier, FusionTransformer('weighted'), "
                f"LLMLayerEmbedder(layer='blend') or FusionMLPClassifier(operator='gated')."
            )
        name, weights, spread = found
        names, values = list(weights), np.array(list(weights.values()))
        order = np.argsort(-values, kind="stable")[:max_bars]
        rest = len(values) - len(order)
        return cls(
            [names[i] for i in order],
            values[order],
            spread=None if spread is None else spread[:, order],
            name=name,
            notes=[f"{rest} smaller ones left out" if rest else ""],
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        WeightsDisplay
            Itself.
        """
        self.figure_, self.ax_ = _, axis = axes(self, ax, (6.4, 1.4 + 0.32 * len(self.names)))
        weights, places = np.asarray(self.weights, dtype=float), np.arange(len(self.names))
        axis.barh(places, weights, color=COLOURS[0])
        if self.spread is not None:
            low, high = np.asarray(self.spread)
            reach = np.abs([weights - low, high - weights])
            axis.errorbar(weights, places, xerr=reach, fmt="none", ecolor="black", capsize=3)
        for place, weight in zip(places, weights, strict=True):
            if self.spread is None:
                text = f" {weight:.0%}".replace("%", " %")
                axis.text(weight, place, text, va="center", fontsize="small")
        axis.margins(x=0.12)
        axis.set_xlim(left=0)
        axis.set_yticks(places, self.names)
        axis.invert_yaxis()
        axis.set(xlabel=self.name)
        note(axis, *self.notes)
        return self


def _weights_of(part: Any, X: Any) -> tuple[str, dict[str, float], Floats | None] | None:
    """Return what the weights are of, the weights, and their spread over rows."""
    if hasattr(part, "model_weights_"):
        return "weight of a model", dict(part.model_weights_), None
    if hasattr(part, "kernel_weights_"):
        names = list(part.block_indices_)
        return "weight of a block", dict(zip(names, part.kernel_weights_, strict=True)), None
    if hasattr(part, "layer_weights_"):
        return "weight of a layer", dict(part.layer_weights_), None
    if hasattr(part, "compute_gates") and part.operator == "gated":
        if X is None:
            raise ValueError("Gates differ from row to row: give the rows, X=.")
        gates = part.compute_gates(X)
        weights = dict(zip(part.block_indices_, gates.mean(axis=0), strict=True))
        return "gate, mean over rows", weights, np.percentile(gates, [5, 95], axis=0)
    return None
