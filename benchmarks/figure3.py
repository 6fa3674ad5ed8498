"""Run the protocol of the paper's Figure 3: every operator for one pair of models, by layer.

Gwak and Jung (ACL 2026) train projections, operator and head together (`solver="paper"`: the head
1024-256, Adam with lr 1e-4, 120 epochs) and compare nine operators with both models alone at the
same layers. So does this script, over several splits of the rows into training and test: the data
set's own and others of the same sizes, stratified, each with a random seed of its own. Scores are
means and standard deviations over the splits. Layers are given as depths; both models are read at
the same depth, or with --cross at every pair of depths.

The authors' code takes the best epoch and the best layer on the test rows. Here nothing is chosen
on them: all epochs are run, and all layers shown. The figures are means over layers and splits;
the best and the worst operator and model among them are the bounds of what a user may get.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _common import (
    KEPT,
    finish,
    machine_line,
    model_path,
    parse_arguments,
    print_table,
    read_split,
    silence,
    threads,
)
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import StratifiedShuffleSplit

from skfusion import (
    PAPER_OPERATORS,
    EmbeddingBlocks,
    FusionMLPClassifier,
    LLMLayerEmbedder,
    VectorStore,
)

MEASURES = ["accuracy", "macro-F1"]
QUICK_OPERATORS = [PAPER_OPERATORS[0], PAPER_OPERATORS[1], PAPER_OPERATORS[7]]
Split = tuple[NDArray[np.intp], NDArray[np.intp]]
#: By layers, then by operator or model: scores of shape (splits, measures).
Scores = dict[str, dict[str, NDArray[np.float64]]]


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", default="legalbench_canada_tax_court_outcomes", help="data set")
    add("--models", nargs=2, default=["minilm-l6", "smollm2-135m"], metavar="NAME")
    add("--depths", nargs="+", type=float, default=[1 / 3, 2 / 3, 1.0], help="0 < depth <= 1")
    add("--cross", action="store_true", help="every depth of one with every depth of the other")
    add("--pooling", default="mean", help="of both models")
    add("--splits", type=int, default=3, help="how many splits, the data set's own among them")
    add("--threads", type=int, default=1, help="of torch")
    add("--out", type=Path, metavar="PNG", help="draw the scores here")


def draw_splits(own: list[pd.DataFrame], n_splits: int) -> list[Split]:
    """Return training and test rows: the data set's own, then others of the same sizes."""
    n_train, n_test = map(len, own)
    labels = pd.concat(own)["label"]
    more = StratifiedShuffleSplit(
        max(1, n_splits - 1), train_size=n_train, test_size=n_test, random_state=0
    )
    given = (np.arange(n_train), np.arange(n_train, n_train + n_test))
    return [given, *more.split(labels, labels)][:n_splits]


def embed(
    model: str, texts: pd.Series, depths: list[float], pooling: str
) -> dict[int, NDArray[np.float32]]:
    """Return a model's vectors by layer, all of one pass that the user's cache folder keeps."""
    embedder = LLMLayerEmbedder(
        model_path(model),
        layer=depths,
        pooling=pooling,
        memory=VectorStore(KEPT, layers="requested"),
    )
    vectors = embedder.fit_transform(texts)
    cuts = embedder.output_indices_.values()
    return {k: vectors[:, cut] for k, cut in zip(embedder.layers_, cuts, strict=True)}


def score(
    X: EmbeddingBlocks, y: NDArray[Any], settings: list[dict[str, Any]], splits: list[Split]
) -> list[NDArray[np.float64]]:
    """Train each setting on each split; give test scores of shape (splits, measures)."""
    scores = np.empty((len(settings), len(splits), len(MEASURES)))
    for j, (train, test) in enumerate(splits):
        heads = [FusionMLPClassifier(**s, solver="paper", random_state=j) for s in settings]
        for i, head in enumerate(heads):
            predicted = head.fit(X[train], y[train]).predict(X[test])
            f1 = f1_score(y[test], predicted, average="macro", zero_division=0)
            scores[i, j] = accuracy_score(y[test], predicted), f1
    return list(scores)


def run(
    args: argparse.Namespace, settings: list[dict[str, Any]]
) -> tuple[Scores, dict[str, list[str]]]:
    """Return all scores, and the names of what was compared: operators and models alone."""
    own = [read_split(args.data, part).drop_duplicates("text") for part in ("train", "test")]
    rows, splits = pd.concat(own, ignore_index=True), draw_splits(own, args.splits)
    y = rows["label"].to_numpy()
    vectors = [embed(model, rows["text"], args.depths, args.pooling) for model in args.models]
    alone = {
        (i, layer): score(EmbeddingBlocks({"model": E}), y, [{}], splits)[0]
        for i, by_layer in enumerate(vectors)
        for layer, E in by_layer.items()
    }
    pairs = itertools.product(*vectors) if args.cross else zip(*vectors, strict=True)
    operators = [s["operator"] + (" (R)" if s["residual"] else "") for s in settings]
    models = [f"{model} alone" for model in args.models]
    found: Scores = {}
    for pair in pairs:
        start = time.perf_counter()
        X = EmbeddingBlocks({str(i): vectors[i][layer] for i, layer in enumerate(pair)})
        layers = " + ".join(map(str, pair))
        found[layers] = dict(zip(operators, score(X, y, settings, splits), strict=True))
        found[layers] |= {models[i]: alone[i, layer] for i, layer in enumerate(pair)}
        print(f"layers {layers}: {time.perf_counter() - start:.0f} s", flush=True)
    return found, {"operators": operators, "models": models}


def draw(found: Scores, title: str) -> Figure:
    """Draw mean and standard deviation over the splits by layers, one panel a measure."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, len(MEASURES))
    names = list(next(iter(found.values())))
    for i, (measure, axis) in enumerate(zip(MEASURES, axes, strict=True)):
        for j, name in enumerate(names):
            scores = np.array([by_name[name][:, i] for by_name in found.values()])
            axis.errorbar(
                np.arange(len(found)) + 0.04 * (j - len(names) / 2),  # so that bars stay apart
                scores.mean(axis=1),
                yerr=scores.std(axis=1),
                marker="o",
                capsize=2,
                linestyle="--" if name.endswith("alone") else "-",
                color=f"C{j}" if j < 10 else "black",
                label=name,
            )
        axis.set_xticks(range(len(found)), list(found))
        axis.set_xlim(-0.5, len(found) - 0.5)
        axis.set(xlabel="layers of the two models", ylabel=f"{measure} on the test rows")
        axis.grid(axis="y", alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(title)
    return figure


def summarise(found: Scores, operators: list[str], models: list[str]) -> dict[str, float]:
    """Return means over layers and splits, and how steady operators and models alone are."""
    means = {
        name: np.array([by_name[name].mean(axis=0) for by_name in found.values()])
        for name in [*operators, *models]
    }  # each of shape (layers, measures)
    figures = {}
    for i, measure in enumerate(["accuracy", "macro_f1"]):
        overall = {name: float(mean[:, i].mean()) for name, mean in means.items()}
        figures[f"concat_{measure}"] = overall["concat"]
        figures[f"best_operator_{measure}"] = max(overall[name] for name in operators)
        figures[f"worst_operator_{measure}"] = min(overall[name] for name in operators)
        figures[f"best_single_{measure}"] = max(overall[name] for name in models)
        figures[f"worst_single_{measure}"] = min(overall[name] for name in models)
        for kind, names in (("operators", operators), ("singles", models)):
            spread = np.mean([means[name][:, i].std() for name in names])
            figures[f"std_over_layers_{kind}_{measure}"] = float(spread)
        better_single = np.max([means[name][:, i] for name in models], axis=0)
        harmed = [means[name][:, i] < better_single for name in operators]
        figures[f"share_below_better_single_{measure}"] = float(np.mean(harmed))
    return figures


def main() -> None:
    """Print the tables, draw the picture and write the figures."""
    args = parse_arguments(str(__doc__), add_options)
    print(machine_line())
    silence()
    settings = list(PAPER_OPERATORS)
    if args.quick:
        args.depths, args.splits, settings = args.depths[:1], 1, QUICK_OPERATORS
    with threads(args.threads):
        found, names = run(args, settings)
    title = f"{args.data}: {' + '.join(args.models)}, splits: {args.splits}"
    for i, measure in enumerate(MEASURES):
        rows = []
        for name in [*names["operators"], *names["models"]]:
            scores = [by_name[name][:, i] for by_name in found.values()]
            rows.append([name, *(f"{s.mean():.3f} ± {s.std():.3f}" for s in scores)])
        print_table(f"{title}: {measure}", ["layers", *found], rows)
    if args.out is not None:
        draw(found, title).savefig(args.out, dpi=150)
        print(f"\npicture: {args.out.resolve()}")
    finish(summarise(found, **names), args.json)


if __name__ == "__main__":
    main()
