"""Reports: what they say of what was fitted, and what they keep to themselves."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline

from skfusion import (
    EmbedderUnion,
    FusionClassifier,
    FusionTransformer,
    LLMLayerEmbedder,
    ModelSubsetSearchCV,
    report,
)
from skfusion.inspection.report import Table, _html, _markdown, _sections

WORDS = ["good", "fine", "great", "bad", "poor", "weak"]
TEXTS = [f"{word} {thing}" for thing in ("film", "plot", "scene", "cast", "end") for word in WORDS]
LABELS = np.array(["<b>yes</b>" if i % 6 < 3 else "no|never" for i in range(30)])


@pytest.fixture(autouse=True)
def no_window() -> None:
    matplotlib.use("agg")


class Reader(html.parser.HTMLParser):
    """Tags, what they point to, and the words of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def pipe() -> Any:
    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def search(folder: Callable[..., str]) -> GridSearchCV:
    pipe = make_pipeline(LLMLayerEmbedder(folder("bert")), LogisticRegression())
    grid = {
        "llmlayerembedder__layer": [0, 1, -1],
        "llmlayerembedder__pooling": ["mean", "last"],
    }
    return GridSearchCV(pipe, grid, cv=3, scoring="f1_macro").fit(TEXTS, LABELS)


def parts_of(fitted: Any, title: str, **settings: Any) -> list[Any]:
    settings = {"X": None, "y": None, "cv": 3, "include_texts": False, **settings}
    (section,) = (one for one in _sections(fitted, **settings) if one.title == title)
    return section.parts


def test_a_page_needs_nothing_from_elsewhere(search: GridSearchCV, tmp_path: Path) -> None:
    path = report(search, tmp_path / "report.html", X=TEXTS, y=LABELS, cv=3)
    page = path.read_text(encoding="utf-8")
    found = Reader(page)
    assert not {"script", "link", "iframe", "b"} & set(found.tags)
    assert found.links
    assert all(link.startswith("data:image/png;base64,") for link in found.links)
    assert "default-src 'none'" in page
    assert "<b>yes</b>" in found.words  # shown, and no tag
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_a_search_is_reported_with_what_splits_cannot_tell(search: GridSearchCV) -> None:
    chosen = parts_of(search, "What was chosen")
    assert any(f"{search.best_score_:.3f}" in part for part in chosen if isinstance(part, str))
    said, table = parts_of(search, "Candidates")
    assert "of 6 candidates are within one standard error" in said
    assert len(table.rows) == 6
    assert table.rows[0][0].startswith(f"{search.best_score_:.3f}")
    pictures = [part.words for part in parts_of(search, "Pictures")]
    assert pictures == ["Scores along the depth", "Layers by pooling", "Poolings"]


def test_errors_are_those_of_cross_validation_and_texts_are_left_out(
    pipe: Any, tmp_path: Path
) -> None:
    cv = StratifiedKFold(3, shuffle=True, random_state=0)
    y = LABELS.copy()
    y[[0, 10, 20]] = y[[5, 15, 25]]  # labels that words do not bear out
    pipe.fit(TEXTS, y)
    predicted = cross_val_predict(pipe, TEXTS, y, cv=cv)
    parts = parts_of(pipe, "Cross-validated predictions", X=TEXTS, y=y, cv=cv)
    assert f"accuracy {np.mean(predicted == y):.3f}" in parts[0]
    matrix = parts[3]
    assert isinstance(matrix, Table)
    assert sum(int(cell) for row in matrix.rows for cell in row[1:]) == 30
    wrong = np.flatnonzero(predicted != y)
    assert {int(row[0]) for row in parts[5].rows} <= set(wrong.tolist())
    for show in (False, True):
        path = report(pipe, tmp_path / "report.html", X=TEXTS, y=y, cv=cv, include_texts=show)
        shown = any(f">{TEXTS[i]}<" in path.read_text() for i in wrong)
        assert shown == show


def test_markdown_keeps_tables_and_marks(pipe: Any, tmp_path: Path) -> None:
    text = report(pipe, tmp_path / "report.md", X=TEXTS, y=LABELS, cv=3).read_text()
    assert text.startswith("# Pipeline: what was fitted\n")
    header = next(line for line in text.splitlines() if line.startswith("| class |"))
    assert len(re.findall(r"(?<!\\\\)\|", header)) == 6
    assert "no\\|never" in text
    assert "\\<b\\>yes" in text


def test_a_recipe_is_reported_with_its_summary_and_layers(folder: Callable[..., str]) -> None:
    clf = FusionClassifier([("tiny", folder("bert"))], cv=None, time_budget=0, random_state=0).fit(
        TEXTS, LABELS
    )
    assert parts_of(clf, "What was chosen")[0].text == clf.summary()
    words = [part.words for part in parts_of(clf, "Pictures")]
    assert words == ["What each part counts", "What each layer of tiny counts"]
    weights, stored, seconds = parts_of(clf, "Models: what they add and cost")
    assert [row[0] for row in weights.rows] == list(clf.model_weights_)
    assert stored.rows[0][:2] == ["tiny", "30"]
    assert seconds.header[1] == "seconds"


def test_sets_of_models_are_reported() -> None:
    union = EmbedderUnion(
        [("words", TfidfVectorizer()), ("letters", TfidfVectorizer(analyzer="char"))]
    )
    pipe = make_pipeline(union, FusionTransformer("concat"), LogisticRegression())
    found = ModelSubsetSearchCV(pipe, cv=3).fit(TEXTS, LABELS)
    words = [part.words for part in parts_of(found, "Pictures")]
    assert words == ["Scores by number of models", "Scores over costs"]
    worth = parts_of(found, "Models: what they add and cost")
    assert [row[0] for row in worth[0].rows] == ["words", "letters"]


def test_numbers_have_errors_instead_of_a_matrix(tmp_path: Path) -> None:
    y = np.array([float(len(text)) for text in TEXTS])
    pipe = make_pipeline(TfidfVectorizer(), Ridge()).fit(TEXTS, y)
    (said,) = parts_of(pipe, "Cross-validated predictions", X=TEXTS, y=y)
    expected = np.abs(cross_val_predict(pipe, TEXTS, y, cv=3) - y)
    assert f"mean absolute error {expected.mean():.3g}" in said


def test_the_code_makes_the_same_estimator(pipe: Any) -> None:
    code = parts_of(pipe, "The code that rebuilds it")[1].text
    made = eval(  # the report's own words
        code,
        {
            "Pipeline": type(pipe),
            "TfidfVectorizer": TfidfVectorizer,
            "LogisticRegression": LogisticRegression,
        },
    )
    assert repr(made) == code


def test_the_same_data_has_the_same_fingerprint(pipe: Any) -> None:
    prints = [
        parts_of(pipe, "Versions and data", X=texts, y=LABELS)[1]
        for texts in (TEXTS, np.array(TEXTS, dtype=object), TEXTS[::-1])
    ]
    assert prints[0] == prints[1] != prints[2]


def test_what_is_wrong_is_said_before_anything_is_written(pipe: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.html"):
        report(pipe, tmp_path / "report.pdf")
    with pytest.raises(ValueError, match="both X and y"):
        report(pipe, tmp_path / "report.html", X=TEXTS)
    with pytest.raises(NotFittedError):
        report(LogisticRegression(), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_rest_is_there(
    search: GridSearchCV, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    (said,) = parts_of(search, "Pictures")
    assert "skfusion[plot]" in said


def test_words_are_escaped() -> None:
    sections = list(_sections_of("a <i>&</i> `b` | c"))
    assert "<i>" not in _html("t", sections)
    assert "&lt;i&gt;&amp;" in _html("t", sections)
    assert r"\`b\` \| c" in _markdown("t", sections)


def _sections_of(words: str) -> list[Any]:
    from skfusion.inspection.report import Section

    return [Section(words, [words, Table([words], [[words]])])]


@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_it_without_overflow(
    width: int, search: GridSearchCV, tmp_path: Path
) -> None:
    """In headless Chromium, where there is one."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("There is no Chromium on this machine.")
    report(search, tmp_path / "report.html", X=TEXTS, y=LABELS, cv=3)
    # The page has no script, so that another one looks at it in a frame.
    outer = tmp_path / "outer.html"
    outer.write_text(
        f"""<body style="margin:0"><iframe id="f" src="report.html" width="{width}" height="900"
        style="border:0"></iframe><pre id="out"></pre><script>
        document.getElementById("f").onload = () => {{
          const page = document.getElementById("f").contentDocument.documentElement;
          const images = [...page.querySelectorAll("img")];
          document.getElementById("out").textContent = "RESULT " + page.scrollWidth + " "
            + images.filter(i => i.complete && i.naturalWidth > 0).length + " " + images.length;
        }};</script></body>"""
    )
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            outer.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    result = re.search(r"RESULT (\d+) (\d+) (\d+)", done.stdout)
    assert result, done.stderr[-2000:]
    shown, loaded, images = map(int, result.groups())
    assert shown <= width
    assert loaded == images > 0
    assert "CONSOLE" not in done.stderr
