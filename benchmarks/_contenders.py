"""What `recipe.py` compares: estimators that take texts, and what is kept of each."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
from _common import KEPT, model_path
from _draws import MAX_LENGTH, Cell, Score, draw, embedder, pool, rate
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline

from skfusion import EmbedderUnion, FusionClassifier, FusionMLPClassifier, VectorStore

MEMORY = joblib.Memory(KEPT / "recipe", verbose=0)


class Contender(NamedTuple):
    """A method and the models that it stands on."""

    method: str
    models: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the name that tables have."""
        return f"{self.method} ({' + '.join(self.models)})" if self.models else self.method


def tuned_logistic() -> GridSearchCV:
    """Return what a careful user does: C and class weights by cross-validated macro-F1.

    The range of C is that of rows of unit length.
    """
    return GridSearchCV(
        LogisticRegression(max_iter=1000),
        {"C": np.logspace(-2, 4, 9), "class_weight": [None, "balanced"]},
        scoring="f1_macro",
        cv=StratifiedKFold(5, shuffle=True, random_state=0),
    )


class Span(TransformerMixin, BaseEstimator):
    """Coordinates in the span of the training rows: the same inner products in fewer columns.

    What is penalised by the squared norm of its coefficients predicts the same, many times faster.
    """

    def fit(self, X: Any, y: Any = None) -> Span:
        """Decompose the Gram matrix."""
        values, vectors = np.linalg.eigh((X @ X.T).toarray())
        kept = values > 1e-10 * values[-1]
        self.basis_ = X.T @ (vectors[:, kept] / np.sqrt(values[kept]))
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the coordinates."""
        coordinates: NDArray[np.float64] = X @ self.basis_
        return coordinates


def tfidf(models: tuple[str, ...]) -> Any:
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    return make_pipeline(words, Span(), tuned_logistic())


def sentence_vectors(models: tuple[str, ...]) -> Any:
    """Return what `SentenceTransformer.encode` gives of these models: mean, unit length."""
    (model,) = models
    return make_pipeline(embedder(model, pooling="mean", normalize=True), tuned_logistic())


def paper(models: tuple[str, ...]) -> Any:
    """Return the paper's form: last layers side by side, the paper's network and recipe."""
    union = EmbedderUnion([(model, embedder(model, pooling="mean")) for model in models])
    return make_pipeline(union, FusionMLPClassifier("concat", solver="paper", random_state=0))


def ours(models: tuple[str, ...], cv: int | None = None) -> Any:
    """Return the recipe, by default without the cross-validation that only `summary` reports."""
    named = [(model, model_path(model)) for model in models]
    return FusionClassifier(
        named, max_length=MAX_LENGTH, memory=VectorStore(KEPT), cv=cv, random_state=0
    )


class SetFit(ClassifierMixin, BaseEstimator):
    """SetFit on MiniLM, by the Python of another environment; it sees no label of a test row."""

    def __init__(self, python: str) -> None:
        self.python = python

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> SetFit:
        """Keep the rows: training and predicting are one call."""
        self.classes_, self.codes_ = np.unique(y, return_inverse=True)
        self.texts_, self.known_ = list(X), {}
        return self

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Train and predict, or return what was predicted before."""
        key = joblib.hash(list(X))
        if key not in self.known_:
            task = {
                "model": model_path("minilm-l6"),
                "texts": self.texts_,
                "codes": self.codes_.tolist(),
                "test": list(X),
            }
            done = subprocess.run(
                [self.python, str(Path(__file__).with_name("_setfit.py"))],
                input=json.dumps(task),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError(f"{self.python} could not train SetFit:\n{done.stderr[-2000:]}")
            self.known_[key] = np.array(json.loads(done.stdout.splitlines()[-1]))
        chances: NDArray[np.float64] = self.known_[key]
        return chances

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the likeliest classes."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


BUILDERS: dict[str, Callable[[tuple[str, ...]], Any]] = {
    "TF-IDF": tfidf,
    "sentence-transformers": sentence_vectors,
    "paper": paper,
    "ours": ours,
    "ours with its report": partial(ours, cv=5),
    "SetFit": lambda python: SetFit(*python),
}
#: What was kept of a method under another version counts no more: raise it when it has changed.
VERSIONS = {"ours": "2", "ours with its report": "2"}


class Result(NamedTuple):
    """How good a contender is on one draw, and the processor's seconds of `fit` and `predict`."""

    score: Score
    seconds: float


@MEMORY.cache
def trained(contender: Contender, version: str, cell: Cell) -> Result:
    """Train on the rows that were drawn and test on the others."""
    texts, labels = pool(cell.data_set, cell.n_rows).texts, pool(cell.data_set, cell.n_rows).labels
    rows, rest = draw(cell)
    estimator = BUILDERS[contender.method](contender.models)
    start = time.process_time()
    predicted = estimator.fit(texts[rows], labels[rows]).predict(texts[rest])
    seconds = time.process_time() - start
    return Result(rate(estimator, texts[rest], labels[rest], predicted), seconds)


def result(contender: Contender, cell: Cell) -> Result:
    """Return what is kept, or train."""
    return trained(contender, VERSIONS.get(contender.method, "1"), cell)
