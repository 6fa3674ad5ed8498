"""What `recipe.py` and `layer_choice.py` share: pools of texts, draws of training rows, layers.

Of each data set at most so many rows of the training and half as many of the test split are one
pool. Training rows are drawn from it, and all others are test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import joblib
import numpy as np
from _common import KEPT, model_path, quietly, read_sample
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small_models import target_folder
from tqdm import tqdm

from skfusion import LLMLayerEmbedder, VectorStore

#: The models, in the order in which sets of them grow, and the pooling that a single layer has.
MODELS = {
    "minilm-l6": "mean",
    "smollm2-135m": "mean_no_first",
    "mpnet": "mean",
    "gemma3-270m": "mean_no_first",
}
SMALL = list(MODELS)[:2]
#: With 40 test rows one text is worth 2.5 points: less would be noise, and more would leave out
#: the small data sets at 200 rows.
LEAST_TEST_ROWS = 40
#: How often training rows of each size are drawn; large ones differ less and cost most.
DRAWS = {50: 3, 200: 3, 1000: 2}
MAX_LENGTH = 128  # tokens; of r8 and r52 a quarter of the texts have more
PENALTY = 0.01  # C, on standardised columns

MEMORY = joblib.Memory(KEPT / "layer_choice", verbose=0)

Layers = NDArray[np.float32]  # (n_layers, n_rows, width)


# --- what is run -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What is run."""

    data_sets: list[str]
    models: list[str]
    sizes: list[int]
    n_draws: dict[int, int]  # of each size
    n_rows: int  # the most of the training split

    def cells(self) -> list[Cell]:
        """Return all draws; a data set takes part in the sizes that leave rows to test on."""
        return [
            Cell(name, self.n_rows, size, seed)
            for name in self.data_sets
            for size in self.sizes
            if size <= len(pool(name, self.n_rows).labels) - LEAST_TEST_ROWS
            for seed in range(self.n_draws[size])
        ]


class Cell(NamedTuple):
    """One draw of training rows."""

    data_set: str
    n_rows: int
    size: int
    seed: int


def add_options(parser: Any) -> None:
    """Add what both benchmarks let one choose."""
    parser.add_argument("--data-sets", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="only these")
    parser.add_argument("--fresh", action="store_true", help="train what was trained before")
    parser.add_argument("--n-jobs", type=int, default=1, metavar="N", help="processes")


def make_plan(args: Any, data_sets: list[str], quick: list[str]) -> Plan:
    """Choose a size; the larger models take part where they have been fetched before."""
    chosen = [name for name in MODELS if name in (args.models or MODELS)]
    if args.quick:
        models = chosen if args.models else SMALL
        return Plan(args.data_sets or quick, models, [50, 150], {50: 2, 150: 2}, 200)
    models = [
        name for name in chosen if args.models or name in SMALL or target_folder(name).exists()
    ]
    return Plan(args.data_sets or data_sets, models, list(DRAWS), DRAWS, 1000)


def run_all(
    function: Callable[..., Any], arguments: Iterable[Sequence[Any]], n_jobs: int
) -> list[Any]:
    """Call a function with each of some arguments, one thread each, and show how far it is."""
    calls = list(arguments)
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator", batch_size=1)
    done = parallel(joblib.delayed(quietly)(function, *call) for call in calls)
    return list(tqdm(done, total=len(calls), mininterval=5, smoothing=0.02))


# --- rows ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pool:
    """The texts of a data set that are drawn from."""

    texts: NDArray[Any]
    labels: NDArray[Any]


@lru_cache(maxsize=16)
def pool(data_set: str, n_rows: int) -> Pool:
    """Read a sample of both splits."""
    parts = (("train", n_rows), ("test", n_rows // 2))
    samples = [read_sample(data_set, n, split) for split, n in parts]
    texts, labels = (
        np.concatenate([sample[column].to_numpy(dtype=object) for sample in samples])
        for column in ("text", "label")
    )
    return Pool(texts, labels)


def draw(cell: Cell) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Draw training rows of at least two classes; all others are test rows."""
    labels = pool(cell.data_set, cell.n_rows).labels
    rng = np.random.default_rng(cell.seed)
    while True:
        rows = rng.permutation(len(labels))[: cell.size]
        if len(np.unique(labels[rows])) > 1:
            break
    return rows, np.setdiff1d(np.arange(len(labels)), rows)


def embedder(model: str, **settings: Any) -> LLMLayerEmbedder:
    """Return a model's embedder; its vectors are kept in the user's cache folder."""
    return LLMLayerEmbedder(
        model_path(model), max_length=MAX_LENGTH, memory=VectorStore(KEPT), **settings
    )


@lru_cache(maxsize=1)
def layers_of(data_set: str, model: str, n_rows: int) -> Layers:
    """Return all layers of a pool."""
    texts = pool(data_set, n_rows).texts
    embed = embedder(model, pooling=MODELS[model]).fit(texts)
    embed.set_params(layer=list(range(embed.n_layers_ + 1)))
    blocks = embed.fit_transform(texts).reshape(len(texts), -1, embed.hidden_size_)
    layers: Layers = blocks.swapaxes(0, 1)
    return layers


def split_layers(cell: Cell, model: str) -> tuple[Layers, NDArray[Any], Layers, NDArray[Any]]:
    """Return the layers and labels of the training rows and of the test rows."""
    layers = layers_of(cell.data_set, model, cell.n_rows)
    labels = pool(cell.data_set, cell.n_rows).labels
    rows, rest = draw(cell)
    return layers[:, rows], labels[rows], layers[:, rest], labels[rest]


# --- scores ----------------------------------------------------------------------------------


class Score(NamedTuple):
    """How good predictions are."""

    f1: float
    log_loss: float


def rate(model: Any, X: Any, y: NDArray[Any], predicted: NDArray[Any] | None = None) -> Score:
    """Return macro-F1, and the log-loss of the rows whose class was among the training rows."""
    if predicted is None:
        predicted = model.predict(X)
    f1 = f1_score(y, predicted, average="macro", zero_division=0)
    known = np.isin(y, model.classes_)
    columns = np.searchsorted(model.classes_, y[known])
    chances = np.asarray(model.predict_proba(X), dtype=np.float64)[known]
    true = chances[np.arange(len(columns)), columns]
    return Score(float(f1), float(-np.log(np.maximum(true, np.finfo(np.float32).eps)).mean()))


def head() -> Any:
    """Return what is trained on a single layer."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=PENALTY, max_iter=300))


@MEMORY.cache
def train_layers(cell: Cell, model: str) -> list[Score]:
    """Train on every layer, and test."""
    X, y, X_rest, y_rest = split_layers(cell, model)
    return [rate(head().fit(a, y), b, y_rest) for a, b in zip(X, X_rest, strict=True)]
