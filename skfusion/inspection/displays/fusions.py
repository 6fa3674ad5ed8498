"""Sets of models and operators: what fusing changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..candidates import (
    Candidates,
    half_intervals,
    label,
    read_candidates,
)
from ..drawing import (
    axes,
    hatch,
    heatmap,
    interval_note,
    left_out_note,
    note,
)

Floats = NDArray[np.float64]


class FusionHeatmapDisplay:
    """What fusing sets of models changes against the better single one, by operator.

    Use `from_cv_results` or `from_scores` to make one.

    Parameters
    ----------
    changes : array-like of shape (n_sets, n_operators)
        Score of the fusion minus that of the best of its models alone; NaN where not measured.
    half_intervals : array-like of shape (n_sets, n_operators)
        Half of the interval of each change; a change within it is noise, and hatched.
    sets : sequence of str
        Labels of the sets of models.
    operators : sequence of str
        Labels of the operators.
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

    References
    ----------
    Figure 3 of Gwak and Jung, "Beyond Single Representations: Multi-Model Embedding Fusion for
    Stable Text Classification", ACL 2026.

    Examples
    --------
    >>> from skfusion import FusionHeatmapDisplay
    >>> alone = {"a": [0.5, 0.6, 0.7], "b": [0.6, 0.7, 0.8]}
    >>> fused = {(("a", "b"), "concat"): [0.71, 0.8, 0.9], (("a", "b"), "sum"): [0.5, 0.7, 0.9]}
    >>> FusionHeatmapDisplay.from_scores(fused, alone).changes.round(3)
    array([[0.103, 0.   ]])
    """

    def __init__(
        self,
        changes: ArrayLike,
        half_intervals: ArrayLike,
        sets: Sequence[str],
        operators: Sequence[str],
        *,
        name: str = "score",
        notes: Sequence[str] = (),
    ) -> None:
        self.changes = changes
        self.half_intervals = half_intervals
        self.sets = sets
        self.operators = operators
        self.name = name
        self.notes = notes

    @classmethod
    def from_scores(
        cls,
        fused: Mapping[tuple[tuple[str, ...], str], ArrayLike],
        alone: Mapping[str, ArrayLike],
        *,
        test_fraction: float | None = None,
        name: str = "score",
        ax: Any = None,
    ) -> Self:
        """Draw scores of the same splits.

        Parameters
        ----------
        fused : mapping of (models, operator) to array-like of shape (n_splits,)
            Models are a tuple of names.
        alone : mapping of str to array-like of shape (n_splits,)
            Of each model alone.
        test_fraction : float or None, default=None
            The share of rows that each split tests on; None is 1 / n_splits.
        name : str, default="score"
            Name of the scores.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        FusionHeatmapDisplay
            Drawn.
        """
        missing = sorted({model for models, _ in fused for model in models} - set(alone))
        if missing or not fused:
            raise ValueError(
                f"There is no score of {', '.join(missing) or 'a fusion'}. Give those of each "
                f"model alone, and one fusion at least."
            )
        single = {key: np.asarray(scores, dtype=np.float64) for key, scores in alone.items()}
        sets = list(dict.fromkeys(models for models, _ in fused))
        operators = list(dict.fromkeys(operator for _, operator in fused))
        changes = np.full((len(sets), len(operators)), np.nan)
        halves, n_splits = changes.copy(), 0
        for (models, operator), scores in fused.items():
            best = max((single[model] for model in models), key=np.mean)
            differences = np.asarray(scores, dtype=np.float64) - best
            cell, n_splits = (sets.index(models), operators.index(operator)), len(differences)
            changes[cell] = differences.mean()
            halves[cell] = half_intervals(differences, test_fraction)
        return cls(
            changes,
            halves,
            [" + ".join(models) for models in sets],
            operators,
            name=name,
            notes=[interval_note(n_splits)],
        ).plot(ax)

    @classmethod
    def from_cv_results(
        cls,
        search: Any,
        *,
        operator: str | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw a search over operators and sets of models, of a pipeline with an `EmbedderUnion`.

        Parameters
        ----------
        search : fitted search
            Its candidates drop embedders of the union, as ``{"embed__minilm": "drop"}``, so that
            each model is tried alone too. `fusion_space` with ``subsets=True`` makes such a space.
        operator : str or None, default=None
            The parameter that is the operator, where several are called so.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        FusionHeatmapDisplay
            Drawn; of all other parameters those that are best for each cell, for fusions and for
            single models alike.
        """
        found = read_candidates(search)
        parameter = found.parameter("operator", operator)
        models = _models_of(search.estimator, found)
        operators = _operators_of(search.estimator, found, parameter)
        single = found.best_of([own[0] if len(own) == 1 else None for own in models])
        fused = found.best_of(
            [
                (own, name) if len(own) > 1 and not set(own) - set(single) else None
                for own, name in zip(models, operators, strict=True)
            ]
        )
        if not fused:
            raise ValueError(
                "The search has no fusion of models that it has tried alone too. Let candidates "
                "drop embedders: {'embed__NAME': ['drop']} with operator 'concat'."
            )
        display = cls.from_scores(
            {key: found.scores[i] for key, i in fused.items()},
            {key: found.scores[i] for key, i in single.items()},
            test_fraction=found.test_fraction,
            name=found.metric,
            ax=ax,
        )
        if found.n_left_out:
            display.notes = [*display.notes, left_out_note(found.n_left_out)]
        return display

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        FusionHeatmapDisplay
            Itself.
        """
        changes = np.asarray(self.changes, dtype=np.float64)
        n_sets, n_operators = changes.shape
        size = (max(5.0, 3 + 0.9 * n_operators), 1.8 + 0.5 * n_sets)
        self.figure_, self.ax_ = _, axis = axes(self, ax, size)
        heatmap(
            axis,
            100 * changes,
            rows=self.sets,
            columns=self.operators,
            name=f"change of {self.name}, points",
            diverging=True,
            digits=1,
        )
        with np.errstate(invalid="ignore"):
            noise = np.abs(changes) <= np.asarray(self.half_intervals)
        hatch(axis, noise)
        note(
            axis,
            "100 x (fusion - its best model alone)",
            "hatched: within noise" if noise.any() else "",
            *self.notes,
        )
        return self


def _models_of(estimator: Any, found: Candidates) -> list[tuple[str, ...]]:
    """Return the models of each candidate's `EmbedderUnion`, those that are not dropped."""
    unions = {
        name: value
        for name, value in estimator.get_params(deep=True).items()
        if hasattr(value, "embedders") and isinstance(getattr(value, "embedders", None), list)
    }
    if len(unions) != 1:
        raise ValueError(
            f"The pipeline has {len(unions)} EmbedderUnions; one is needed, whose embedders the "
            f"search drops."
        )
    ((prefix, union),) = unions.items()
    own = dict(union.embedders)
    return [
        tuple(name for name in own if not _is_dropped(params.get(f"{prefix}__{name}", own[name])))
        for params in found.params
    ]


def _is_dropped(embedder: Any) -> bool:
    return embedder is None or (isinstance(embedder, str) and embedder == "drop")


def _operators_of(estimator: Any, found: Candidates, parameter: str) -> list[str]:
    """Return the label of each candidate's operator, with its residual."""
    base, residual = (
        estimator.get_params(deep=True),
        parameter.removesuffix("operator") + "residual",
    )
    words = []
    for params in found.params:
        kind = params.get(residual, base.get(residual, False))
        name = label(params.get(parameter, base.get(parameter)))
        words.append(name if not kind else f"{name} + {kind}")
    return words
