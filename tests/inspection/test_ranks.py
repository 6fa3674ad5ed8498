"""Ranks of methods over data sets."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from skfusion import CriticalDifferenceDisplay
from skfusion.inspection.compare import holm


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    matplotlib.use("agg")
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture
def scores(rng: np.random.Generator) -> pd.DataFrame:
    """Ten data sets; "bad" is always worst, the others differ by chance."""
    base = rng.normal(0.7, 0.1, size=10)
    return pd.DataFrame(
        {
            "good": base + rng.normal(0, 0.01, size=10),
            "same": base + rng.normal(0, 0.01, size=10),
            "bad": base - 0.1 - rng.uniform(0, 0.01, size=10),
        }
    )


def test_p_values_are_those_of_wilcoxon_and_holm(scores: pd.DataFrame) -> None:
    display = CriticalDifferenceDisplay.from_scores(scores)
    pairs = [("good", "same"), ("good", "bad"), ("same", "bad")]
    expected = holm([stats.wilcoxon(scores[a], scores[b]).pvalue for a, b in pairs])
    found = [display.p_values.loc[a, b] for a, b in pairs]
    assert found == pytest.approx(expected.tolist())
    assert display.friedman_p_value == pytest.approx(
        stats.friedmanchisquare(*scores.to_numpy().T).pvalue
    )
    assert display.ranks["bad"] == 3
    assert sum(display.ranks.values()) == pytest.approx(6)


def test_the_diagram_names_all_methods(scores: pd.DataFrame) -> None:
    from matplotlib.text import Text

    display = CriticalDifferenceDisplay.from_scores({k: v.tolist() for k, v in scores.items()})
    words = " ".join(text.get_text() for text in display.figure_.findobj(Text))
    assert all(name in words for name in scores)
    assert "10 data sets" in words
    assert display.plot().ax_.figure is display.figure_


@pytest.mark.parametrize(
    "table",
    [{"a": [0.1, 0.2], "b": [0.2, 0.1]}, {"a": [0.1], "b": [0.2], "c": [0.3]}],
)
def test_too_few_are_refused(table: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="three methods on two data sets"):
        CriticalDifferenceDisplay.from_scores(table)


def test_a_missing_library_is_named(scores: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scikit_posthocs", None)
    with pytest.raises(ImportError, match=r"skfusion\[stats\]"):
        CriticalDifferenceDisplay.from_scores(scores)
