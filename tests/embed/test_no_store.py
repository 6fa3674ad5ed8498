"""``memory=False`` and stores that are only read: nothing is written, and no more is computed."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from _support import tiny
from _support.doubles import CountingEmbedder, read_log
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from skfusion import (
    Backbone,
    EmbedderUnion,
    LLMLayerEmbedder,
    StoreWarning,
    VectorStore,
    load,
    save,
)
from skfusion.embed import session
from skfusion.embed.loading import release
from skfusion.embed.pooling import POOLINGS


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of all files."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def no_disk(monkeypatch):
    """The session's folder may not even be made."""

    def refuse(*_):
        raise AssertionError("a folder was asked for")

    monkeypatch.setattr(session, "_make", refuse)
    monkeypatch.setattr(session, "_OWN", {})


@pytest.mark.parametrize("layer", [1, [0, -1], "mean", "blend"])
def test_vectors_are_those_of_a_store_and_nothing_is_written(folder, tmp_path, texts, layer):
    y = np.arange(len(texts)) % 2
    stored = LLMLayerEmbedder(folder(), layer=layer, memory=tmp_path).fit(texts, y)
    expected = stored.transform(texts)
    before = contents(tmp_path)
    stored.set_params(memory=False)
    np.testing.assert_array_equal(stored.transform(texts), expected)
    assert (stored.n_encoded_, stored.n_found_) == (len(set(texts)), 0)
    again = clone(stored).fit(texts, y)
    np.testing.assert_allclose(again.transform(texts), expected, atol=1e-5)
    assert contents(tmp_path) == before
    info = stored.store_.info()
    assert (info["n_texts"], info["location"]) == (0, None)
    assert stored.store_.verify()["n_texts"] == 0
    stored.store_.clear()


def test_not_even_the_sessions_folder_is_made(folder, texts, no_disk):
    embedder = LLMLayerEmbedder(folder(), memory=False).fit(texts)
    embedder.transform(texts)
    embedder.precompute(texts)
    union = EmbedderUnion([("a", LLMLayerEmbedder(folder()))], memory=False)
    union.fit_transform(texts)
    assert union.embedders_[0][1].memory is False
    assert len(pickle.dumps(embedder)) < 100_000
    assert pickle.loads(pickle.dumps(embedder)).transform(texts).shape == (len(texts), 16)


def test_every_call_runs_its_texts_and_no_more(tmp_path):
    model = str(tiny.save_folder(tmp_path / "model"))
    embedder = CountingEmbedder(model, memory=False).fit(["a"])
    for _ in range(2):
        embedder.transform(["a", "b", "a"])
    assert read_log(embedder.model)[1] == 4


def test_only_what_is_asked_for_is_computed(folder, monkeypatch):
    whole = LLMLayerEmbedder(folder()).fit(["a"])._load()
    seen = []
    backbone = Backbone(whole.model, whole.tokenizer)
    hooks = [
        block.register_forward_hook(lambda *_, k=k: seen.append(k))
        for k, block in enumerate(backbone._blocks())
    ]
    for name in set(POOLINGS) - {"mean"}:
        monkeypatch.setitem(POOLINGS, name, None)
    embedder = LLMLayerEmbedder(backbone, layer=1, memory=False).fit(["a"])
    embedder.transform(["a"])
    seen.clear()
    embedder.transform(["good film"])
    assert seen == [0]
    for hook in hooks:
        hook.remove()


def test_models_that_serve_stay_loaded(tmp_path, folder, texts, caplog):
    release()
    union = EmbedderUnion(
        [(kind, LLMLayerEmbedder(folder(kind))) for kind in ("llama", "bert")], memory=False
    ).fit(texts)
    with caplog.at_level("INFO", logger="skfusion"):
        for _ in range(3):
            union.transform(texts[:2])
    loads = [record for record in caplog.records if record.getMessage().startswith("loading")]
    assert len(loads) <= 2


def test_a_store_that_is_only_read(folder, tmp_path, texts):
    embedder = LLMLayerEmbedder(folder(), layer=1, memory=tmp_path)
    expected = embedder.fit_transform(texts)
    before = contents(tmp_path)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    reader = clone(embedder).set_params(memory=VectorStore(tmp_path, mode="r"))
    np.testing.assert_array_equal(reader.fit_transform(texts), expected)
    assert reader.n_encoded_ == 0
    reader.transform([*texts, "new"])
    reader.transform(["new"])
    assert (reader.n_encoded_, reader.n_found_) == (1, 0)
    assert contents(tmp_path) == before
    assert reader.store_.info()["n_texts"] == len(set(texts))


def test_a_damaged_shard_is_left_as_it_is_by_a_reader(folder, tmp_path):
    embedder = LLMLayerEmbedder(folder(), memory=tmp_path)
    expected = embedder.fit_transform(["good"])
    (shard,) = (p for p in tmp_path.rglob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    embedder.set_params(memory=VectorStore(tmp_path, mode="r", poolings=["mean"]))
    with pytest.warns(StoreWarning, match="1 damaged"):
        np.testing.assert_allclose(embedder.transform(["good"]), expected, atol=1e-6)
    assert shard.read_bytes() == bytes(content)


def test_another_mode_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"mode must be 'rw' .* got 'w'"):
        LLMLayerEmbedder(folder(), memory=VectorStore(tmp_path, mode="w")).fit(["a"])
    with pytest.raises(ValueError, match="'memory' parameter"):
        LLMLayerEmbedder(folder(), memory=True).fit(["a"])


def test_a_loaded_pipeline_keeps_nothing_unless_told(folder, tmp_path, texts):
    store = tmp_path / "store"
    pipe = make_pipeline(LLMLayerEmbedder(folder(), memory=store), LogisticRegression())
    pipe.fit(texts, np.arange(len(texts)) % 2)
    save(pipe, tmp_path / "model")
    served, expected = load(tmp_path / "model"), pipe.predict_proba(texts)
    assert served[0].memory is False
    before = contents(store)
    np.testing.assert_allclose(served.predict_proba(texts), expected, atol=1e-6)
    served.predict(["one that is new"])
    assert contents(store) == before
    assert load(tmp_path / "model", memory="saved")[0].memory == store
    told = load(tmp_path / "model", memory=str(tmp_path / "other"))
    told.predict(["one that is new"])
    assert VectorStore(tmp_path / "other").info()["n_texts"] == 1


def test_a_recipe_is_fitted_again_with_the_store_it_was_saved_with(folder, tmp_path, texts):
    union = EmbedderUnion([("a", LLMLayerEmbedder(folder()))], memory=str(tmp_path / "store"))
    save(union.fit(texts), tmp_path / "model")
    served = load(tmp_path / "model")
    assert served.embedders_[0][1].memory is False
    assert clone(served).fit(texts).embedders_[0][1].memory == str(tmp_path / "store")


def test_an_estimate_before_the_work(folder, tmp_path):
    texts = [f"good film number {i}" for i in range(100)]
    embedder = LLMLayerEmbedder(folder(), memory=tmp_path).fit(texts)
    found = embedder.estimate([*texts, *texts])
    assert (found.n_texts, found.n_missing) == (100, 100)
    assert found.n_tokens == pytest.approx(embedder.count_tokens(texts).sum(), rel=0.1)
    assert found.seconds > 0
    assert embedder.store_.info()["n_texts"] == 32
    assert "100 different texts" in str(found) and "seconds" in str(found)
    embedder.transform(texts)
    again = embedder.estimate(texts)
    assert (again.n_missing, again.seconds) == (0, 0)
    stored = embedder.store_.info()["n_bytes"]
    assert stored / 3 < found.n_bytes < 3 * stored and "stored already" in str(again)
    nothing = embedder.set_params(memory=False).estimate(texts)
    assert (nothing.n_missing, nothing.n_bytes) == (100, 0)
    assert embedder.estimate(["one text"]).n_texts == 1
    assert embedder.estimate([]).seconds == 0
