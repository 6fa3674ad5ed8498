"""scikit-learn's conventions, and what must be as before after every call."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import random

import numpy as np
import pytest
import torch
from _support import tiny
from _support.processes import PYTHONPATH, run_python
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from skfusion import EmbedderUnion, LLMLayerEmbedder, StoreWarning, TruncationWarning
from skfusion.embed.loading import release


def test_tags(folder):
    tags = LLMLayerEmbedder(folder()).__sklearn_tags__()
    assert tags.input_tags.string and not tags.input_tags.two_d_array
    assert tags.requires_fit and not tags.target_tags.required


def test_init_and_clone_load_nothing_and_touch_no_disk(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("touched")

    monkeypatch.setattr("skfusion.embed.embedder.resolve", refuse)
    monkeypatch.setattr("skfusion.embed.embedder.load", refuse)
    embedder = LLMLayerEmbedder("no/model", layer=99, pooling="what", memory="/nowhere")
    copies = [clone(embedder), copy.deepcopy(embedder), pickle.loads(pickle.dumps(embedder))]
    for other in copies:
        assert other.get_params() == embedder.get_params()
        repr(other)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_fitted_copies_work_and_are_small(folder, tmp_path, texts, make):
    embedder = LLMLayerEmbedder(folder("bert"), memory=tmp_path, layer=[1, -1])
    X = embedder.fit_transform(texts)
    assert len(pickle.dumps(embedder)) < 100_000
    other = make(embedder)
    np.testing.assert_array_equal(other.transform(texts), X)
    np.testing.assert_array_equal(other.get_feature_names_out(), embedder.get_feature_names_out())
    assert other.transform(["something new"]).shape == (1, 2 * tiny.WIDTH)
    assert not hasattr(clone(embedder), "layers_")


def test_a_whole_pipeline_pickles_small(folder, texts):
    pipe = make_pipeline(LLMLayerEmbedder(folder()), LogisticRegression())
    pipe.fit(texts, [0, 1] * (len(texts) // 2))
    assert len(pickle.dumps(pipe)) < 100_000
    assert (pickle.loads(pickle.dumps(pipe)).predict(texts) == pipe.predict(texts)).all()


def test_transform_before_fit(folder):
    from sklearn.exceptions import NotFittedError

    for call in ("transform", "get_feature_names_out"):
        with pytest.raises(NotFittedError):
            getattr(LLMLayerEmbedder(folder()), call)(["a"])


def _state() -> dict[str, object]:
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging as transformers_logging

    return {
        "torch threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "torch rng": torch.get_rng_state().tolist(),
        "numpy rng": repr(np.random.get_state()),  # noqa: NPY002 - it is the global one that counts
        "python rng": random.getstate(),
        "environment": dict(os.environ),
        "transformers level": transformers_logging.get_verbosity(),
        "transformers bars": transformers_logging.is_progress_bar_enabled(),
        "hub bars": are_progress_bars_disabled(),
        "root level": logging.getLogger().level,
        "handlers": list(logging.getLogger().handlers),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "folder": os.getcwd(),
    }


@pytest.mark.parametrize("kind", ["llama", "bert", "t5"])
def test_no_global_state_changes(tmp_path, texts, kind):
    model = tiny.save_folder(tmp_path / "model", kind)
    before = _state()
    embedder = LLMLayerEmbedder(str(model), layer=1, verbose=0)
    embedder.fit(texts)
    assert _state() == before
    with pytest.warns(TruncationWarning):
        embedder.set_params(max_length=3).fit_transform(texts)
    assert _state() == before


def test_an_error_in_loading_puts_the_state_back(tmp_path):
    model = tiny.save_folder(tmp_path / "model")
    embedder = LLMLayerEmbedder(str(model)).fit(["a"])
    (model / "model.safetensors").write_bytes(b"not weights")
    embedder.fit(["a"])
    before = _state()
    with pytest.raises(Exception):  # noqa: B017 - whatever safetensors says
        embedder.transform(["a"])
    assert _state() == before


def test_importing_is_light_and_silent():
    code = """
import sys, threading
import skfusion
assert "transformers" not in sys.modules
assert threading.active_count() == 1
"""
    assert run_python(code) == ""


def test_what_a_call_computed_and_what_it_found_is_counted(folder, tmp_path, texts):
    embedder = LLMLayerEmbedder(folder(), layer="blend", memory=tmp_path)
    y = [i % 2 for i in range(len(texts))]

    def counts():
        return embedder.n_encoded_, embedder.n_found_

    embedder.fit_transform([*texts, *texts], y * 2)
    assert counts() == (len(texts), 0)
    embedder.fit_transform(texts, y)
    assert counts() == (0, len(texts))
    embedder.transform(["new", "new", texts[0], texts[3]])
    assert counts() == (1, 2)
    embedder.precompute(["newer"], verbose=0)
    assert counts() == (1, 0)
    assert clone(embedder).set_params(layer=1).fit(texts).n_found_ == 0  # has read none


def test_counts_where_nothing_can_be_stored_or_kept_in_memory(
    folder, tmp_path, texts, monkeypatch
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr("skfusion.embed.embedder._READ_BYTES", 1)
    embedder = LLMLayerEmbedder(folder(), layer="mean", memory=tmp_path / "file")
    with pytest.warns(StoreWarning):
        embedder.fit_transform(texts)
    assert embedder.n_encoded_ >= len(texts) and embedder.n_found_ == 0


def test_the_log_says_what_is_loaded_computed_and_stored(folder, tmp_path, caplog):
    release()
    with caplog.at_level("INFO", logger="skfusion"):
        LLMLayerEmbedder(folder(), memory=tmp_path).fit_transform(["good", "bad"])
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "loading" in said and "on cpu in float32" in said
    assert "computed 2 texts" in said and "stored 2 texts" in said and str(tmp_path) in said
    caplog.clear()
    with caplog.at_level("INFO", logger="skfusion"):
        LLMLayerEmbedder(folder(), memory=tmp_path).fit_transform(["good", "bad"])
    assert not caplog.records


@pytest.mark.skipif(
    not hasattr(BaseEstimator, "_get_fitted_attr_html"),
    reason="this scikit-learn shows no fitted attributes",
)
def test_html_shows_layers_poolings_weights_and_counts(folder, texts):
    embedder = LLMLayerEmbedder(folder(), layer="blend", pooling=["mean", "max"])
    union = EmbedderUnion([("tiny", embedder)])
    union.fit(texts, [i % 2 for i in range(len(texts))])
    shown = union._repr_html_()
    for name in ("layers_", "poolings_", "layer_weights_", "n_encoded_", "n_found_", "tiny"):
        assert f">{name}<" in shown, name


@pytest.mark.slow
def test_a_fresh_process_prints_nothing(tmp_path):
    import subprocess
    import sys

    model = str(tiny.save_folder(tmp_path / "model"))
    code = f"from skfusion import LLMLayerEmbedder as E; E({model!r}).fit_transform(['a', 'b'])"
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
