"""Several methods on several data sets: their mean ranks, and which of them differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import stats
from sklearn.utils._optional_dependencies import check_pandas_support

from ..drawing import axes, note

if TYPE_CHECKING:
    import pandas as pd


class CriticalDifferenceDisplay:
    """Mean ranks of methods over data sets; a bar joins those that cannot be told apart.

    Use `from_scores` to make one. It needs ``pip install "skfusion[stats]"``.

    Parameters
    ----------
    ranks : mapping of str to float
        Mean rank of each method, 1 is the best.
    p_values : pandas.DataFrame of shape (n_methods, n_methods)
        Of each pair of methods, corrected for their number.
    friedman_p_value : float
        Of "all methods are equal".
    level : float, default=0.05
        Methods with a p-value above it are joined.
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
    compare_all : Several candidates on the splits of one data set.

    References
    ----------
    Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", Journal of Machine
    Learning Research 7 (2006); Benavoli, Corani and Mangili, "Should We Really Use Post-Hoc Tests
    Based on Mean-Ranks?", ibid. 17 (2016), which is why pairs are tested by themselves.

    Examples
    --------
    >>> from skfusion import CriticalDifferenceDisplay
    >>> scores = {"a": [0.6, 0.7, 0.5, 0.8], "b": [0.7, 0.8, 0.6, 0.9], "c": [0.5, 0.6, 0.7, 0.7]}
    >>> CriticalDifferenceDisplay.from_scores(scores).ranks
    {'b': 1.25, 'a': 2.25, 'c': 2.5}
    """

    def __init__(
        self,
        ranks: Mapping[str, float],
        p_values: pd.DataFrame,
        friedman_p_value: float,
        *,
        level: float = 0.05,
        notes: Sequence[str] = (),
    ) -> None:
        self.ranks = ranks
        self.p_values = p_values
        self.friedman_p_value = friedman_p_value
        self.level = level
        self.notes = notes

    @classmethod
    def from_scores(cls, scores: Any, *, level: float = 0.05, ax: Any = None) -> Self:
        """Rank methods by their scores on several data sets.

        Pairs are tested by Wilcoxon's signed-rank test with Holm's correction. With few data sets
        it can tell nothing: with five no p-value is below 0.06, whatever the scores.

        Parameters
        ----------
        scores : pandas.DataFrame or mapping of str to array-like of shape (n_data_sets,)
            One column per method, one row per data set; higher is better.
        level : float, default=0.05
            The level of the test.
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        CriticalDifferenceDisplay
            Drawn.

        Raises
        ------
        ValueError
            If there are fewer than three methods or two data sets, or a score is not finite.
        ImportError
            If scikit-posthocs is missing.
        """
        table = check_pandas_support("CriticalDifferenceDisplay").DataFrame(scores)
        n_sets, n_methods = table.shape
        if n_methods < 3 or n_sets < 2 or not np.isfinite(table.to_numpy(dtype=float)).all():
            raise ValueError(
                f"Finite scores of three methods on two data sets at least are needed, got "
                f"{n_methods} methods and {n_sets} data sets. `compare` takes two."
            )
        ranks = table.rank(axis=1, ascending=False).mean().sort_values()
        return cls(
            {str(name): float(rank) for name, rank in ranks.items()},
            _posthocs().posthoc_wilcoxon(
                table.melt(), val_col="value", group_col="variable", p_adjust="holm"
            ),
            float(stats.friedmanchisquare(*table.to_numpy().T).pvalue),
            level=level,
            notes=[f"{n_sets} data sets; joined: no difference at {level:g} (Wilcoxon, Holm)"],
        ).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        CriticalDifferenceDisplay
            Itself.
        """
        size = (6.4, 1.4 + 0.25 * len(self.ranks))
        self.figure_, self.ax_ = _, axis = axes(self, ax, size)
        _posthocs().critical_difference_diagram(
            dict(self.ranks), self.p_values, ax=axis, alpha=self.level
        )
        axis.set_title(f"mean rank, 1 is the best (Friedman p = {self.friedman_p_value:.2g})")
        note(axis, *self.notes)
        return self


def _posthocs() -> Any:
    """Return the library that knows these tests."""
    try:
        import scikit_posthocs
    except ImportError as error:
        raise ImportError(
            'scikit-posthocs is missing. Install it with pip install "skfusion[stats]".'
        ) from error
    return scikit_posthocs
