"""What `LLMLayerEmbedder` promises, on tiny models."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import json
import shutil
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import polars as pl
import psutil
import pyarrow as pa
import pytest
import torch
from _support import tiny
from _support.doubles import CountingEmbedder, probed, read_log, stub
from _support.processes import run_python
from _support.tiny import tiny_texts
from sklearn.base import clone

from skfusion import (
    Backbone,
    LLMLayerEmbedder,
    StoreWarning,
    TruncationWarning,
    VectorStore,
)
from skfusion.embed import loading

FOUR = ["good film", "näïve \N{GRINNING FACE}", "", "two"]


@pytest.fixture
def model(tmp_path) -> str:
    """A folder of this test alone, whose log counts."""
    return str(tiny.save_folder(tmp_path / "model"))


@pytest.fixture
def memory(tmp_path) -> Path:
    return tmp_path / "store"


def plain(texts: list[str], model: str, layer: int = -1) -> np.ndarray:
    """Mean pooling of each text alone, through transformers."""
    from transformers import AutoModel, AutoTokenizer

    body, tokenizer = AutoModel.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    rows = []
    for text in texts:
        with torch.no_grad():
            encoded = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            output = body(**encoded, output_hidden_states=True)
        rows.append(output.hidden_states[layer][0].mean(0).numpy())
    return np.stack(rows)


# --- output ---------------------------------------------------------------------------------


def test_output_form(folder, texts):
    embedder = LLMLayerEmbedder(folder(), layer=[3, 0.4], pooling=["last", "mean"])
    X = embedder.fit_transform(texts)
    assert X.shape == (len(texts), 4 * tiny.WIDTH)
    assert X.dtype == np.float32 and X.flags.c_contiguous and np.isfinite(X).all()
    assert embedder.layers_ == [3, 1] and embedder.poolings_ == ["last", "mean"]
    assert embedder.n_layers_ == tiny.DEPTH and embedder.hidden_size_ == tiny.WIDTH
    names = ["layer3_last", "layer3_mean", "layer1_last", "layer1_mean"]
    assert list(embedder.output_indices_) == names
    for name, cut in embedder.output_indices_.items():
        layer, pooling = name.removeprefix("layer").split("_")
        one = LLMLayerEmbedder(folder(), layer=int(layer), pooling=pooling).fit(texts)
        np.testing.assert_array_equal(one.transform(texts), X[:, cut])
        expected = [f"{name}_{i}" for i in range(tiny.WIDTH)]
        assert embedder.get_feature_names_out()[cut].tolist() == expected


def test_default_is_exact_to_a_thousandth(folder, texts):
    X = LLMLayerEmbedder(folder()).fit_transform(texts)
    expected = plain(texts, folder())
    error = np.linalg.norm(X - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < 1.1e-3


def test_order_duplicates_and_batches_do_not_matter(folder, texts, rng):
    X = LLMLayerEmbedder(folder(), batch_tokens=1000).fit_transform(texts)
    mixed = rng.integers(len(texts), size=40)
    other = LLMLayerEmbedder(folder(), batch_tokens=7, memory=None, prompt=None).fit(texts)
    other.store_.clear()
    made = other.transform([texts[i] for i in mixed])
    np.testing.assert_allclose(made, X[mixed], atol=2e-3)
    memory = VectorStore(dtype="float32")
    exact = [LLMLayerEmbedder(folder(), batch_tokens=n, memory=memory) for n in (7, 999)]
    one = exact[0].fit_transform(texts)
    exact[1].fit(texts).store_.clear()
    np.testing.assert_allclose(exact[1].transform(texts), one, atol=1e-5)


def test_normalize(folder, texts):
    embedder = LLMLayerEmbedder(folder(), layer=[1, 2], normalize=True)
    X = embedder.fit_transform(texts).reshape(-1, tiny.WIDTH)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, rtol=1e-5)
    zero = LLMLayerEmbedder(stub(lambda k, s, m: s * 0), normalize=True)
    assert not zero.fit_transform(["abc"]).any()


def test_set_output(folder, texts):
    X = LLMLayerEmbedder(folder(), layer=1).fit_transform(texts)
    series = pd.Series(texts, index=range(100, 100 + len(texts)))
    frame = (
        LLMLayerEmbedder(folder(), layer=1).set_output(transform="pandas").fit_transform(series)
    )
    assert frame.index.equals(series.index)
    assert frame.columns[0] == "layer1_mean_0"
    np.testing.assert_array_equal(frame.to_numpy(), X)
    frame = LLMLayerEmbedder(folder(), layer=1).set_output(transform="polars")
    np.testing.assert_array_equal(frame.fit_transform(pl.Series(texts)).to_numpy(), X)


def test_every_container_gives_the_same_bits_from_one_store(model):
    containers = [
        FOUR,
        tuple(FOUR),
        np.array(FOUR),
        np.array(FOUR, dtype=object),
        np.array(FOUR, dtype=np.dtypes.StringDType()),
        pd.Series(FOUR),
        pd.DataFrame({"t": FOUR}),
        pl.Series(FOUR),
        pl.DataFrame({"t": FOUR}),
        pa.array(FOUR),
        pa.chunked_array([FOUR]),
    ]
    rows = [CountingEmbedder(model).fit_transform(X) for X in containers]
    assert all((row == rows[0]).all() for row in rows)
    assert read_log(model) == (1, 4)


def test_empty_inputs(folder):
    embedder = LLMLayerEmbedder(folder())
    with pytest.raises(ValueError, match="0 sample"):
        embedder.fit([])
    assert embedder.fit(["a"]).transform([]).shape == (0, tiny.WIDTH)


@pytest.mark.parametrize("kind", tiny.HOOKED)
def test_a_text_without_tokens_is_the_same_alone_and_in_a_batch(folder, kind):
    path = folder(kind, ends=False)
    embedder = LLMLayerEmbedder(path, pooling=["mean", "last", "mean_no_first"])
    alone = embedder.fit_transform([""])
    embedder.store_.clear()
    batch = embedder.transform(["good film", "", "a very dull plot"])
    np.testing.assert_allclose(batch[1], alone[0], atol=1e-6)
    start = LLMLayerEmbedder(folder(kind, ends=False), pooling="mean").fit_transform(["<s>"])
    np.testing.assert_allclose(alone[0, : tiny.WIDTH], start[0], atol=1e-6)


def test_missing(folder):
    X = ["a", None]
    with pytest.raises(ValueError, match="position 1"):
        LLMLayerEmbedder(folder()).fit(X)
    embedder = LLMLayerEmbedder(folder(), missing="empty")
    np.testing.assert_array_equal(embedder.fit_transform(X), embedder.transform(["a", ""]))
    assert embedder.__sklearn_tags__().input_tags.allow_nan


# --- parameters -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 4}, ["layer=4", "-4 to 3"]),
        ({"layer": -5}, ["layer=-5", "-4 to 3"]),
        ({"layer": 0.0}, ["0.0", "depths in (0, 1]"]),
        ({"layer": 1.5}, ["1.5"]),
        ({"layer": True}, ["True"]),
        ({"layer": [1, -3]}, ["layer 1 more than once"]),
        ({"layer": []}, ["empty"]),
        ({"layer": ["1"]}, ["'1'"]),
        ({"layer": "auto"}, ["requires y", "layer='mean'"]),
        ({"layer": 1, "pooling": "auto"}, ["requires y", "'auto'"]),
        ({"layer": "auto", "pooling": ["mean", "last"]}, ["one vector", "['mean', 'last']"]),
        ({"layer": [1, 2], "pooling": "auto"}, ["one vector", "[1, 2]"]),
        ({"layer": "mean", "pooling": "auto"}, ["one vector", "'mean'"]),
        ({"layer_criterion": "best"}, ["layer_criterion", "'logme'"]),
        ({"layer": "best"}, ["'best'"]),
        ({"pooling": "median"}, ["'median'"]),
        ({"pooling": ["mean", "mean"]}, ["mean", "different"]),
        ({"pooling": []}, ["[]"]),
        ({"pooling": ["mean", "x"]}, ["'x'", "weighted_mean"]),
        ({"max_length": 0}, ["max_length"]),
        ({"max_length": 100}, ["max_length=100", "64 positions"]),
        ({"device": "toaster"}, ["device", "toaster"]),
        ({"dtype": "int8"}, ["dtype", "int8", "bfloat16"]),
        ({"batch_tokens": 0}, ["batch_tokens"]),
        ({"batch_tokens": "many"}, ["batch_tokens"]),
        ({"memory": VectorStore(layers=[9])}, ["VectorStore(layers=...)", "layers=9"]),
        ({"memory": VectorStore(layers="some")}, ["VectorStore(layers=...)", "some"]),
        ({"memory": VectorStore(poolings=["x"])}, ["VectorStore(poolings=...)", "'x'"]),
        ({"memory": VectorStore(dtype="int8")}, ["VectorStore(dtype=...)", "int8"]),
        ({"missing": "drop"}, ["missing"]),
        ({"memory": 3}, ["memory"]),
        ({"model": 3}, ["model"]),
    ],
)
def test_wrong_parameters_are_said_in_fit(folder, options, words):
    embedder = LLMLayerEmbedder(**{"model": folder("bert"), **options})
    with pytest.raises(ValueError) as caught:
        embedder.fit(["a"])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "layers"),
    [
        (0, [0]),
        (-4, [0]),
        (3, [3]),
        (-1, [3]),
        (1.0, [3]),
        (0.5, [2]),
        (0.1, [0]),
        (np.int64(2), [2]),
    ],
)
def test_layers(folder, layer, layers):
    assert LLMLayerEmbedder(folder(), layer=layer).fit(["a"]).layers_ == layers


def test_a_longer_max_length_is_fine_for_rotary_positions(folder):
    LLMLayerEmbedder(folder("llama"), max_length=100).fit(["a"])


@pytest.mark.parametrize("kind", ["llama", "bert", "mpnet"])
def test_truncation_warns_once_a_call_and_is_counted(folder, kind):
    long = "good " * 100
    embedder = LLMLayerEmbedder(folder(kind), memory=None, prompt="x ").fit(["a"])
    embedder.store_.clear()
    with pytest.warns(TruncationWarning, match="2 of 3 texts .* were cut") as caught:
        embedder.transform([long, "a", long + "film"])
    assert len(caught) == 1
    assert embedder.n_truncated_ == 2
    assert embedder.transform(["a"]).shape[0] == 1
    assert embedder.n_truncated_ == 0
    embedder.transform([long])  # from the store: still counted
    assert embedder.n_truncated_ == 1


def test_a_warm_store_warns_of_cut_texts_once_a_process(model, memory, monkeypatch):
    long = "good " * 30
    with pytest.warns(TruncationWarning):
        LLMLayerEmbedder(model, max_length=9, memory=memory).fit_transform([long])
    monkeypatch.setattr("skfusion.embed.embedder._WARNED", set())
    with pytest.warns(TruncationWarning):
        LLMLayerEmbedder(model, max_length=9, memory=memory).fit_transform([long])
    LLMLayerEmbedder(model, max_length=9, memory=memory).fit_transform([long])


def test_max_length_cuts_where_the_tokenizer_cuts(folder):
    cut = LLMLayerEmbedder(folder(), max_length=4).fit(["a"])
    with pytest.warns(TruncationWarning):
        X = cut.transform(["good film plot scene"])
    np.testing.assert_allclose(X, cut.transform(["good film"]), atol=1e-6)


def test_exactly_the_limit_is_not_cut(folder):
    embedder = LLMLayerEmbedder(folder(), max_length=4).fit(["a"])
    embedder.transform(["good film"])
    assert embedder.n_truncated_ == 0


def test_prompt_stands_before_every_text(folder):
    X = LLMLayerEmbedder(folder(), prompt="good ").fit_transform(["film", "plot"])
    Y = LLMLayerEmbedder(folder()).fit_transform(["good film", "good plot"])
    np.testing.assert_array_equal(X, Y)


def test_no_pad_token(folder):
    path = folder("llama", pad=False)
    X = LLMLayerEmbedder(path).fit_transform(["good", "a very dull plot"])
    Y = LLMLayerEmbedder(folder("llama")).fit_transform(["good", "a very dull plot"])
    np.testing.assert_allclose(X, Y, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16, "float64", "auto"])
def test_dtypes(folder, texts, dtype):
    X = LLMLayerEmbedder(folder("bert"), dtype=dtype).fit_transform(texts)
    assert X.dtype == np.float32
    expected = LLMLayerEmbedder(folder("bert")).fit_transform(texts)
    error = np.linalg.norm(X - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < 0.05


# --- the store ------------------------------------------------------------------------------


def test_one_pass_serves_every_layer_and_pooling(model, texts):
    for layer in range(tiny.DEPTH + 1):
        for pooling in ("mean", "last", "max"):
            CountingEmbedder(model, layer=layer, pooling=pooling).fit_transform(texts)
    assert read_log(model) == (1, len(texts))


def test_cold_and_warm_give_the_same_bits(model, memory, texts):
    cold = LLMLayerEmbedder(model, memory=memory, pooling=["mean", "max"]).fit_transform(texts)
    warm = LLMLayerEmbedder(model, memory=memory, pooling=["mean", "max"]).fit_transform(texts)
    np.testing.assert_array_equal(cold, warm)


@pytest.mark.parametrize(
    ("options", "layers", "poolings"),
    [
        ({}, 4, 6),
        ({"layers": "requested"}, 1, 1),
        ({"layers": [0, 0.5]}, 3, 6),  # and the requested one
        ({"poolings": "requested"}, 4, 1),
        ({"poolings": ["mean", "max"]}, 4, 2),
    ],
)
def test_what_is_stored(model, texts, options, layers, poolings):
    embedder = LLMLayerEmbedder(model, memory=VectorStore(**options))
    embedder.fit_transform(texts)
    (info,) = embedder.store_.info()["models"]
    assert (len(info["layers"]), len(info["poolings"])) == (layers, poolings)
    assert info["model"] == model and info["n_texts"] == len(texts)


CHANGES = {
    "prompt": lambda m: {"prompt": "a "},
    "max_length": lambda m: {"max_length": 5},
    "dtype": lambda m: {"dtype": "float64"},
    "store dtype": lambda m: {"store": {"dtype": "float32"}},
    "attention": lambda m: {"model_kwargs": {"attn_implementation": "eager"}},
    "one weight": lambda m: _change_weight(m),
    "tokenizer": lambda m: _change_tokenizer(m),
    "another folder of that name": lambda m: _replace(m),
}


def in_store(memory: object, store: dict | None = None, **options: object) -> dict:
    """Options of an embedder, those in `store` being the store's."""
    return {"memory": VectorStore(memory, **store or {}), **options}


def _change_weight(model: str) -> dict:
    from safetensors.torch import load_file, save_file

    path = Path(model) / "model.safetensors"
    weights = load_file(path)
    weights["layers.0.mlp.down_proj.weight"][0, 0] += 1
    stat = path.stat()
    save_file(weights, path, metadata={"format": "pt"})
    assert path.stat().st_size == stat.st_size
    return {}


def _change_tokenizer(model: str) -> dict:
    tiny.make_tokenizer(ends=False).save_pretrained(model)
    return {}


def _replace(model: str) -> dict:
    shutil.rmtree(model)
    tiny.save_folder(Path(model), seed=1)
    return {}


@pytest.mark.filterwarnings("ignore::skfusion.TruncationWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_a_vector_never_returns_an_old_one(model, memory, texts, name):
    CountingEmbedder(model, memory=memory).fit_transform(texts)
    read_log(model)
    options = CHANGES[name](model)
    made = CountingEmbedder(model, **in_store(memory, **options)).fit_transform(texts)
    assert read_log(model) == (1, len(texts))
    fresh = LLMLayerEmbedder(model, **in_store(str(memory) + "-fresh", **options))
    np.testing.assert_allclose(made, fresh.fit_transform(texts), atol=1e-3)


def test_a_copy_under_another_name_is_the_same_model(model, memory, texts, tmp_path):
    X = LLMLayerEmbedder(model, memory=memory).fit_transform(texts)
    copy = str(shutil.copytree(model, tmp_path / "copy"))
    Y = CountingEmbedder(copy, memory=memory).fit_transform(texts)
    np.testing.assert_array_equal(X, Y)
    assert read_log(copy) == (0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_tokens": 11},
        {"device": "cpu"},
        {"device": torch.device("cpu")},
        {"device": "cpu:0"},
        {"verbose": 1},
        {"missing": "empty"},
        {"normalize": True},
        {"dtype": torch.float32},
        {"store": {"layers": "requested"}},
        {"model_kwargs": {}},
        {"prompt": ""},
        {"layer": 1, "pooling": "max"},
    ],
)
def test_what_changes_no_vector_computes_nothing(model, memory, texts, options):
    CountingEmbedder(model, memory=memory).fit_transform(texts)
    read_log(model)
    CountingEmbedder(model, **in_store(memory, **options)).fit_transform(texts)
    assert read_log(model) == (0, 0)


@pytest.fixture
def repo(tmp_path) -> Path:
    """Two commits of one id in the hub's cache."""
    repo = tmp_path / "hub" / "models--some--model"
    for name, seed in (("a" * 40, 0), ("b" * 40, 1)):
        tiny.save_folder(repo / "snapshots" / name, seed=seed)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    (repo / "refs" / "next").write_text("b" * 40)
    return repo


def test_revision_of_a_hub_model(tmp_path, memory, texts, repo):
    code = f"""
import json
from skfusion import LLMLayerEmbedder
made = {{}}
for revision in (None, "main", "{"a" * 40}", "next"):
    e = LLMLayerEmbedder("some/model", revision=revision, memory={str(memory)!r}).fit(["a"])
    made[str(revision)] = e.store_._fingerprint, e.transform(["good"])[0].tolist()
print(json.dumps(made))
"""
    env = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    made = json.loads(run_python(code, **env))
    assert made["None"] == made["main"] == made["a" * 40]
    assert made["next"][0] != made["main"][0] and made["next"][1] != made["main"][1]
    X = LLMLayerEmbedder(repo / "snapshots" / ("b" * 40)).fit_transform(["good"])
    np.testing.assert_allclose(X[0], made["next"][1], atol=1e-6)


@pytest.mark.slow
def test_a_fitted_hub_model_stays_at_its_commit(tmp_path, repo):
    env = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    path = str(tmp_path / "fitted.pickle")
    code = f"""
import joblib
from skfusion import LLMLayerEmbedder
joblib.dump(LLMLayerEmbedder("some/model", memory={str(tmp_path / "s")!r}).fit(["a"]), {path!r})
"""
    run_python(code, **env)
    (repo / "refs" / "main").write_text("b" * 40)
    code = f"import joblib; print(joblib.load({path!r}).transform(['good'])[0].tolist())"
    made = json.loads(run_python(code, **env))
    X = LLMLayerEmbedder(repo / "snapshots" / ("a" * 40)).fit_transform(["good"])
    np.testing.assert_allclose(X[0], made, atol=1e-6)


def test_a_fitted_state_says_neither_what_is_opened_nor_where_is_written(
    model, memory, texts, tmp_path
):
    embedder = LLMLayerEmbedder(model, memory=memory)
    X = embedder.fit_transform(texts)
    assert "store_" not in embedder.__getstate__()
    folder = embedder.store_._folder()
    forged = dataclasses.replace(embedder._spec, identity=f"folder:../../{tmp_path}", model="/x")
    embedder._spec = forged
    assert embedder.store_._folder().parent == folder.parent == embedder.store_._root()
    with pytest.raises(ValueError, match="changed since fit"):
        embedder.transform(texts)
    # What is opened are the parameters: a folder of the same content will do wherever it is.
    moved = LLMLayerEmbedder(model, memory=tmp_path / "other").fit(texts)
    moved.set_params(model=shutil.move(model, tmp_path / "moved"))
    np.testing.assert_array_equal(moved.transform(texts), X)
    moved.set_params(memory=tmp_path / "third")
    assert moved.store_.info()["n_texts"] == 0


def test_a_folder_that_changes_between_fit_and_transform(model, texts):
    embedder = LLMLayerEmbedder(model).fit(texts)
    _change_weight(model)
    with pytest.raises(ValueError, match="changed since fit"):
        embedder.transform(texts)


def test_parameters_set_after_fit_wait_for_the_next_fit(model, memory, texts):
    embedder = LLMLayerEmbedder(model, memory=memory).fit(texts)
    embedder.set_params(prompt="a very ", layer=1, pooling="max", dtype="float64")
    X = embedder.transform(texts)
    Y = LLMLayerEmbedder(model, memory=memory).fit_transform(texts)
    np.testing.assert_array_equal(X, Y)
    Z = LLMLayerEmbedder(model, memory=memory, prompt="a very ", layer=1, pooling="max")
    np.testing.assert_allclose(embedder.fit_transform(texts), Z.fit_transform(texts), atol=1e-2)


def test_memory_forms_share_a_location(model, memory, texts):
    CountingEmbedder(model, memory=memory).fit_transform(texts)
    read_log(model)
    for form in (str(memory), joblib.Memory(memory, verbose=0), VectorStore(memory)):
        CountingEmbedder(model, memory=form).fit_transform(texts)
    assert read_log(model) == (0, 0)
    joblib.Memory(memory, verbose=0).clear(warn=False)


def test_size_limit_holds_after_every_call(model, memory):
    limit = 60_000
    store = VectorStore(memory, size_limit=limit)
    for i in range(0, 60, 10):
        X = LLMLayerEmbedder(model, memory=store).fit_transform(tiny_texts(60)[i : i + 10])
        assert np.isfinite(X).all()
        assert 0 < store.info()["n_bytes"] <= limit


def test_a_path_that_is_a_file(model, memory, texts):
    memory.write_text("not a folder")
    embedder = LLMLayerEmbedder(model, memory=memory).fit(texts)
    with pytest.warns(StoreWarning, match="cannot be stored") as caught:
        X = embedder.transform(texts)
    assert len(caught) == 1
    np.testing.assert_array_equal(X, LLMLayerEmbedder(model).fit_transform(texts))
    assert embedder.store_.info()["n_texts"] == 0


def test_a_store_that_cannot_be_written_is_still_read(model, memory, texts, monkeypatch):
    LLMLayerEmbedder(model, memory=memory).fit_transform(texts[:7])

    def refuse(*_, **__):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr("skfusion.embed.shards.write_shard", refuse)
    embedder = CountingEmbedder(model, memory=memory).fit(texts)
    with pytest.warns(StoreWarning) as caught:
        X = embedder.transform(texts)
    assert len(caught) == 1
    assert read_log(model) == (1, len(texts) - 7)
    monkeypatch.undo()
    np.testing.assert_array_equal(X, LLMLayerEmbedder(model).fit_transform(texts))


def test_a_pass_that_stops_half_way_resumes(model, memory, monkeypatch):
    texts = tiny_texts(60)
    monkeypatch.setattr("skfusion.embed.store._FLUSH_BYTES", 1)
    embedder = CountingEmbedder(model, memory=memory, batch_tokens=40).fit(texts)
    body = embedder._load()._body
    left = [5]

    def interrupt(*_):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    handle = body.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        embedder.transform(texts)
    handle.remove()
    _, before = read_log(model)
    embedder.transform(texts)
    _, after = read_log(model)
    assert 0 < after < len(texts)
    assert len(texts) <= before + after <= len(texts) + 40  # the interrupted batch, once more


# --- arguments for from_pretrained ----------------------------------------------------------


class FourBits:
    """Like a quantisation config: it can say in plain values what it is."""

    def to_dict(self) -> dict:
        return {"bits": 4, "dtype": torch.float16, "skip": ("lm_head",)}


def test_model_kwargs_reach_the_model(model):
    for attention in ("eager", "sdpa"):
        embedder = LLMLayerEmbedder(model, model_kwargs={"attn_implementation": attention})
        body = embedder.fit(["a"])._load().model
        assert body.config._attn_implementation == attention
    assert clone(embedder).model_kwargs == {"attn_implementation": "sdpa"}
    embedder.set_params(model_kwargs=None)
    with pytest.raises(ValueError, match="changed since fit"):
        embedder.transform(["b"])


@pytest.mark.slow
def test_the_fingerprint_of_model_kwargs_is_the_same_in_every_process(folder):
    code = f"""
import torch
from skfusion import LLMLayerEmbedder
{inspect.getsource(FourBits)}
kwargs = {{"quantization_config": FourBits(), "attn_implementation": "eager"}}
e = LLMLayerEmbedder({folder()!r}, model_kwargs=kwargs).fit(["a"])
print(e.store_._fingerprint)
"""
    kwargs = {"attn_implementation": "eager", "quantization_config": FourBits()}
    own = LLMLayerEmbedder(folder(), model_kwargs=kwargs).fit(["a"])
    assert run_python(code).strip() == own.store_._fingerprint
    other = LLMLayerEmbedder(folder(), model_kwargs={"attn_implementation": "eager"}).fit(["a"])
    assert other.store_._fingerprint != own.store_._fingerprint
    json.dumps(own._spec.model_kwargs)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"torch_dtype": "float16"}, "'torch_dtype'.*the parameter dtype"),
        ({"revision": "x"}, "the parameter revision"),
        ({"trust_remote_code": True}, "the parameter trust_remote_code"),
        ({"device_map": "auto"}, "the parameter device"),
        ({"token": "secret"}, "HF_TOKEN"),
        ({"weights_only": False}, "Backbone"),
        ({"attn_implementation": "some/kernel"}, "runs code from the hub"),
    ],
)
def test_model_kwargs_that_are_set_elsewhere_are_refused(folder, kwargs, words):
    with pytest.raises(ValueError, match=words):
        LLMLayerEmbedder(folder(), model_kwargs=kwargs).fit(["a"])


@pytest.mark.parametrize("value", [object(), FourBits, torch.zeros(1), {1: [print]}])
def test_model_kwargs_without_a_stable_description_are_refused(folder, value):
    with pytest.raises(TypeError, match=r"model_kwargs\['x'\].*to_dict"):
        LLMLayerEmbedder(folder(), model_kwargs={"x": value}).fit(["a"])


# --- errors in a pass -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, 16])
def test_out_of_memory_halves_the_batch(n):
    texts = tiny_texts(n)
    small = stub(max_rows=4)
    X = LLMLayerEmbedder(small, batch_tokens=10**6).fit_transform(texts)
    assert small.model.failed <= 2
    np.testing.assert_array_equal(X, LLMLayerEmbedder(stub()).fit_transform(texts))


def test_out_of_memory_with_one_text_passes_through():
    with pytest.raises(torch.OutOfMemoryError):
        LLMLayerEmbedder(stub(max_rows=0)).fit_transform(["abc"])


def test_other_errors_pass_through():
    def fail(k, state, mask):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        LLMLayerEmbedder(stub(fail)).fit_transform(["abc"])


def test_not_finite_at_a_real_token_names_the_text_and_stores_the_others(memory):
    def spoil(k, state, mask):
        # "zzz" is the only text with three tokens of id 19.
        bad = (state[..., 0] == (19 + 10 * k)).all(dim=1) if state.shape[1] == 3 else None
        return state if bad is None else state.masked_fill(bad[:, None, None], float("inf"))

    texts = ["abcdef", "zzz", "xyz", "ab"]
    embedder = LLMLayerEmbedder(stub(spoil), memory=memory, layer=1, batch_tokens=6).fit(texts)
    with pytest.raises(ValueError, match=r"layer 1 .* position 1 \('zzz'\), .*float32") as caught:
        embedder.transform(texts)
    assert "Nothing of it was stored" in str(caught.value)
    assert embedder.store_.info()["n_texts"] >= 1
    with pytest.raises(ValueError, match="position 0"):
        embedder.transform(["zzz"])
    assert np.isfinite(embedder.transform(["abcdef", "xyz", "ab"])).all()


def test_a_layer_that_nobody_asked_for_may_overflow(memory):
    def spoil(k, state, mask):
        return state * float("inf") if k == 1 else state

    model = stub(spoil)
    X = LLMLayerEmbedder(model, memory=memory).fit_transform(["abc"])
    assert np.isfinite(X).all()
    with pytest.raises(ValueError, match="layer 1"):
        LLMLayerEmbedder(model, memory=memory, layer=1).fit_transform(["abc"])


def test_float16_states_of_a_long_text_do_not_overflow():
    def fill(k, state, mask):
        return torch.full_like(state, 100.0, dtype=torch.float16)

    X = LLMLayerEmbedder(stub(fill), pooling=["mean", "weighted_mean"]).fit_transform(["a" * 1000])
    np.testing.assert_allclose(X, 100, rtol=1e-6)


def test_float16_store_says_what_does_not_fit():
    big = stub(lambda k, state, mask: state * 1e6)
    with pytest.raises(ValueError, match="stored as float16"):
        LLMLayerEmbedder(big, memory=VectorStore(dtype="float16")).fit_transform(["abc"])
    assert LLMLayerEmbedder(big).fit_transform(["abc"]).max() > 6e5


@pytest.mark.parametrize("name", ["no/such-model", "./no-such-folder", "no-such.gguf"])
def test_a_model_that_does_not_exist(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    embedder = clone(LLMLayerEmbedder(name)).set_params(layer=3)
    assert name in repr(embedder)
    with pytest.raises(OSError) as caught:
        embedder.fit(["a"])
    assert name in str(caught.value) and "Check" in str(caught.value)


def test_a_checkpoint_without_all_weights(model):
    from safetensors.torch import load_file, save_file

    path = Path(model) / "model.safetensors"
    weights = load_file(path)
    del weights["layers.1.mlp.down_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weights .*layers\.1\.mlp"):
        LLMLayerEmbedder(model).fit_transform(["a"])


def test_a_config_that_is_no_language_model(model):
    path = Path(model) / "config.json"
    path.write_text(json.dumps({"model_type": "resnet"}))
    with pytest.raises(ValueError, match="num_hidden_layers"):
        LLMLayerEmbedder(model).fit(["a"])


# --- memory ---------------------------------------------------------------------------------


def test_no_large_tensor_is_left(model):
    texts = tiny_texts(500)
    LLMLayerEmbedder(model).fit_transform(texts[:1])
    before = _live()
    LLMLayerEmbedder(model, memory=None).fit_transform(texts)
    left = _live() - before
    one_batch = 1024 * tiny.WIDTH * 4
    assert all(size <= one_batch for _, size in left)


def _live() -> set[tuple[int, int]]:
    gc.collect()
    tensors = [x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]
    return {(t.data_ptr(), t.nbytes) for t in tensors}


@pytest.mark.slow
def test_many_small_calls_do_not_grow(model, memory):
    texts = tiny_texts(40)
    embedder = LLMLayerEmbedder(model, memory=memory).fit(texts)
    process = psutil.Process()

    def calls(n: int) -> None:
        for i in range(n):
            embedder.transform(texts[i % 35 : i % 35 + 5])

    calls(200)
    gc.collect()
    before = process.memory_info().rss
    calls(2000)
    gc.collect()
    assert process.memory_info().rss - before < 20 * 2**20


# --- a model in memory ----------------------------------------------------------------------


class TestBackbone:
    def test_gives_the_same_as_its_folder(self, folder, texts):
        backbone = Backbone(tiny.make_model("llama"), tiny.make_tokenizer(side="left"))
        X = LLMLayerEmbedder(backbone, layer=2).fit_transform(texts)
        Y = LLMLayerEmbedder(folder(), layer=2).fit_transform(texts)
        np.testing.assert_allclose(X, Y, atol=1e-3)

    def test_is_shared_never_copied(self):
        import copy

        backbone = stub()
        embedder = LLMLayerEmbedder(backbone)
        assert clone(embedder).model is backbone
        assert copy.deepcopy(embedder).model is backbone
        assert copy.copy(backbone) is backbone

    def test_a_task_head_is_left_out(self, texts):
        from transformers import LlamaForCausalLM

        body = tiny.make_model("llama")
        with torch.random.fork_rng():
            model = LlamaForCausalLM(body.config).eval()
        model.model.load_state_dict(body.state_dict())
        X = LLMLayerEmbedder(Backbone(model, tiny.make_tokenizer())).fit_transform(texts)
        Y = LLMLayerEmbedder(Backbone(body, tiny.make_tokenizer())).fit_transform(texts)
        np.testing.assert_allclose(X, Y, atol=1e-3)

    def test_of_an_encoder_decoder_the_encoder_is_taken(self, texts):
        from transformers import T5Model

        encoder = tiny.make_model("t5")
        config = type(encoder.config)(**{**encoder.config.to_dict(), "is_encoder_decoder": True})
        with torch.random.fork_rng():
            model = T5Model(config).eval()
        model.load_state_dict(encoder.state_dict(), strict=False)
        X = LLMLayerEmbedder(Backbone(model, tiny.make_tokenizer())).fit_transform(texts)
        Y = LLMLayerEmbedder(Backbone(encoder, tiny.make_tokenizer())).fit_transform(texts)
        np.testing.assert_allclose(X, Y, atol=1e-3)

    def test_a_changed_weight_is_another_model(self, texts):
        backbone = Backbone(tiny.make_model("bert"), tiny.make_tokenizer())
        embedder = LLMLayerEmbedder(backbone)
        X = embedder.fit_transform(texts)
        identity = backbone._identity()
        with torch.no_grad():
            backbone.model.encoder.layer[2].output.dense.bias[0] += 1
        assert backbone._identity() != identity
        with pytest.raises(ValueError, match="fit again"):
            embedder.transform(["something new"])
        assert np.abs(embedder.fit_transform(texts) - X).max() > 0.01

    def test_a_changed_tokenizer_is_another_model(self):
        model = tiny.make_model("bert")
        one, two = (Backbone(model, tiny.make_tokenizer(ends=ends)) for ends in (True, False))
        assert one._identity() != two._identity()
        before = one._identity()
        one.tokenizer(["good film"], truncation=True, max_length=3, padding=True)
        assert one._identity() == before

    def test_is_neither_moved_nor_cast(self):
        backbone = Backbone(tiny.make_model("bert"), tiny.make_tokenizer())
        LLMLayerEmbedder(backbone, device="cpu", dtype="float32").fit(["a"])
        for options in (
            {"dtype": "float16"},
            {"device": "meta"},
            {"model_kwargs": {"attn_implementation": "eager"}},
        ):
            with pytest.raises(ValueError, match="Backbone"):
                LLMLayerEmbedder(backbone, **options).fit(["a"])

    def test_threads_take_turns(self):
        model = probed(stub())
        texts = tiny_texts(30)
        embedders = [LLMLayerEmbedder(model, layer=k).fit(texts) for k in (0, 1, 2)]
        passed = model.model.passed
        made = joblib.Parallel(n_jobs=3, backend="threading")(
            joblib.delayed(e.transform)(texts) for e in embedders
        )
        assert model.model.passed - passed == len(texts)
        for embedder, X in zip(embedders, made, strict=True):
            np.testing.assert_array_equal(embedder.transform(texts), X)


def test_the_model_used_last_stays_loaded_and_no_other(folder):
    loading.release()
    first, second = folder("llama"), folder("bert")
    for path in (first, first, second):
        LLMLayerEmbedder(path).fit(["a"])._load()
        assert len(loading._LOADED) == 1
    loading.release()
    assert not loading._LOADED


def test_silence(folder, texts, capfd):
    LLMLayerEmbedder(folder("gpt2")).fit_transform(texts)
    assert capfd.readouterr() == ("", "")


def test_progress_bars(model, texts, capfd):
    LLMLayerEmbedder(model, verbose=1).fit_transform(texts)
    assert f"{len(texts)}/{len(texts)}" in capfd.readouterr().err
    fresh = LLMLayerEmbedder(model, prompt="a ").precompute(texts)
    assert f"{len(texts)}/{len(texts)}" in capfd.readouterr().err
    assert fresh.precompute(texts, verbose=0).store_.info()["n_texts"] == len(texts)
    assert capfd.readouterr() == ("", "")


def test_no_warnings_by_default(folder, texts):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLMLayerEmbedder(folder("t5")).fit_transform(texts)
