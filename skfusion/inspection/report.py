"""`report`: one file that says what was fitted, how good it is, and how sure that is.

What there is to say is first collected as sections of plain parts, then written as HTML or
Markdown. The file needs no network and no script: pictures are inside.
"""

from __future__ import annotations

import base64
import html
import io
import os
import platform
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier
from sklearn.metrics import classification_report, confusion_matrix
from sklearn.model_selection import check_cv, cross_val_predict
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from .._tables import write_file
from .candidates import fitted_parts, half_intervals, label, read_candidates, within_one_error
from .displays.fusions import FusionHeatmapDisplay
from .displays.layers import LayerHeatmapDisplay, LayerProfileDisplay, PoolingDisplay
from .displays.subsets import SubsetDisplay, TradeoffDisplay
from .displays.weights import WeightsDisplay

_ERRORS = 10  # that are shown
_MOST_CLASSES = 25  # of a confusion matrix that is shown cell by cell
_TOP = 10  # candidates of a search
_PACKAGES = ("skfusion", "scikit-learn", "torch", "transformers", "numpy", "skorch", "optuna")
SUFFIXES = {".html": "html", ".htm": "html", ".md": "markdown"}


# --- parts of a document -----------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Rows of words; the first column names them."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A PNG, and what it shows in words."""

    png: bytes
    words: str


@dataclass(frozen=True)
class Code:
    """Lines that are shown as they are."""

    text: str


Part = str | Table | Picture | Code


@dataclass
class Section:
    """A heading and what stands under it."""

    title: str
    parts: list[Part] = field(default_factory=list)


# --- the function ------------------------------------------------------------------------------


def report(
    fitted: Any,
    path: str | os.PathLike[str],
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    cv: Any = 5,
    include_texts: bool = False,
    title: str | None = None,
) -> Path:
    """Write what was fitted and how good it is into one file.

    Parameters
    ----------
    fitted : fitted estimator
        A search, `FusionClassifier`, `FusionRegressor`, pipeline or any other estimator.
    path : path-like
        ``.html`` (one file that opens anywhere) or ``.md``. It is written whole or not at all.
    X, y : array-like or None, default=None
        The rows it was fitted on. With them the report has the confusion matrix and the most
        confident errors of cross-validated predictions, for which the estimator (of a search the
        best one) is fitted anew in each fold, and a fingerprint of the data.
    cv : int, cross-validation generator or iterable, default=5
        For these predictions.
    include_texts : bool, default=False
        Whether the texts of errors are shown. They are left out by default, as a report is
        passed on more easily than the data.
    title : str or None, default=None
        The heading; None names the estimator.

    Returns
    -------
    pathlib.Path
        Where it was written.

    Raises
    ------
    ValueError
        If the suffix is neither, or only one of X and y is given.
    sklearn.exceptions.NotFittedError
        If `fitted` is not fitted.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.feature_extraction.text import TfidfVectorizer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from skfusion import report
    >>> texts, y = ["good film", "bad film"] * 5, [1, 0] * 5
    >>> pipe = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, y)
    >>> path = report(pipe, tempfile.mkdtemp() + "/report.md", X=texts, y=y)
    >>> "Confusion matrix" in path.read_text()
    True
    """
    target = Path(path)
    kind = SUFFIXES.get(target.suffix.lower())
    if kind is None:
        raise ValueError(f"path={str(path)!r} must end in {', '.join(SUFFIXES)}.")
    if (X is None) != (y is None):
        raise ValueError("Give both X and y, the rows that it was fitted on, or neither.")
    check_is_fitted(fitted)
    heading = title or f"{type(fitted).__name__}: what was fitted"
    sections = list(_sections(fitted, X, y, cv, include_texts))
    write = _html if kind == "html" else _markdown
    write_file(target, write(heading, sections).encode("utf-8"))
    return target


def _sections(
    fitted: Any, X: Any, y: ArrayLike | None, cv: Any, include_texts: bool
) -> Iterator[Section]:
    yield _chosen(fitted)
    if hasattr(fitted, "cv_results_"):
        yield _candidates(fitted)
    pictures = _pictures(fitted)
    if pictures.parts:
        yield pictures
    if X is not None and y is not None:
        yield _predictions(fitted, X, np.asarray(y), cv, include_texts)
    worth = _worth(fitted)
    if worth.parts:
        yield worth
    yield _rebuild(fitted)
    yield _versions(X, y)


# --- what is collected -------------------------------------------------------------------------


def _chosen(fitted: Any) -> Section:
    section = Section("What was chosen")
    if hasattr(fitted, "summary"):
        section.parts.append(Code(fitted.summary()))
    if hasattr(fitted, "best_params_"):
        rows = [[name, label(value)] for name, value in fitted.best_params_.items()]
        section.parts.append(Table(["parameter", "value"], rows))
    if hasattr(fitted, "cv_results_") and hasattr(fitted, "best_index_"):
        found = read_candidates(fitted)
        if fitted.best_index_ in found.rows:
            best = found.rows.index(fitted.best_index_)
            half = float(half_intervals(found.scores[best], found.test_fraction))
            mean, n_splits = float(found.scores[best].mean()), found.scores.shape[1]
            sure = "one split says nothing of how sure that is"
            if np.isfinite(half):
                sure = f"95 % interval {mean - half:.3f} to {mean + half:.3f}"
            section.parts.append(
                f"{found.metric}: {mean:.3f} over {n_splits} splits ({sure}). It is the best of "
                f"{len(found.scores)} candidates, and a little too good for that: cross-validate "
                f"the search for an honest score."
            )
    if not section.parts:
        section.parts.append(Code(repr(fitted)))
    return section


def _candidates(fitted: Any) -> Section:
    found = read_candidates(fitted)
    means = found.scores.mean(axis=1)
    halves = half_intervals(found.scores, found.test_fraction)
    near = within_one_error(found.scores)
    names = list(dict.fromkeys(name for params in found.params for name in params))
    order = np.argsort(-means, kind="stable")[:_TOP]
    rows = [
        [
            f"{means[i]:.3f} ± {halves[i]:.3f}" if np.isfinite(halves[i]) else f"{means[i]:.3f}",
            "yes" if near[i] else "no",
            *(label(found.params[i].get(name, "")) for name in names),
        ]
        for i in order
    ]
    said = (
        f"{int(near.sum())} of {len(means)} candidates are within one standard error of the best: "
        f"these splits cannot tell them apart."
    )
    if found.n_left_out:
        said += f" {found.n_left_out} without scores in all splits are left out."
    short = [name.split("__", 1)[-1] for name in names]
    return Section(
        "Candidates", [said, Table([found.metric, "as good as the best", *short], rows)]
    )


#: Displays and how each is made; one that does not suit what was fitted says so by an error.
_DISPLAYS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("Scores along the depth", LayerProfileDisplay.from_cv_results),
    ("Layers by pooling", LayerHeatmapDisplay.from_cv_results),
    ("Poolings", PoolingDisplay.from_cv_results),
    ("Fusions against the better model alone", FusionHeatmapDisplay.from_cv_results),
    ("What each part counts", WeightsDisplay.from_estimator),
)


def _pictures(fitted: Any) -> Section:
    section = Section("Pictures")
    try:
        import matplotlib  # noqa: F401 - whether it is there
    except ImportError:
        section.parts.append('They need matplotlib: pip install "skfusion[plot]".')
        return section
    wanted = list(_DISPLAYS)
    if hasattr(fitted, "size_report_"):
        wanted += [
            ("Scores by number of models", SubsetDisplay.from_estimator),
            ("Scores over costs", TradeoffDisplay.from_estimator),
        ]
    for words, make in wanted:
        section.parts += _drawn(make, fitted, words)
    for name, part in fitted_parts(fitted):
        if hasattr(part, "layer_weights_") or hasattr(part, "layer_scores_"):
            what = "counts" if hasattr(part, "layer_weights_") else "scores"
            words = f"What each layer of {name or 'the model'} {what}"
            section.parts += _drawn(LayerHeatmapDisplay.from_estimator, part, words)
    return section


def _drawn(make: Callable[[Any], Any], fitted: Any, words: str) -> list[Part]:
    """Return the picture, or nothing where what was fitted has no such thing."""
    try:
        return [_picture(make(fitted), words)]
    except (ValueError, AttributeError, TypeError):
        return []


def _picture(display: Any, words: str) -> Picture:
    import matplotlib.pyplot as plt

    out = io.BytesIO()
    display.figure_.savefig(out, format="png", dpi=120, bbox_inches="tight")
    plt.close(display.figure_)
    return Picture(out.getvalue(), words)


def _predictions(fitted: Any, X: Any, y: NDArray[Any], cv: Any, include_texts: bool) -> Section:
    """Say what cross-validated predictions get wrong."""
    section = Section("Cross-validated predictions")
    estimator = clone(getattr(fitted, "best_estimator_", fitted))
    if hasattr(estimator, "cv") and hasattr(estimator, "summary"):
        estimator.set_params(cv=None)  # its own report would be made in each fold
    if not is_classifier(estimator):
        return _numbers(section, estimator, X, y, cv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a fold lacks
        # One fit per fold for both: what is predicted need not be the likeliest class.
        sure: NDArray[np.float64] | None = np.full(len(y), np.nan)
        predicted = np.empty_like(y)
        splits = list(check_cv(cv, y, classifier=True).split(X, y))
        if not np.array_equal(
            np.sort(np.concatenate([test for _, test in splits])), range(len(y))
        ):
            raise ValueError(f"cv={cv!r} must hold out every row once.")
        for train, test in splits:
            fold = clone(estimator).fit(_safe_indexing(X, train), y[train])
            held_out = _safe_indexing(X, test)
            predicted[test] = fold.predict(held_out)
            if hasattr(fold, "predict_proba") and sure is not None:
                sure[test] = fold.predict_proba(held_out).max(axis=1)
            else:
                sure = None
        scores = classification_report(y, predicted, output_dict=True, zero_division=0)
    classes = np.unique(y)
    section.parts.append(
        f"{len(y)} rows, accuracy {np.mean(predicted == y):.3f}, macro-F1 "
        f"{scores['macro avg']['f1-score']:.3f}."
    )
    rows = [
        [
            str(name),
            *(f"{scores[str(name)][key]:.3f}" for key in ("precision", "recall", "f1-score")),
            f"{scores[str(name)]['support']:.0f}",
        ]
        for name in classes
    ]
    section.parts.append(Table(["class", "precision", "recall", "F1", "rows"], rows))
    if len(classes) <= _MOST_CLASSES:
        counts = confusion_matrix(y, predicted, labels=classes)
        table = [[str(name), *map(str, row)] for name, row in zip(classes, counts, strict=True)]
        section.parts += [
            "Confusion matrix: a row has the true class, a column the predicted one.",
            Table(["", *map(str, classes)], table),
        ]
    wrong = np.flatnonzero(predicted != y)
    if sure is not None and len(wrong):
        section.parts += _confident_errors(X, y, predicted, sure, wrong, include_texts)
    return section


def _confident_errors(
    X: Any,
    y: NDArray[Any],
    predicted: NDArray[Any],
    sure: NDArray[np.float64],
    wrong: NDArray[np.intp],
    include_texts: bool,
) -> list[Part]:
    worst = wrong[np.argsort(-sure[wrong], kind="stable")][:_ERRORS]
    header = ["row", "true", "predicted", "probability"]
    rows = [[str(i), str(y[i]), str(predicted[i]), f"{sure[i]:.3f}"] for i in worst]
    if include_texts:
        texts = list(X)
        header.append("text")
        rows = [
            [*row, textwrap.shorten(str(texts[i]), 300, placeholder=" ...")]
            for row, i in zip(rows, worst, strict=True)
        ]
    words = f"The {len(worst)} most confident of {len(wrong)} errors; rows count from 0."
    if not include_texts:
        words += " Texts are left out (include_texts=True shows them)."
    return [words, Table(header, rows)]


def _numbers(section: Section, estimator: Any, X: Any, y: NDArray[Any], cv: Any) -> Section:
    predicted = cross_val_predict(estimator, X, y, cv=cv)
    errors = np.abs(predicted - y)
    spread = float(np.square(y - y.mean()).sum())
    r2 = 1 - float(np.square(predicted - y).sum()) / spread if spread else float("nan")
    section.parts.append(
        f"{len(y)} rows, R² {r2:.3f}, mean absolute error {errors.mean():.3g}, the largest "
        f"{errors.max():.3g}."
    )
    return section


def _worth(fitted: Any) -> Section:
    """Say what each model adds, and what it costs."""
    section = Section("Models: what they add and cost")
    weights = next(
        (
            part.model_weights_
            for _, part in fitted_parts(fitted)
            if hasattr(part, "model_weights_")
        ),
        None,
    )
    if weights:
        rows = [[name, f"{weight:.1%}"] for name, weight in weights.items()]
        section.parts.append(Table(["model", "weight"], rows))
    if hasattr(fitted, "shapley_"):
        rows = [[name, f"{value:+.3f}"] for name, value in fitted.shapley_.items()]
        section.parts.append(Table(["model", "Shapley value"], rows))
    stored = []
    for name, part in fitted_parts(fitted):
        if hasattr(part, "store_"):
            found = part.store_.info()
            size = f"{found['n_bytes'] / 1e6:.1f} MB"
            stored.append([name or type(part).__name__, f"{found['n_texts']:,}", size])
    if stored:
        section.parts.append(Table(["embedder", "stored texts", "stored"], stored))
    if hasattr(fitted, "seconds_"):
        rows = [[name, f"{value:.1f}"] for name, value in fitted.seconds_.items()]
        section.parts.append(Table(["part", "seconds"], rows))
    elif hasattr(fitted, "refit_time_"):
        section.parts.append(f"The last fit took {fitted.refit_time_:.1f} seconds.")
    return section


def _rebuild(fitted: Any) -> Section:
    best = clone(getattr(fitted, "best_estimator_", fitted))
    return Section(
        "The code that rebuilds it",
        [
            "Names come from skfusion and scikit-learn; what is not named has its default.",
            Code(repr(best)),
        ],
    )


def _versions(X: Any, y: ArrayLike | None) -> Section:
    rows = [["Python", platform.python_version()]]
    for package in _PACKAGES:
        try:
            rows.append([package, metadata.version(package)])
        except metadata.PackageNotFoundError:
            continue
    rows.append(["system", f"{platform.system()} {platform.machine()}"])
    parts: list[Part] = [Table(["", "version"], rows)]
    if X is not None:
        texts, labels = list(X), np.asarray(y)
        print_of = joblib.hash([[str(text) for text in texts], labels.astype(str).tolist()])
        parts.append(f"Data: {len(texts)} rows, fingerprint {print_of}.")
    return Section("Versions and data", parts)


# --- what is written ---------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; margin: 0 auto;
  padding: 1rem; max-width: 62rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem;
  border-bottom: 1px solid #ccc; }
.wide { overflow-x: auto; margin: 0.75rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.25rem 0.7rem 0.25rem 0; border-bottom: 1px solid #e2e2e2;
  vertical-align: top; overflow-wrap: normal; }
td.text { min-width: 16rem; overflow-wrap: anywhere; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; background: #f5f5f5; padding: 0.75rem; font-size: 0.85rem; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: 0.9rem; }
@media (max-width: 40rem) { pre { white-space: pre-wrap; } }
@media print { body { max-width: none; } pre { white-space: pre-wrap; } }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def _html(title: str, sections: Sequence[Section]) -> str:
    body = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        body.append(f"<h2>{html.escape(section.title)}</h2>")
        body += [_html_part(part) for part in section.parts]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _html_part(part: Part) -> str:
    if isinstance(part, Code):
        return f"<pre>{html.escape(part.text)}</pre>"
    if isinstance(part, Picture):
        words = html.escape(part.words)
        return (
            f'<figure><img alt="{words}" src="data:image/png;base64,{_encoded(part.png)}">'
            f"<figcaption>{words}</figcaption></figure>"
        )
    if isinstance(part, Table):
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in part.header)
        rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in part.rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f'<div class="wide">{table}</div>'
    return f"<p>{html.escape(part)}</p>"


def _cell(value: str) -> str:
    kind = "number" if _is_number(value) else "text" if len(value) > 40 else ""
    return f"<td{f' class={kind}' if kind else ''}>{html.escape(value)}</td>"


def _is_number(value: str) -> bool:
    return value.strip("+-%").replace(".", "").replace(",", "").isdigit()


def _markdown(title: str, sections: Sequence[Section]) -> str:
    lines = [f"# {_escaped(title)}"]
    for section in sections:
        lines += ["", f"## {_escaped(section.title)}"]
        for part in section.parts:
            lines += ["", *_markdown_part(part)]
    return "\n".join(lines) + "\n"


def _markdown_part(part: Part) -> list[str]:
    if isinstance(part, Code):
        return [f"    {line}" for line in part.text.splitlines()]
    if isinstance(part, Picture):
        return [f"![{_escaped(part.words)}](data:image/png;base64,{_encoded(part.png)})"]
    if isinstance(part, Table):
        rows = [part.header, ["---"] * len(part.header), *part.rows]
        return ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
    return [_escaped(part)]


def _escaped(text: str) -> str:
    """Return words that Markdown leaves as they are."""
    text = " ".join(text.split())
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return text


def _encoded(png: bytes) -> str:
    return base64.b64encode(png).decode("ascii")
