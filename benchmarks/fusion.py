"""Measure whether fusing models holds what the better one of them reaches.

On five data sets (a sample of at most 400 rows of each) every operator of `FusionTransformer` is
scored by macro-F1 over 5 times 2-fold cross-validation, beside each model alone. Each model gives
the layer that 3-fold cross-validation inside the training half chooses, so that no test row
chooses anything. All heads are `LogisticRegression(C=0.01)` on what `FusionTransformer` gives (for
one model its standardised vectors).

The claim: the concatenation is at least the better single model - 0.005 on every data set.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _common import (
    finish,
    machine_line,
    model_path,
    parse_arguments,
    print_table,
    read_sample,
    silence,
)
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import RepeatedStratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small_models import target_folder

from skfusion import (
    PAPER_OPERATORS,
    EmbeddingBlocks,
    FusionTransformer,
    LLMLayerEmbedder,
    ProjectionWarning,
)

DATA_SETS = [
    "rotten_tomatoes",
    "r8",
    "legalbench_function_of_decision_section",
    "legalbench_definition_classification",
    "legalbench_overruling",
]
OPERATORS: list[dict[str, Any]] = [
    *PAPER_OPERATORS,
    {"operator": "sum", "residual": "add"},
    {"operator": "mean"},
    {"operator": "bilinear"},
    {"operator": "weighted"},
    {"operator": "bilinear", "residual": "concat"},
    *(
        {"operator": operator, "projection": "supervised"}
        for operator in ("sum", "quaternion", "multiplication", "hadamard")
    ),
]
#: The layers of each model from which its own is chosen, and the pooling.
MODELS: dict[str, tuple[list[int], str]] = {
    "minilm-l6": ([0, 1, 2, 3, 4, 5, 6], "mean"),
    "smollm2-135m": ([5, 10, 15, 20, 25, 30], "mean_no_first"),
    "mpnet": ([4, 6, 8, 10, 12], "mean"),
}


@dataclass
class Vectors:
    """A data set as every model sees it: layer → vectors, by model."""

    labels: NDArray[Any]
    layers: dict[str, dict[int, NDArray[np.float32]]]


def fetched_models() -> list[str]:
    """Name the two small models, and mpnet where it has been fetched before."""
    return [name for name in MODELS if name != "mpnet" or target_folder(name).exists()]


def embed(
    name: str, n_rows: int, models: list[str], memory: Path, max_length: int = 256
) -> Vectors:
    """Take a sample without classes that are too rare to be split, and embed it."""
    rows = read_sample(name, n_rows)
    rows = rows[rows.groupby("label")["label"].transform("size") >= 8]
    layers: dict[str, dict[int, NDArray[np.float32]]] = {}
    for model in models:
        wanted, pooling = MODELS[model]
        embedder = LLMLayerEmbedder(
            model_path(model), layer=wanted, pooling=pooling, max_length=max_length, memory=memory
        )
        X = embedder.fit_transform(rows["text"])
        cuts = embedder.output_indices_.values()
        layers[model] = {k: X[:, cut] for k, cut in zip(wanted, cuts, strict=True)}
    return Vectors(rows["label"].to_numpy(), layers)


def classifier() -> LogisticRegression:
    return LogisticRegression(C=0.01, max_iter=300)


def best_layer(layers: dict[int, NDArray[Any]], train: NDArray[Any], y: NDArray[Any]) -> int:
    """Choose a layer on training rows alone."""
    scores = {k: _inner_score(X[train], y[train]) for k, X in layers.items()}
    return max(scores, key=scores.__getitem__)


def _inner_score(X: NDArray[Any], y: NDArray[Any]) -> float:
    pipe = make_pipeline(StandardScaler(), classifier())
    return float(cross_val_score(pipe, X, y, cv=3, scoring="f1_macro").mean())


def label_of(setting: dict[str, Any]) -> str:
    """Name a setting of `FusionTransformer` for the table."""
    residual = f" + {setting['residual']}" if setting.get("residual") else ""
    projection = f" ({setting['projection']})" if "projection" in setting else ""
    return f"{setting['operator']}{residual}{projection}"


def candidates(
    models: list[str], settings: list[dict[str, Any]]
) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """Name every row of the table, with the models that it uses."""
    for model in models:
        yield model, [model], {}
    for setting in settings:
        yield label_of(setting), models[:2], setting
    if len(models) > 2:
        yield "concat of three", models, {"operator": "concat"}


def evaluate(
    vectors: Vectors, repeats: int, settings: list[dict[str, Any]], n_jobs: int | None = None
) -> dict[str, float]:
    """Return the mean macro-F1 of every candidate, and of guessing by class frequency."""
    y, models = vectors.labels, list(vectors.layers)
    folds = RepeatedStratifiedKFold(n_splits=2, n_repeats=repeats, random_state=0)
    scores: dict[str, list[float]] = {}
    rng = np.random.default_rng(0)
    for train, test in folds.split(y, y):
        chosen = {m: X[best_layer(X, train, y)] for m, X in vectors.layers.items()}
        labels, used, wanted = zip(*candidates(models, settings), strict=True)
        made = Parallel(n_jobs=n_jobs)(
            delayed(_score)({m: chosen[m] for m in names}, y, train, test, setting)
            for names, setting in zip(used, wanted, strict=True)
        )
        for label, score in zip(labels, made, strict=True):
            scores.setdefault(label, []).append(score)
        guess = rng.choice(y[train], size=len(test))
        scores.setdefault("chance", []).append(f1_score(y[test], guess, average="macro"))
    return {label: float(np.mean(values)) for label, values in scores.items()}


def _score(
    blocks: dict[str, NDArray[Any]],
    y: NDArray[Any],
    train: NDArray[Any],
    test: NDArray[Any],
    setting: dict[str, Any],
) -> float:
    X = EmbeddingBlocks(blocks)
    pipe = make_pipeline(FusionTransformer(**setting, random_state=0), classifier())
    predicted = pipe.fit(X[train], y[train]).predict(X[test])
    return float(f1_score(y[test], predicted, average="macro"))


def concat_minus_best_single(scores: dict[str, float]) -> float:
    """How far the concatenation of the two models is above the better one of them."""
    return scores["concat"] - max(scores["minilm-l6"], scores["smollm2-135m"])


def main() -> None:
    """Print the table and write the figures."""
    args = parse_arguments(str(__doc__), lambda parser: None)
    print(machine_line())
    silence()
    with tempfile.TemporaryDirectory() as memory:
        n_rows, repeats = (150, 1) if args.quick else (400, 5)
        names = DATA_SETS[2:4] if args.quick else DATA_SETS
        models = fetched_models()
        scores = {}
        for name in names:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ProjectionWarning)  # widths that the folds cut
                vectors = embed(name, n_rows, models, Path(memory))
                scores[name] = evaluate(vectors, repeats, OPERATORS)
    rows: list[list[str]] = [
        [label, *(f"{scores[name][label]:.3f}" for name in names)]
        for label in next(iter(scores.values()))
    ]
    differences = {name: concat_minus_best_single(scores[name]) for name in names}
    rows.append(["concat - best single", *(f"{differences[name]:+.3f}" for name in names)])
    header = ["operator", *(name.replace("legalbench_", "lb_") for name in names)]
    print_table(f"macro-F1, {repeats} x 2-fold cross-validation", header, rows)
    figures = {f"concat_minus_best_single_{name}": value for name, value in differences.items()}
    worst = min(differences.values())
    finish({"concat_minus_best_single_worst": worst, **figures}, args.json)


if __name__ == "__main__":
    main()
