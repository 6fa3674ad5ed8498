"""Measure the neural head against scikit-learn's MLP, plain skorch and tuned logistic regression.

Last-layer vectors (mean over tokens) of MiniLM-L6 and SmolLM2-135M, side by side, of three topic
and review data sets and all LegalBench sets; at most 1,000 rows of each, the first 128 tokens of a
text. 2 times 2-fold cross-validation: macro-F1, seconds of one fit, and the log-loss of
`FusionMLPClassifier` and tuned logistic regression on rows whose class was trained on. Peers get
standardised vectors, as `FusionMLPClassifier` makes them itself:

- `MLPClassifier((1024, 256))` with scikit-learn's own settings otherwise;
- plain skorch: the paper's layers and recipe (Adam, lr 1e-4, batches of 1,024, 120 epochs) in a
  `NeuralNetClassifier`;
- logistic regression, C by 3-fold cross-validation over nine values, for macro-F1.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch
from _common import (
    DATA_SETS,
    KEPT,
    finish,
    machine_line,
    model_path,
    parse_arguments,
    print_table,
    read_sample,
    silence,
    threads,
)
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, RepeatedStratifiedKFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skfusion import (
    EmbedderUnion,
    EmbeddingBlocks,
    FusionMLPClassifier,
    LLMLayerEmbedder,
    VectorStore,
)

QUICK = DATA_SETS[:2]
MODELS = ["minilm-l6", "smollm2-135m"]
MAX_LENGTH = 128  # tokens, as in recipe.py, whose vectors these are
AUTO, LOGISTIC = "auto", "tuned logistic"


class Layers(nn.Sequential):
    """The paper's head on concatenated vectors."""

    def __init__(self, width: int = 1, n_classes: int = 2) -> None:
        super().__init__(
            *[nn.Linear(width, 1024), nn.ReLU(), nn.Dropout(0.5)],
            *[nn.Linear(1024, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, n_classes)],
        )


class PlainSkorch:
    """`NeuralNetClassifier` as one writes it down, with the labels as it needs them."""

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> PlainSkorch:
        """Train for 120 epochs."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        torch.manual_seed(0)
        self.net = NeuralNetClassifier(
            Layers,
            module__width=X.shape[1],
            module__n_classes=len(self.classes_),
            criterion=nn.CrossEntropyLoss,
            optimizer=torch.optim.Adam,
            lr=1e-4,
            batch_size=1024,
            max_epochs=120,
            iterator_train__shuffle=True,
            train_split=None,
            verbose=0,
        )
        self.net.fit(X.astype(np.float32), codes)
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return labels."""
        return self.classes_[self.net.predict(X.astype(np.float32))]


def contenders() -> dict[str, Any]:
    """Return what is compared, by name."""
    tuned = GridSearchCV(
        LogisticRegression(max_iter=300),
        {"C": np.logspace(-4, 1, 9)},
        cv=StratifiedKFold(3, shuffle=True, random_state=0),
        scoring="f1_macro",
    )
    return {
        AUTO: FusionMLPClassifier(random_state=0),
        "MLPClassifier": MLPClassifier((1024, 256), random_state=0),
        "plain skorch": PlainSkorch(),
        LOGISTIC: tuned,
    }


def embed(name: str, n_rows: int) -> tuple[EmbeddingBlocks, NDArray[Any]]:
    """Return the vectors of a data set, kept in the user's cache folder, and its labels."""
    rows = read_sample(name, n_rows)
    union = EmbedderUnion(
        [(model, LLMLayerEmbedder(model_path(model), max_length=MAX_LENGTH)) for model in MODELS],
        memory=VectorStore(KEPT, layers="requested"),
    )
    return union.fit_transform(rows["text"]), rows["label"].to_numpy()


def known_log_loss(classifier: Any, X: Any, y: NDArray[Any]) -> float:
    """Return the mean log-loss of the rows whose class was trained on."""
    known = np.flatnonzero(np.isin(y, classifier.classes_))
    chances = classifier.predict_proba(X)[known, np.searchsorted(classifier.classes_, y[known])]
    return float(-np.log(np.maximum(chances, np.finfo(np.float32).tiny)).mean())


def compare(X: EmbeddingBlocks, y: NDArray[Any], repeats: int) -> tuple[dict[str, float], ...]:
    """Return each contender's mean macro-F1, seconds of a fit and log-loss."""
    scores: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    folds = RepeatedStratifiedKFold(n_splits=2, n_repeats=repeats, random_state=0)
    for train, test in folds.split(y, y):
        standard = StandardScaler().fit(np.asarray(X[train])).transform(np.asarray(X))
        for name, contender in contenders().items():
            rows: Any = X if name == AUTO else standard
            start = time.perf_counter()
            contender.fit(rows[train], y[train])
            seconds.setdefault(name, []).append(time.perf_counter() - start)
            predicted = contender.predict(rows[test])
            f1 = f1_score(y[test], predicted, average="macro", zero_division=0)
            scores.setdefault(name, []).append(f1)
            if name in (AUTO, LOGISTIC):
                losses.setdefault(name, []).append(known_log_loss(contender, rows[test], y[test]))
    return tuple(
        {name: float(np.mean(values)) for name, values in each.items()}
        for each in (scores, seconds, losses)
    )


def main() -> None:
    """Print the tables and write the figures."""
    args = parse_arguments(
        str(__doc__),
        lambda parser: parser.add_argument("--threads", type=int, default=1, help="of torch"),
    )
    print(machine_line())
    silence()
    # A class of one row cannot be shared out to folds, which scikit-learn says each time.
    warnings.filterwarnings("ignore", message="The least populated class")
    names, n_rows, repeats = (QUICK, 200, 1) if args.quick else (DATA_SETS, 1000, 2)
    scores, seconds, losses, sizes = {}, {}, {}, {}
    with threads(args.threads):
        for name in names:
            X, y = embed(name, n_rows)
            scores[name], seconds[name], losses[name] = compare(X, y, repeats)
            sizes[name] = len(y)
    peers = [name for name in contenders() if name != AUTO]
    short = {name: name.replace("legalbench_", "lb_")[:24] for name in names}
    tables = {"macro-F1": scores, "seconds of a fit": seconds, "log-loss": losses}
    for title, table in tables.items():
        shown = list(table[names[0]])
        rows = [
            [short[name], sizes[name], *(f"{value:.3f}" for value in table[name].values())]
            for name in names
        ]
        means = [f"{np.mean([table[n][c] for n in names]):.3f}" for c in shown]
        print_table(
            f"{title}, {repeats} x 2-fold cross-validation",
            ["data set", "rows", *shown],
            [*rows, ["mean", "", *means]],
        )
    behind = [scores[n][AUTO] - max(scores[n][peer] for peer in peers) for n in names]
    mean_of = {c: np.mean([scores[n][c] for n in names]) for c in (AUTO, *peers)}
    worse = [losses[n][AUTO] / losses[n][LOGISTIC] for n in names]
    ratios = [seconds[n]["plain skorch"] / seconds[n][AUTO] for n in names]
    figures = {
        "head_minus_best_worst": min(behind),
        "head_minus_best_mean": float(mean_of[AUTO] - max(mean_of[peer] for peer in peers)),
        "logloss_vs_logistic": float(np.mean(worse)),
        "speedup_vs_skorch_small": min(ratios),
        "speedup_vs_skorch_small_median": float(np.median(ratios)),
    }
    finish(figures, args.json)


if __name__ == "__main__":
    main()
