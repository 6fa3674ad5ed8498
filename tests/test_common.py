"""scikit-learn's own checks on every estimator, and the one list of those that may fail."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from _support import tiny
from _support.doubles import NumberReader, NumericRows, read_numbers
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfusion import (
    CallableEmbedder,
    EmbedderUnion,
    FusionClassifier,
    FusionHead,
    FusionMLPClassifier,
    FusionMLPRegressor,
    FusionRegressor,
    FusionTransformer,
    LLMLayerEmbedder,
    ModelSubsetSearchCV,
    OptunaSearchCV,
)

#: Checks that an estimator may fail, by its name (of a search with its estimator's), and why.
EXPECTED_FAILED_CHECKS: dict[str, dict[str, str]] = {
    # As of LogisticRegressionCV: two rows are not always in one fold, as a row of weight 2 is.
    **{
        name: {"check_sample_weight_equivalence_on_dense_data": "folds count rows, not weights"}
        for name in ("FusionHead", "FusionClassifier", "FusionRegressor")
    },
    # One of the two that GridSearchCV has itself, for the same reason.
    "OptunaSearchCV(Ridge)": {
        "check_supervised_y_2d": "Ridge takes a y of two columns, so nothing warns"
    },
}


def _expected(estimator: Any) -> dict[str, str]:
    name = type(estimator).__name__
    if hasattr(estimator, "estimator"):
        name = f"{name}({type(estimator.estimator).__name__})"
    return EXPECTED_FAILED_CHECKS.get(name, {})


def _numeric_rows() -> NumericRows:
    folder = Path(tempfile.mkdtemp(prefix="skfusion-checks"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config = tiny.LlamaConfig(
        **{**tiny.usual(num_key_value_heads=1), "max_position_embeddings": 10_000}
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tiny.LlamaModel(config).double().save_pretrained(folder)
    tiny.make_tokenizer().save_pretrained(folder)
    return NumericRows(LLMLayerEmbedder(str(folder), dtype="float64", layer=[1, 2]))


def _embedders() -> list[Any]:
    """Text estimators behind a double that writes numeric rows out as texts."""
    rows = _numeric_rows()
    union = [("a", rows), ("b", clone(rows).set_params(embedder__layer=0))]
    words = ("auto", "blend", "mean")
    chosen = [clone(rows).set_params(embedder__layer=layer) for layer in words]
    function = NumericRows(CallableEmbedder(read_numbers, "numbers", memory=False))
    return [rows, EmbedderUnion(union), *chosen, function]


# At the default lr=1e-4 a check trains ten times as long.
SMALL: dict[str, Any] = {
    "n_components": 16,
    "hidden_layer_sizes": (32, 16),
    "lr": 3e-3,
    "block_sizes": "single",
    "random_state": 0,
}
SEARCH: dict[str, Any] = {"cv": 2, "error_score": "raise"}
ESTIMATORS = [
    *_embedders(),
    FusionTransformer(block_sizes="single"),
    FusionTransformer("hadamard", residual="concat", scale="l2", block_sizes="single"),
    FusionTransformer("sum", n_components=1, block_sizes="single", random_state=0),
    FusionTransformer(
        "bilinear", residual="add", n_components=3, block_sizes="single", random_state=0
    ),
    FusionTransformer(
        "mean", projection="random", n_components=4, scale=None, block_sizes="single",
        random_state=0,
    ),
    FusionMLPClassifier(**SMALL),
    FusionMLPRegressor(**SMALL),
    OptunaSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, n_trials=2, random_state=0, **SEARCH),
    OptunaSearchCV(
        LogisticRegression(tol=0.1), {"C": [0.1, 1.0]}, n_trials=1, random_state=0, **SEARCH
    ),
    FusionHead(random_state=0),
    FusionClassifier([NumericRows(NumberReader())], cv=2, random_state=0),
    FusionRegressor([NumericRows(NumberReader())], cv=2, random_state=0),
    ModelSubsetSearchCV(LogisticRegression(), **SEARCH),
    ModelSubsetSearchCV(Ridge(), **SEARCH),
]  # fmt: skip


# scikit-learn's type_of_target says so of infinite targets before it refuses them.
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=_expected)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
