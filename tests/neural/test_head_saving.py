"""`skfusion.save` and `load` of pipelines that end in the neural head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfusion import (
    EmbeddingBlocks,
    FusionMLPClassifier,
    FusionMLPRegressor,
    load,
    save,
)

SMALL: dict[str, Any] = {"n_components": 16, "hidden_layer_sizes": (32, 16), "random_state": 0}
BRIEF: dict[str, Any] = {**SMALL, "max_epochs": 4}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"operator": "hadamard", "residual": "concat", "solver": "paper"},
    {"operator": "gated", "block_dropout": 0.2, "dtype": "float64"},
    {"operator": "sum", "layer": "mix", "scale": "l2", "device": "cpu"},
]


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    codes = np.arange(60) % 3
    widths = {"m_layer1_mean": 6, "m_layer2_mean": 6, "other": 5}
    blocks = {
        name: rng.normal(size=(3, width))[codes] + rng.normal(size=(60, width))
        for name, width in widths.items()
    }
    return EmbeddingBlocks(blocks), codes


def again(estimator: Any, folder: Any) -> Any:
    save(estimator, folder / "model")
    assert not [p for p in (folder / "model").iterdir() if p.suffix in (".pkl", ".joblib", ".pt")]
    return load(folder / "model")


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_classifier_is_kept_bit_for_bit(setting, tmp_path):
    X, codes = data()
    y = np.array(["no", "perhaps", "yes"])[codes]
    pipe = make_pipeline(FunctionTransformer(), FusionMLPClassifier(**{**BRIEF, **setting}))
    loaded = again(pipe.fit(X, y), tmp_path)
    np.testing.assert_array_equal(loaded.predict_proba(X), pipe.predict_proba(X))
    np.testing.assert_array_equal(loaded.predict(X), pipe.predict(X))
    head, made = pipe[-1], loaded[-1]
    assert made.get_params() == head.get_params()
    np.testing.assert_array_equal(made.classes_, head.classes_)
    assert made.n_iter_ == head.n_iter_ and made.validation_losses_ == head.validation_losses_
    if head.operator == "gated":
        np.testing.assert_array_equal(made.compute_gates(X), head.compute_gates(X))
        np.testing.assert_array_equal(made.gates_, head.gates_)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("columns", [1, 2])
def test_a_regressor_is_kept_bit_for_bit(setting, columns, tmp_path):
    X, codes = data()
    y = codes * 10.0 if columns == 1 else np.column_stack([codes, 5.0 - codes])
    pipe = make_pipeline(FunctionTransformer(), FusionMLPRegressor(**{**BRIEF, **setting}))
    loaded = again(pipe.fit(X, y), tmp_path)
    np.testing.assert_array_equal(loaded.predict(X), pipe.predict(X))
    assert loaded.score(X, y) == pipe.score(X, y)


@pytest.mark.parametrize("solver", ["auto", "paper"])
def test_the_history_is_kept(solver, tmp_path):
    X, y = data()
    head = FusionMLPClassifier(solver=solver, early_stopping=False, **BRIEF).fit(X, y)
    made = again(head, tmp_path)
    assert len(made.net_.history) == len(head.net_.history)
    for name in ("epoch", "train_loss", "dur"):
        assert list(made.net_.history[:, name]) == list(head.net_.history[:, name])


@pytest.mark.parametrize("solver", ["auto", "paper"])
def test_partial_fit_goes_on(solver, tmp_path):
    X, y = data()
    head = FusionMLPClassifier("sum", solver=solver, **{**BRIEF, "lr": 1e-2}).fit(X, y)
    made = again(head, tmp_path)
    before, n_before = made.predict_proba(X), len(made.net_.history)
    for _ in range(15):
        made.partial_fit(X, y)
    assert len(made.net_.history) == made.n_iter_ == n_before + 15
    assert not np.allclose(made.predict_proba(X), before, atol=1e-3)
    assert made.score(X, y) > 0.9


def test_warm_start_goes_on(tmp_path):
    X, y = data()
    made = again(FusionMLPClassifier(warm_start=True, **BRIEF).fit(X, y), tmp_path)
    before = made.predict_proba(X)
    assert not np.allclose(made.fit(X, y).predict_proba(X), before, atol=1e-4)


def test_saved_twice_is_the_same(tmp_path):
    X, y = data()
    head = FusionMLPClassifier(**BRIEF).fit(X, y)
    (tmp_path / "more").mkdir()
    twice = again(again(head, tmp_path), tmp_path / "more")
    np.testing.assert_array_equal(twice.predict_proba(X), head.predict_proba(X))


def test_a_head_that_only_saw_partial_fit_can_be_saved(tmp_path):
    X, y = data()
    head = FusionMLPClassifier(**BRIEF).partial_fit(X[:9], y[:9] % 2, classes=[0, 1, 2])
    made = again(head, tmp_path)
    np.testing.assert_array_equal(made.predict_proba(X), head.predict_proba(X))
    assert made.partial_fit(X, y).predict_proba(X).shape == (60, 3)
