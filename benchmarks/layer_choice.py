"""Measure what choosing a layer without training a head costs, in score and in time.

Of six data sets at most 1,000 training and 500 test rows are embedded by every fetched model, all
layers. For training sizes of 50, 200 and 1,000 rows (as many as there are) and five draws of them,
a logistic regression is trained on every layer. The regret of a way to choose a layer is the best
layer's macro-F1 on the test rows, which no way can know, minus that of the layer it chose from
the training rows alone. Part of that lead is luck, since the test rows are few: the steady regret
is to the one layer that is best on average over the draws.

Seconds are those of scoring all layers against cross-validating the library's own head,
`FusionMLPClassifier`, on every layer (from one fit, since all would take hours), and against
5-fold cross-validation of the logistic regression.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
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
    read_split,
    silence,
)
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small_models import target_folder

from skfusion import LLMLayerEmbedder
from skfusion.neural.classifier import FusionMLPClassifier
from skfusion.selection.layer_scores import layer_scores

DATA_SETS = [
    "rotten_tomatoes",
    "sst2",
    "r8",
    "legalbench_function_of_decision_section",
    "legalbench_definition_classification",
    "legalbench_overruling",
]
#: The pooling of each model.
MODELS = {
    "minilm-l6": "mean",
    "smollm2-135m": "mean_no_first",
    "gemma3-270m": "mean_no_first",
    "mpnet": "mean",
}
SMALL = list(MODELS)[:2]
N_FOLDS = 5
DEPTH = 0.6

Layers = NDArray[np.float32]  # (n_layers, n_rows, width)


@dataclass
class Vectors:
    """A data set as one model sees it."""

    train: Layers
    labels: NDArray[Any]
    test: Layers
    test_labels: NDArray[Any]


@dataclass(frozen=True)
class Plan:
    """What is run."""

    data_sets: list[str]
    models: list[str]
    sizes: list[int]
    n_draws: int
    n_test: int


def make_plan(quick: bool) -> Plan:
    """Choose a size; the larger models take part where they have been fetched before."""
    if quick:
        return Plan(DATA_SETS[:1], SMALL, [50, 150], 2, 150)
    models = [name for name in MODELS if name in SMALL or target_folder(name).exists()]
    return Plan(DATA_SETS, models, [50, 200, 1000], 5, 500)


def embed(data_set: str, model: str, plan: Plan, memory: Path) -> Vectors:
    """Embed a sample of both splits."""
    parts = []
    for split, n_rows in (("train", max(plan.sizes)), ("test", plan.n_test)):
        rows = read_split(data_set, split).drop_duplicates("text")
        rows = rows.sample(min(n_rows, len(rows)), random_state=0)
        embedder = LLMLayerEmbedder(
            model_path(model),
            pooling=MODELS[model],
            max_length=256,
            memory=memory,
            store_poolings="requested",
        )
        embedder.fit(rows["text"])
        embedder.set_params(layer=list(range(embedder.n_layers_ + 1)))
        blocks = embedder.fit_transform(rows["text"]).reshape(len(rows), -1, embedder.hidden_size_)
        parts += [np.ascontiguousarray(blocks.swapaxes(0, 1)), rows["label"].to_numpy()]
    return Vectors(*parts)


def head() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))


def test_score(X: Layers, y: NDArray[Any], X_test: Layers, y_test: NDArray[Any]) -> float:
    predicted = head().fit(X, y).predict(X_test)
    return float(f1_score(y_test, predicted, average="macro"))


# --- ways to choose --------------------------------------------------------------------------


def by_ridge(X: Layers, y: NDArray[Any]) -> int:
    """Choose as ``layer="auto"`` does."""
    found = layer_scores(X, y)
    return found.names.index(found.shallowest(range(len(X))))


def by_best(criterion: str) -> Callable[[Layers, NDArray[Any]], int]:
    """Choose the layer with the highest score."""
    return lambda X, y: int(np.argmax(layer_scores(X, y, criterion=criterion).scores))


def by_cross_validation(X: Layers, y: NDArray[Any]) -> int:
    """Choose by the head's own predictions of rows left out."""
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0)
    scores = [f1_score(y, cross_val_predict(head(), x, y, cv=folds), average="macro") for x in X]
    return int(np.argmax(scores))


WAYS: dict[str, Callable[[Layers, NDArray[Any]], int]] = {
    "auto": by_ridge,
    "ridge, best": by_best("ridge"),
    "logme": by_best("logme"),
    "h_score": by_best("h_score"),
    "variability": by_best("variability"),
    "effective_rank": by_best("effective_rank"),
    "cross-validation": by_cross_validation,
    "last": lambda X, y: len(X) - 1,
    "60 % depth": lambda X, y: round(DEPTH * (len(X) - 1)),
}


def layer_mean(train: Layers, test: Layers) -> tuple[Layers, Layers]:
    """Give what ``layer="mean"`` gives."""
    scalers = [StandardScaler().fit(x) for x in train]
    both = [
        np.mean([s.transform(x) for s, x in zip(scalers, part, strict=True)], axis=0)
        for part in (train, test)
    ]
    return both[0], both[1]


# --- measuring -------------------------------------------------------------------------------


@dataclass
class Draw:
    """What one draw of training rows gives."""

    by_layer: NDArray[np.float64]  # the test score of each layer
    reached: dict[str, float]  # the test score of each way's choice
    seconds: dict[str, float]


def run_draw(vectors: Vectors, rows: NDArray[np.intp]) -> Draw:
    """Train on every layer, and let every way choose one."""
    X, y = np.ascontiguousarray(vectors.train[:, rows]), vectors.labels[rows]
    rest = vectors.test_labels
    scores = [test_score(a, y, b, rest) for a, b in zip(X, vectors.test, strict=True)]
    reached, seconds = {}, {}
    for name, choose in WAYS.items():
        start = time.perf_counter()
        reached[name] = scores[choose(X, y)]
        seconds[name] = time.perf_counter() - start
    train, test = layer_mean(X, vectors.test)
    reached["layer mean"] = test_score(train, y, test, rest)
    return Draw(np.array(scores), reached, seconds)


def neural_seconds(X: Layers, y: NDArray[Any]) -> float:
    """Project one fit of the library's head to all folds of all layers."""
    train = StratifiedKFold(N_FOLDS).split(X[0], y).__next__()[0]
    start = time.perf_counter()
    FusionMLPClassifier(random_state=0).fit(X[len(X) // 2][train], y[train])
    return (time.perf_counter() - start) * N_FOLDS * len(X)


def draw_rows(labels: NDArray[Any], size: int, seed: int) -> NDArray[np.intp]:
    """Draw training rows of at least two classes."""
    rng = np.random.default_rng(seed)
    while True:
        rows = rng.permutation(len(labels))[:size]
        if len(np.unique(labels[rows])) > 1:
            return rows


@dataclass
class Totals:
    """What the draws of all data sets and models add up to."""

    regrets: dict[tuple[str, int], list[float]]  # by way and size
    steady: dict[tuple[str, int], list[float]]  # the same, to the layer that is best on average
    seconds: dict[str, float]
    neural: float = 0.0

    def add(self, vectors: Vectors, size: int, n_draws: int) -> None:
        """Run the draws of one size; the neural head is timed once, and counts as often."""
        chosen = [draw_rows(vectors.labels, size, seed) for seed in range(n_draws)]
        draws = [run_draw(vectors, rows) for rows in chosen]
        by_layer = np.stack([draw.by_layer for draw in draws])
        steady = int(np.argmax(by_layer.mean(axis=0)))
        for draw in draws:
            for way, score in draw.reached.items():
                self.regrets[way, size].append(100 * (draw.by_layer.max() - score))
                self.steady[way, size].append(100 * (draw.by_layer[steady] - score))
            for way, seconds in draw.seconds.items():
                self.seconds[way] += seconds
        X, y = vectors.train[:, chosen[0]], vectors.labels[chosen[0]]
        self.neural += n_draws * neural_seconds(X, y)


def mean_over(values: dict[tuple[str, int], list[float]], way: str, sizes: list[int]) -> float:
    """Give a way's mean over all draws of some sizes."""
    return float(np.mean([x for size in sizes for x in values[way, size]]))


def measure(plan: Plan, memory: Path) -> Totals:
    """Run everything; a data set with fewer rows than a size is left out of it."""
    totals = Totals(defaultdict(list), defaultdict(list), defaultdict(float))
    for data_set in plan.data_sets:
        for model in plan.models:
            vectors = embed(data_set, model, plan, memory)
            for size in plan.sizes:
                if size <= len(vectors.labels):
                    totals.add(vectors, size, plan.n_draws)
    return totals


def main() -> None:
    """Print the table and write the figures."""
    args = parse_arguments(str(__doc__), lambda parser: None)
    print(machine_line())
    silence()
    plan = make_plan(args.quick)
    with tempfile.TemporaryDirectory() as memory, warnings.catch_warnings():
        # Draws of 50 rows have classes of fewer members than folds.
        warnings.filterwarnings(
            "ignore", message="The least populated class", category=UserWarning
        )
        totals = measure(plan, Path(memory))
    rows = []
    for way in dict.fromkeys(way for way, _ in totals.regrets):
        by_size = [mean_over(totals.regrets, way, [size]) for size in plan.sizes]
        both = [mean_over(part, way, plan.sizes) for part in (totals.regrets, totals.steady)]
        spent = f"{totals.seconds[way]:.2f}" if way in WAYS else "-"
        rows.append([way, *(f"{value:.2f}" for value in (*by_size, *both)), spent])
    header = ["chosen by", *(f"{size} rows" for size in plan.sizes), "all", "steady", "seconds"]
    print_table("regret in points of macro-F1", header, rows)
    auto = totals.seconds["auto"]
    figures = {
        **{
            f"regret_{name}_pp": mean_over(totals.regrets, way, plan.sizes)
            for name, way in (("auto", "auto"), ("last", "last"), ("cv", "cross-validation"))
        },
        **{
            f"steady_regret_{way}_pp": mean_over(totals.steady, way, plan.sizes)
            for way in ("auto", "last")
        },
        "auto_time_share": auto / totals.neural,
        "auto_time_share_logistic": auto / totals.seconds["cross-validation"],
    }
    finish(figures, args.json)


if __name__ == "__main__":
    main()
