"""Layers and poolings: profiles along the depth, heat maps, poolings."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..candidates import (
    Candidates,
    fitted_parts,
    half_intervals,
    label,
    layer_label,
    layer_order,
    read_candidates,
    within_one_error,
)
from ..drawing import (
    COLOURS,
    QUIET,
    TIED,
    axes,
    frame,
    heatmap,
    interval_note,
    left_out_note,
    note,
    ring,
    style,
)

Floats = NDArray[np.float64]


class LayerProfileDisplay:
    """Scores, or weights, along the depth of one or several models.

    Use `from_cv_results`, `from_estimator` or `from_scores` to make one.

    Parameters
    ----------
    layers : sequence of str
        Labels of the layers, from the first to the last.
    profiles : mapping of str to array-like of shape (n_layers,)
        One line each; NaN where a line has no such layer.
    half_intervals : mapping of str to array-like of shape (n_layers,) or None, default=None
        Half of the interval of each value; NaN draws none.
    tied : mapping of str to array-like of bool, shape (n_layers,), or None, default=None
        The values that are marked as being as good as the best.
    chosen : str or None, default=None
        The layer that was chosen.
    name : str, default="score"
        Name of the values.
    notes : sequence of str, default=()
        Small print.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where `plot` has drawn.
    figure_ : matplotlib Figure
        The figure of these axes.

    See Also
    --------
    LayerHeatmapDisplay : Layers by pooling.

    Examples
    --------
    >>> from skfusion import LayerProfileDisplay
    >>> scores = {"MiniLM": [[0.6, 0.7], [0.7, 0.8]], "SmolLM2": [[0.5, 0.6], [0.8, 0.8]]}
    >>> display = LayerProfileDisplay.from_scores(scores)
    >>> display.profiles["SmolLM2"]
    array([0.55, 0.8 ])
    """

    def __init__(
        self,
        layers: Sequence[str],
        profiles: Mapping[str, ArrayLike],
        *,
        half_intervals: Mapping[str, ArrayLike] | None = None,
        tied: Mapping[str, ArrayLike] | None = None,
        chosen: str | None = None,
        name: str = "score",
        notes: Sequence[str] = (),
    ) -> None:
        self.layers = layers
        self.profiles = profiles
        self.half_intervals = half_intervals
        self.tied = tied
        self.chosen = chosen
        self.name = name
        self.notes = notes

    @classmethod
    def from_scores(
        cls,
        scores: Mapping[str, ArrayLike],
        *,
        layers: Sequence[Any] | None = None,
        test_fraction: float | None = None,
        name: str = "score",
        ax: Any = None,
    ) -> Self:
        """Draw scores of splits, for each model an array (n_layers, n_splits).

        Parameters
        ----------
        scores : mapping of str to array-like of shape (n_layers, n_splits)
            By model, or whatever the lines are.
        layers : sequence or None, default=None
            The layers; None counts from 0.
        test_fraction : float or None, default=None
            The share of rows that each split tests on; None is 1 / n_splits.
        name : str, default="score"
            Name of the scores.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerProfileDisplay
            Drawn.
        """
        arrays = _score_arrays(scores)
        depth = max(map(len, arrays.values()))
        labels = [layer_label(k) for k in (range(depth) if layers is None else layers)]
        splits = {array.shape[1] for array in arrays.values()}
        return cls(
            labels,
            {key: _padded(array.mean(axis=1), depth) for key, array in arrays.items()},
            half_intervals={
                key: _padded(half_intervals(array, test_fraction), depth)
                for key, array in arrays.items()
            },
            tied={
                key: _padded(within_one_error(array), depth) > 0 for key, array in arrays.items()
            },
            name=name,
            notes=[interval_note(n) for n in sorted(splits)],
        ).plot(ax)

    @classmethod
    def from_cv_results(
        cls,
        search: Any,
        *,
        layer: str | None = None,
        by: str | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw a search over layers; of all other parameters those that are best for each layer.

        Parameters
        ----------
        search : fitted search
            With `cv_results_`.
        layer : str or None, default=None
            The parameter that is the layer, where several are called so.
        by : str or None, default=None
            A parameter with one line per value.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerProfileDisplay
            Drawn. A layer's score is that of the best of its candidates, and too good by chance,
            the more so the more there are.
        """
        found = read_candidates(search)
        parameter = found.parameter("layer", layer)
        lines = found.labels(by, search.estimator) if by else [found.metric] * len(found.params)
        table = _Table.of(found, lines, [params.get(parameter) for params in found.params])
        chosen = getattr(search, "best_params_", {}).get(parameter)
        return cls(
            table.column_labels,
            table.by_row(found.scores.mean(axis=1)),
            half_intervals=table.by_row(half_intervals(found.scores, found.test_fraction)),
            tied=dict(zip(table.rows, table.tied(found.scores), strict=True)),
            chosen=None if chosen is None else layer_label(chosen),
            name=found.metric,
            notes=[interval_note(found.scores.shape[1]), left_out_note(found.n_left_out)],
        ).plot(ax)

    @classmethod
    def from_estimator(cls, estimator: Any, *, model: str | None = None, ax: Any = None) -> Self:
        """Draw what a fitted ``layer="auto"`` or ``layer="blend"`` goes by.

        Parameters
        ----------
        estimator : fitted estimator
            An embedder, or a pipeline, search or `FusionClassifier` with such embedders inside.
        model : str or None, default=None
            The name of one of several embedders; None takes the first.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerProfileDisplay
            Drawn, one line per pooling: scores of "auto", with the intervals of their differences
            to the best where its criterion gives such, and weights of "blend".
        """
        found = _fitted_layers(estimator, model)
        return cls(
            found.layers,
            found.profiles,
            half_intervals=found.half_intervals,
            tied=found.tied,
            chosen=found.chosen,
            name=found.name,
            notes=["95 % intervals of the difference to the best"] if found.half_intervals else [],
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerProfileDisplay
            Itself.
        """
        self.figure_, self.ax_ = _, axis = axes(self, ax)
        places, tied_x, tied_y = np.arange(len(self.layers)), list[int](), list[float]()
        for i, (key, values) in enumerate(self.profiles.items()):
            line, look = np.asarray(values, dtype=np.float64), style(i)
            known = np.isfinite(line)
            axis.plot(places[known], line[known], label=key, markersize=5, **look)
            half = np.asarray((self.half_intervals or {}).get(key, np.nan * line))
            shown = known & np.isfinite(half)
            axis.fill_between(
                places[shown],
                (line - half)[shown],
                (line + half)[shown],
                color=look["color"],
                alpha=0.13,
                linewidth=0,
            )
            marks = np.asarray((self.tied or {}).get(key, np.zeros(len(line), dtype=bool)))
            tied_x += places[marks].tolist()
            tied_y += line[marks].tolist()
        if tied_x:
            ring(axis, tied_x, tied_y, TIED)
        if self.chosen is not None and self.chosen in self.layers:
            place = list(self.layers).index(self.chosen)
            axis.axvline(place, color=QUIET, linewidth=1, linestyle="--", zorder=0, label="chosen")
        step = max(1, len(self.layers) // 12)
        shown_places = sorted({*places[::step].tolist(), len(places) - 1})
        axis.set_xticks(shown_places, [self.layers[i] for i in shown_places])
        axis.set(xlabel="layer", ylabel=self.name)
        axis.legend(fontsize="small")
        note(axis, *self.notes)
        return self


class LayerHeatmapDisplay:
    """Scores, or weights, of layers by pooling, model or data set.

    Use `from_cv_results`, `from_estimator` or `from_scores` to make one.

    Parameters
    ----------
    values : array-like of shape (n_rows, n_layers)
        NaN where nothing was measured.
    rows : sequence of str
        Labels of the rows.
    layers : sequence of str
        Labels of the layers.
    tied : array-like of bool, shape (n_rows, n_layers), or None, default=None
        Cells that are framed as being as good as the best.
    name : str, default="score"
        Name of the values.
    row_name : str, default=""
        What the rows are.
    notes : sequence of str, default=()
        Small print.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where `plot` has drawn.
    figure_ : matplotlib Figure
        The figure of these axes.

    See Also
    --------
    LayerProfileDisplay : With intervals.

    Examples
    --------
    >>> from skfusion import LayerHeatmapDisplay
    >>> scores = {"mean": [[0.6, 0.7], [0.8, 0.8]], "last": [[0.5, 0.5], [0.7, 0.8]]}
    >>> LayerHeatmapDisplay.from_scores(scores).tied
    array([[False,  True],
           [False,  True]])
    """

    def __init__(
        self,
        values: ArrayLike,
        rows: Sequence[str],
        layers: Sequence[str],
        *,
        tied: ArrayLike | None = None,
        name: str = "score",
        row_name: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        self.values = values
        self.rows = rows
        self.layers = layers
        self.tied = tied
        self.name = name
        self.row_name = row_name
        self.notes = notes

    @classmethod
    def from_scores(
        cls,
        scores: Mapping[str, ArrayLike],
        *,
        layers: Sequence[Any] | None = None,
        name: str = "score",
        row_name: str = "",
        ax: Any = None,
    ) -> Self:
        """Draw scores of the same splits, for each row an array (n_layers, n_splits).

        Parameters
        ----------
        scores : mapping of str to array-like of shape (n_layers, n_splits)
            By pooling, model or data set.
        layers : sequence or None, default=None
            The layers; None counts from 0.
        name : str, default="score"
            Name of the scores.
        row_name : str, default=""
            What the rows are.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerHeatmapDisplay
            Drawn.
        """
        arrays = _score_arrays(scores)
        shapes = {key: array.shape for key, array in arrays.items()}
        if len({n_splits for _, n_splits in shapes.values()}) != 1:
            raise ValueError(
                f"Scores must be arrays (n_layers, n_splits) of the same splits, got {shapes}."
            )
        depth = max(map(len, arrays.values()))
        labels = [layer_label(k) for k in (range(depth) if layers is None else layers)]
        near = within_one_error(np.concatenate(list(arrays.values())))
        cuts = np.cumsum([len(array) for array in arrays.values()])[:-1]
        return cls(
            np.stack([_padded(array.mean(axis=1), depth) for array in arrays.values()]),
            list(arrays),
            labels,
            tied=np.stack([_padded(part, depth) > 0 for part in np.split(near, cuts)]),
            name=name,
            row_name=row_name,
        ).plot(ax)

    @classmethod
    def from_cv_results(
        cls,
        search: Any,
        *,
        layer: str | None = None,
        by: str | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw a search over layers and, by default, poolings.

        Parameters
        ----------
        search : fitted search
            With `cv_results_`.
        layer : str or None, default=None
            The parameter that is the layer, where several are called so.
        by : str or None, default=None
            The parameter that is the rows; None is the pooling.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerHeatmapDisplay
            Drawn; of all other parameters those that are best for each cell.
        """
        found = read_candidates(search)
        columns, rows = found.parameter("layer", layer), found.parameter("pooling", by)
        table = _Table.of(
            found,
            found.labels(rows, search.estimator),
            [params.get(columns) for params in found.params],
        )
        return cls(
            table.fill(found.scores.mean(axis=1)),
            table.rows,
            table.column_labels,
            tied=table.tied(found.scores),
            name=found.metric,
            row_name=rows.split("__")[-1],
            notes=[left_out_note(found.n_left_out)],
        ).plot(ax)

    @classmethod
    def from_estimator(cls, estimator: Any, *, model: str | None = None, ax: Any = None) -> Self:
        """Draw what a fitted ``layer="auto"`` or ``layer="blend"`` goes by, by pooling.

        Parameters
        ----------
        estimator : fitted estimator
            An embedder, or a pipeline, search or `FusionClassifier` with such embedders inside.
        model : str or None, default=None
            The name of one of several embedders; None takes the first.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerHeatmapDisplay
            Drawn.
        """
        found = _fitted_layers(estimator, model)
        return cls(
            np.stack(list(found.profiles.values())),
            list(found.profiles),
            found.layers,
            tied=None if found.tied is None else np.stack(list(found.tied.values())),
            name=found.name,
            row_name="pooling",
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerHeatmapDisplay
            Itself.
        """
        values = np.asarray(self.values, dtype=np.float64)
        n_rows, n_layers = values.shape
        size = (max(5.0, 2.4 + 0.55 * min(n_layers, 16)), 1.8 + 0.5 * n_rows)
        self.figure_, self.ax_ = _, axis = axes(self, ax, size)
        heatmap(axis, values, rows=self.rows, columns=self.layers, name=self.name)
        marked = self.tied is not None and np.any(self.tied)
        if marked:
            frame(axis, np.asarray(self.tied))
        axis.set(xlabel="layer", ylabel=self.row_name)
        note(axis, f"framed: {TIED}" if marked else "", *self.notes)
        return self


class PoolingDisplay:
    """Scores by pooling: every layer a dot, the best one with its interval.

    Use `from_cv_results` or `from_scores` to make one.

    Parameters
    ----------
    poolings : sequence of str
        Labels of the poolings.
    means : sequence of array-like of shape (n_layers,)
        Mean scores of each pooling's layers.
    best : array-like of shape (n_poolings,)
        The best of them.
    half_intervals : array-like of shape (n_poolings,)
        Half of the interval of the best one.
    tied : array-like of bool, shape (n_poolings,)
        Poolings whose best is as good as the best of all.
    name : str, default="score"
        Name of the scores.
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
    >>> from skfusion import PoolingDisplay
    >>> scores = {"mean": [[0.6, 0.7], [0.7, 0.8]], "last": [[0.3, 0.2], [0.5, 0.5]]}
    >>> PoolingDisplay.from_scores(scores).best
    array([0.75, 0.5 ])
    """

    def __init__(
        self,
        poolings: Sequence[str],
        means: Sequence[ArrayLike],
        best: ArrayLike,
        half_intervals: ArrayLike,
        tied: ArrayLike,
        *,
        name: str = "score",
        notes: Sequence[str] = (),
    ) -> None:
        self.poolings = poolings
        self.means = means
        self.best = best
        self.half_intervals = half_intervals
        self.tied = tied
        self.name = name
        self.notes = notes

    @classmethod
    def from_scores(
        cls,
        scores: Mapping[str, ArrayLike],
        *,
        test_fraction: float | None = None,
        name: str = "score",
        notes: Sequence[str] = (),
        ax: Any = None,
    ) -> Self:
        """Draw scores of the same splits, for each pooling an array (n_layers, n_splits).

        Parameters
        ----------
        scores : mapping of str to array-like of shape (n_layers, n_splits)
            By pooling.
        test_fraction : float or None, default=None
            The share of rows that each split tests on; None is 1 / n_splits.
        name : str, default="score"
            Name of the scores.
        notes : sequence of str, default=()
            More small print.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        PoolingDisplay
            Drawn.
        """
        arrays = _score_arrays(scores)
        best = np.stack([array[np.argmax(array.mean(axis=1))] for array in arrays.values()])
        return cls(
            list(arrays),
            [array.mean(axis=1) for array in arrays.values()],
            best.mean(axis=1),
            half_intervals(best, test_fraction),
            within_one_error(best),
            name=name,
            notes=[interval_note(best.shape[1]), *notes],
        ).plot(ax)

    @classmethod
    def from_cv_results(
        cls, search: Any, *, pooling: str | None = None, layer: str | None = None, ax: Any = None
    ) -> Self:
        """Draw a search over poolings and layers.

        Parameters
        ----------
        search : fitted search
            With `cv_results_`.
        pooling, layer : str or None, default=None
            The parameters that are the pooling and the layer, where several are called so.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        PoolingDisplay
            Drawn; of all other parameters those that are best for each layer.
        """
        found = read_candidates(search)
        rows, columns = found.parameter("pooling", pooling), found.parameter("layer", layer)
        named = zip(found.labels(rows, search.estimator), found.params, strict=True)
        cells = found.best_of(
            [
                None if params.get(columns) is None else (row, label(params[columns]))
                for row, params in named
            ]
        )
        scores: dict[str, list[Floats]] = {}
        for (name, _), i in cells.items():
            scores.setdefault(name, []).append(found.scores[i])
        return cls.from_scores(
            {name: np.stack(own) for name, own in scores.items()},
            test_fraction=found.test_fraction,
            name=found.metric,
            notes=[left_out_note(found.n_left_out)],
            ax=ax,
        )

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        PoolingDisplay
            Itself.
        """
        self.figure_, self.ax_ = _, axis = axes(self, ax, (6.4, 1.8 + 0.45 * len(self.poolings)))
        best, half = np.asarray(self.best, dtype=float), np.asarray(self.half_intervals)
        places = np.arange(len(self.poolings))
        for place, means in zip(places, self.means, strict=True):
            dots = np.asarray(means)
            axis.scatter(dots, np.full(len(dots), place), color=QUIET, s=14, alpha=0.6, zorder=2)
        axis.scatter([], [], color=QUIET, s=14, label="a layer")
        axis.errorbar(
            best,
            places,
            xerr=None if np.isnan(half).all() else half,
            fmt="s",
            color=COLOURS[0],
            capsize=3,
            zorder=3,
            label="its best layer",
        )
        tied = np.asarray(self.tied)
        ring(axis, best[tied], places[tied], TIED)
        axis.set_yticks(places, self.poolings)
        axis.invert_yaxis()
        axis.set(xlabel=self.name)
        axis.legend(fontsize="small", loc="best")
        note(axis, *self.notes)
        return self


class _Table:
    """The best candidate of each row and layer."""

    def __init__(self, best: dict[tuple[str, Hashable], int], layers: list[Any]) -> None:
        self.best = best
        self.rows = list(dict.fromkeys(row for row, _ in best))
        self._columns = [label(layer) for layer in layers]
        self.column_labels = [layer_label(layer) for layer in layers]

    @classmethod
    def of(cls, found: Candidates, rows: Sequence[str], layers: Sequence[Any]) -> _Table:
        """Make it; candidates without a layer, those that leave the model out, have no place."""
        keys = [
            None if layer is None else (row, label(layer))
            for row, layer in zip(rows, layers, strict=True)
        ]
        distinct = {label(layer): layer for layer in layers if layer is not None}
        return cls(found.best_of(keys), sorted(distinct.values(), key=layer_order))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self._columns)

    def position(self, cell: tuple[str, Any]) -> tuple[int, int]:
        return self.rows.index(cell[0]), self._columns.index(cell[1])

    def fill(self, values: Floats) -> Floats:
        """Put what the best candidates have into place; NaN where there is none."""
        table = np.full(self.shape, np.nan)
        for cell, i in self.best.items():
            table[self.position(cell)] = values[i]
        return table

    def by_row(self, values: Floats) -> dict[str, Floats]:
        """Return the same, row by row."""
        return dict(zip(self.rows, self.fill(values), strict=True))

    def tied(self, scores: Floats) -> NDArray[np.bool_]:
        """Return which cells are as good as the best, from scores of all candidates' splits."""
        marks = np.zeros(self.shape, dtype=bool)
        near = within_one_error(scores[list(self.best.values())])
        for cell, mark in zip(self.best, near, strict=True):
            marks[self.position(cell)] = mark
        return marks


def _score_arrays(scores: Mapping[str, ArrayLike]) -> dict[str, Floats]:
    """Return arrays (n_layers, n_splits), one at least."""
    arrays = {key: np.asarray(value, dtype=np.float64) for key, value in scores.items()}
    if not arrays or any(array.ndim != 2 for array in arrays.values()):
        shapes = {key: array.shape for key, array in arrays.items()}
        raise ValueError(f"Scores must be arrays (n_layers, n_splits), got {shapes}.")
    return arrays


def _padded(values: NDArray[Any], n: int) -> Floats:
    padded = np.full(n, np.nan)
    padded[: len(values)] = values
    return padded


@dataclass(frozen=True)
class _FittedLayers:
    """What a fitted embedder goes by, by pooling."""

    layers: list[str]
    profiles: dict[str, Floats]
    name: str
    chosen: str | None = None
    half_intervals: dict[str, Floats] | None = None
    tied: dict[str, NDArray[np.bool_]] | None = None


def _fitted_layers(estimator: Any, model: str | None) -> _FittedLayers:
    """Read what an embedder inside of a fitted estimator has chosen or blended by."""
    found = [
        (name, part)
        for name, part in fitted_parts(estimator)
        if hasattr(part, "layer_scores_") or hasattr(part, "layer_weights_")
    ]
    names = [name for name, _ in found]
    if not found:
        raise ValueError(
            f"Nothing in {type(estimator).__name__} has chosen or blended layers. That does "
            f"LLMLayerEmbedder(layer='auto') or (layer='blend'), fitted."
        )
    if model is not None and model not in names:
        raise ValueError(f"model={model!r} is none of the embedders {', '.join(names)}.")
    part = found[0 if model is None else names.index(model)][1]
    blends = hasattr(part, "layer_weights_")
    values = part.layer_weights_ if blends else part.layer_scores_
    cells = {_parse(name): name for name in values}
    layers = sorted({layer for layer, _ in cells})
    poolings = list(dict.fromkeys(pooling for _, pooling in cells))

    def spread(by_name: Mapping[str, float]) -> dict[str, Floats]:
        return {
            pooling: np.array(
                [by_name.get(cells.get((layer, pooling), ""), np.nan) for layer in layers]
            )
            for pooling in poolings
        }

    labels, profiles = [str(layer) for layer in layers], spread(values)
    if blends:
        return _FittedLayers(labels, profiles, "weight")
    (column,) = part.output_indices_
    errors = {name: 1.96 * error for name, error in getattr(part, "layer_errors_", {}).items()}
    ties = dict.fromkeys(part.layer_ties_, 1.0)
    return _FittedLayers(
        labels,
        profiles,
        "score, nats per row",
        chosen=str(_parse(column)[0]),
        half_intervals=spread(errors) if errors else None,
        tied={pooling: row == 1 for pooling, row in spread(ties).items()} if errors else None,
    )


def _parse(name: str) -> tuple[int, str]:
    """Return layer and pooling of a block's name, such as "layer12_mean_no_first"."""
    layer, _, pooling = name.removeprefix("layer").partition("_")
    return int(layer), pooling
