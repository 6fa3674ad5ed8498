"""Measure what choosing a layer without training a head costs, in score and in time.

Of six data sets at most 1,000 rows of the training and 1,000 of the test split are embedded by
every fetched model, all layers. Of all these, 50, 200 or 1,000 are drawn for training, five times
each, and a logistic regression is trained on every layer and tested on the rows not drawn.
The regret of a way to choose a layer is the best layer's macro-F1 on the test rows, which no way
can know, minus that of the layer it chose from the training rows alone. Part of that lead is luck:
the steady regret is to the one layer that is best on average over the draws, and the row "best on
average" is what that layer itself has lost to luck, which no way can hope to win.

Vectors and what was trained on them are kept in the user's cache folder, so a run that was stopped
goes on where it was, and another way to choose is measured in minutes. `--fresh` trains anew.

Seconds are those of scoring all layers against cross-validating the library's own head,
`FusionMLPClassifier`, on every layer (from one fit, since all would take hours), and against
5-fold cross-validation of the logistic regression.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
from _common import (
    KEPT,
    finish,
    machine_line,
    model_path,
    parse_arguments,
    print_table,
    read_sample,
    silence,
)
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small_models import target_folder

from skfusion import FusionMLPClassifier, LLMLayerEmbedder, VectorStore, layer_scores

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
LEAST_TEST_ROWS = 100
CV = "cross-validation"
DEPTH = 0.6

MEMORY = joblib.Memory(KEPT / "layer_choice", verbose=0)

Layers = NDArray[np.float32]  # (n_layers, n_rows, width)


@dataclass
class Vectors:
    """A data set as one model sees it."""

    layers: Layers
    labels: NDArray[Any]


@dataclass(frozen=True)
class Plan:
    """What is run."""

    data_sets: list[str]
    models: list[str]
    sizes: list[int]
    n_draws: int
    n_rows: int  # the most of a split


def make_plan(quick: bool, models: list[str] | None) -> Plan:
    """Choose a size; the larger models take part where they have been fetched before."""
    if quick:
        return Plan(DATA_SETS[:1], models or SMALL, [50, 150], 2, 200)
    fetched = [name for name in MODELS if name in SMALL or target_folder(name).exists()]
    return Plan(DATA_SETS, models or fetched, [50, 200, 1000], 5, 1000)


def embed(data_set: str, model: str, plan: Plan) -> Vectors:
    """Embed a sample of both splits."""
    parts, labels = [], []
    for split in ("train", "test"):
        rows = read_sample(data_set, plan.n_rows, split)
        embedder = LLMLayerEmbedder(
            model_path(model),
            pooling=MODELS[model],
            max_length=256,
            memory=VectorStore(KEPT, poolings="requested"),
        )
        embedder.fit(rows["text"])
        embedder.set_params(layer=list(range(embedder.n_layers_ + 1)))
        blocks = embedder.fit_transform(rows["text"]).reshape(len(rows), -1, embedder.hidden_size_)
        parts.append(blocks.swapaxes(0, 1))
        labels.append(rows["label"].to_numpy())
    return Vectors(np.concatenate(parts, axis=1), np.concatenate(labels))


def head() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))


def test_score(X: Layers, y: NDArray[Any], X_test: Layers, y_test: NDArray[Any]) -> float:
    predicted = head().fit(X, y).predict(X_test)
    return float(f1_score(y_test, predicted, average="macro"))


# --- ways to choose --------------------------------------------------------------------------


def by_default(X: Layers, y: NDArray[Any]) -> int:
    """Choose as ``layer="auto"`` does."""
    found = layer_scores(X, y)
    return found.names.index(found.shallowest(range(len(X))))


def by_one_standard_error(X: Layers, y: NDArray[Any]) -> int:
    """Choose the shallowest layer whose leave-one-out log-loss is within one of the best."""
    found = layer_scores(X, y, criterion="ridge")
    return int(np.argmax(found.scores >= found.scores.max() - found.standard_errors))


def by_best(criterion: str) -> Callable[[Layers, NDArray[Any]], int]:
    """Choose the layer with the highest score."""
    return lambda X, y: int(np.argmax(layer_scores(X, y, criterion=criterion).scores))


WAYS: dict[str, Callable[[Layers, NDArray[Any]], int]] = {
    "auto": by_default,
    "logme": by_best("logme"),
    "ridge": by_best("ridge"),
    "ridge, one s.e.": by_one_standard_error,
    "h_score": by_best("h_score"),
    "variability": by_best("variability"),
    "effective_rank": by_best("effective_rank"),
    "last": lambda X, y: len(X) - 1,
    "60 % depth": lambda X, y: round(DEPTH * (len(X) - 1)),
}


def layer_mean(train: Layers, test: Layers) -> tuple[Layers, Layers]:
    """Return what ``layer="mean"`` gives."""
    scalers = [StandardScaler().fit(x) for x in train]
    both = [
        np.mean([s.transform(x) for s, x in zip(scalers, part, strict=True)], axis=0)
        for part in (train, test)
    ]
    return both[0], both[1]


# --- what is trained: slow, and kept -----------------------------------------------------------


@dataclass
class Trained:
    """What classifiers give that were trained on one draw of rows."""

    by_layer: NDArray[np.float64]  # the test score of each layer
    mean_layer: float  # the test score of `layer_mean`
    validated: NDArray[np.float64]  # each layer's score in cross-validation of the training rows
    seconds: float  # of that cross-validation


@MEMORY.cache(ignore=["vectors"])
def train(
    data_set: str, model: str, n_rows: int, size: int, seed: int, vectors: Vectors
) -> Trained:
    """Train on every layer, for the test and in cross-validation."""
    X, y, X_rest, y_rest = draw(vectors, size, seed)
    by_layer = [test_score(a, y, b, y_rest) for a, b in zip(X, X_rest, strict=True)]
    average, average_rest = layer_mean(X, X_rest)
    mean_layer = test_score(average, y, average_rest, y_rest)
    start = time.perf_counter()
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0)
    validated = [
        f1_score(y, cross_val_predict(head(), x, y, cv=folds), average="macro") for x in X
    ]
    seconds = time.perf_counter() - start
    return Trained(np.array(by_layer), mean_layer, np.array(validated), seconds)


@MEMORY.cache(ignore=["vectors"])
def neural_seconds(data_set: str, model: str, n_rows: int, size: int, vectors: Vectors) -> float:
    """Project one fit of the library's head to all folds of all layers."""
    X, y, _, _ = draw(vectors, size, 0)
    rows = next(iter(StratifiedKFold(N_FOLDS).split(X[0], y)))[0]
    start = time.perf_counter()
    head = FusionMLPClassifier(block_sizes="single", random_state=0)
    head.fit(X[len(X) // 2][rows], y[rows])
    return (time.perf_counter() - start) * N_FOLDS * len(X)


def draw(
    vectors: Vectors, size: int, seed: int
) -> tuple[Layers, NDArray[Any], Layers, NDArray[Any]]:
    """Draw training rows of at least two classes; all others are test rows."""
    rng = np.random.default_rng(seed)
    while True:
        rows = rng.permutation(len(vectors.labels))[:size]
        if len(np.unique(vectors.labels[rows])) > 1:
            break
    rest = np.setdiff1d(np.arange(len(vectors.labels)), rows)
    layers, labels = vectors.layers, vectors.labels
    return layers[:, rows], labels[rows], layers[:, rest], labels[rest]


# --- measuring -------------------------------------------------------------------------------


@dataclass
class Totals:
    """What the draws of all data sets and models add up to."""

    regrets: dict[tuple[str, int], list[float]]  # by way and size
    steady: dict[tuple[str, int], list[float]]  # the same, to the layer that is best on average
    seconds: dict[str, float]
    neural: float = 0.0

    def add(self, plan: Plan, data_set: str, model: str, size: int, vectors: Vectors) -> None:
        """Run the draws of one size; the neural head is timed once, and counts as often."""
        case = (data_set, model, plan.n_rows, size)
        trained = [train(*case, seed, vectors) for seed in range(plan.n_draws)]
        self.neural += plan.n_draws * neural_seconds(*case, vectors)
        steady = int(np.argmax(np.mean([one.by_layer for one in trained], axis=0)))
        for seed, one in enumerate(trained):
            X, y, _, _ = draw(vectors, size, seed)
            chosen = {CV: int(np.argmax(one.validated)), "best on average": steady}
            self.seconds[CV] += one.seconds
            for way, choose in WAYS.items():
                start = time.perf_counter()
                chosen[way] = choose(X, y)
                self.seconds[way] += time.perf_counter() - start
            scores = {way: one.by_layer[layer] for way, layer in chosen.items()}
            for way, score in {**scores, "layer mean": one.mean_layer}.items():
                self.regrets[way, size].append(100 * (one.by_layer.max() - score))
                self.steady[way, size].append(100 * (one.by_layer[steady] - score))


def mean_over(values: dict[tuple[str, int], list[float]], way: str, sizes: list[int]) -> float:
    """Return a way's mean over all draws of some sizes."""
    return float(np.mean([x for size in sizes for x in values[way, size]]))


def measure(plan: Plan) -> Totals:
    """Run everything; a data set takes part in the sizes that leave rows to test on."""
    totals = Totals(defaultdict(list), defaultdict(list), defaultdict(float))
    for model in plan.models:
        for data_set in plan.data_sets:
            vectors = embed(data_set, model, plan)
            for size in plan.sizes:
                if size <= len(vectors.labels) - LEAST_TEST_ROWS:
                    totals.add(plan, data_set, model, size, vectors)
    return totals


def add_options(parser: Any) -> None:
    parser.add_argument("--models", nargs="+", choices=MODELS, help="only these")
    parser.add_argument("--fresh", action="store_true", help="train what was trained before")


def main() -> None:
    """Print the table and write the figures."""
    args = parse_arguments(str(__doc__), add_options)
    print(machine_line())
    silence()
    plan = make_plan(args.quick, args.models)
    if args.fresh:
        MEMORY.clear(warn=False)
    with warnings.catch_warnings():
        # Draws of 50 rows have classes of fewer members than folds.
        warnings.filterwarnings(
            "ignore", message="The least populated class", category=UserWarning
        )
        totals = measure(plan)
    rows = []
    for way in dict.fromkeys(way for way, _ in totals.regrets):
        by_size = [mean_over(totals.regrets, way, [size]) for size in plan.sizes]
        both = [mean_over(part, way, plan.sizes) for part in (totals.regrets, totals.steady)]
        spent = f"{totals.seconds[way]:.1f}" if way in totals.seconds else "-"
        rows.append([way, *(f"{value:.2f}" for value in (*by_size, *both)), spent])
    header = ["chosen by", *(f"{size} rows" for size in plan.sizes), "all", "steady", "seconds"]
    print_table("regret in points of macro-F1", header, rows)
    auto = totals.seconds["auto"]
    figures = {
        **{
            f"regret_{name}_pp": mean_over(totals.regrets, way, plan.sizes)
            for name, way in (
                ("auto", "auto"),
                ("last", "last"),
                ("cv", CV),
                ("luck", "best on average"),
            )
        },
        **{
            f"steady_regret_{way}_pp": mean_over(totals.steady, way, plan.sizes)
            for way in ("auto", "last")
        },
        "auto_time_share": auto / totals.neural,
        "auto_time_share_logistic": auto / totals.seconds[CV],
    }
    finish(figures, args.json)


if __name__ == "__main__":
    main()
