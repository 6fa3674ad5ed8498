"""`CallableEmbedder`: each text once, in the same store as language models."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from _support.tiny import tiny_texts
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skfusion import (
    CallableEmbedder,
    EmbedderUnion,
    FusionTransformer,
    LLMLayerEmbedder,
    StoreWarning,
    VectorStore,
    load,
    save,
)

TEXTS = tiny_texts(30)


def letters(texts):
    """Counts of five letters."""
    return np.array([[text.count(letter) / 3 for letter in "aeiou"] for text in texts])


class Counting:
    """Counts what it is asked for, and cannot be copied."""

    def __init__(self, fail_at=None):
        self.calls, self.fail_at = [], fail_at

    def __call__(self, texts):
        if self.fail_at is not None and len(self.calls) == self.fail_at:
            raise ConnectionError("the server is away")
        self.calls.append(list(texts))
        return letters(texts)

    def __deepcopy__(self, memo):
        raise AssertionError("it may be a model")

    @property
    def texts(self):
        return [text for call in self.calls for text in call]


def test_each_text_is_computed_once(tmp_path):
    encode = Counting()
    embedder = CallableEmbedder(encode, "letters", batch_size=4, memory=tmp_path)
    X = embedder.fit_transform([*TEXTS, *TEXTS])
    expected = letters([*TEXTS, *TEXTS])
    np.testing.assert_allclose(X, expected, rtol=1e-3)
    assert X.dtype == np.float32 and X.flags.c_contiguous
    assert sorted(encode.texts) == sorted(set(TEXTS))
    assert max(map(len, encode.calls)) == 4
    assert (embedder.n_encoded_, embedder.n_found_) == (len(set(TEXTS)), 0)
    other = CallableEmbedder(Counting(), "letters", memory=tmp_path)
    np.testing.assert_array_equal(other.fit_transform([*TEXTS, *TEXTS]), X)
    assert not other.encode.calls and other.n_found_ == len(set(TEXTS))
    assert embedder.store_.info()["models"][0]["model"] == "letters"


def test_a_search_and_its_clones_compute_nothing_again(tmp_path):
    encode = Counting()
    pipe = make_pipeline(
        CallableEmbedder(encode, "letters", memory=tmp_path), LogisticRegression()
    )
    grid = {"callableembedder__normalize": [True, False], "logisticregression__C": [1, 10]}
    search = GridSearchCV(pipe, grid, cv=3).fit(TEXTS, [len(t) % 2 for t in TEXTS])
    assert sorted(encode.texts) == sorted(set(TEXTS))
    assert search.best_estimator_[0].encode is encode


@pytest.mark.parametrize("change", [{"name": "other"}, {"version": 2}])
def test_another_name_or_version_is_another_model(tmp_path, change):
    first = CallableEmbedder(letters, "letters", 1, memory=tmp_path).fit(TEXTS)
    second = clone(first).set_params(encode=lambda texts: 2 * letters(texts), **change)
    np.testing.assert_allclose(second.fit_transform(TEXTS), 2 * first.transform(TEXTS), rtol=1e-3)


def test_what_broke_off_goes_on(tmp_path):
    embedder = CallableEmbedder(Counting(fail_at=4), "letters", batch_size=5, memory=tmp_path)
    with pytest.raises(ConnectionError):
        embedder.fit_transform(TEXTS)
    done = set(embedder.encode.texts)
    again = clone(embedder).set_params(encode=Counting())
    np.testing.assert_allclose(again.fit_transform(TEXTS), letters(TEXTS), rtol=1e-3)
    assert len(done) >= 10
    assert sorted(again.encode.texts) == sorted(set(TEXTS) - done)


def test_several_writers_at_once(tmp_path):
    def run(part):
        embedder = CallableEmbedder(letters, "letters", batch_size=2, memory=tmp_path)
        return embedder.fit_transform(part)

    found = Parallel(n_jobs=4, backend="threading")(delayed(run)(TEXTS) for _ in range(4))
    for X in found:
        np.testing.assert_array_equal(X, found[0])
    assert VectorStore(tmp_path).verify()["damaged"] == []


def test_nothing_is_kept_where_nothing_shall_be(tmp_path):
    encode = Counting()
    embedder = CallableEmbedder(encode, "letters", memory=False).fit(["a"])
    embedder.transform(["a", "b"])
    embedder.transform(["a", "b"])
    assert encode.texts == ["a", "a", "b", "a", "b"]


def test_a_store_that_cannot_be_written_only_warns(tmp_path):
    (tmp_path / "file").write_text("no folder")
    embedder = CallableEmbedder(letters, "letters", memory=tmp_path / "file")
    with pytest.warns(StoreWarning, match="cannot be stored"):
        X = embedder.fit_transform(TEXTS)
    np.testing.assert_allclose(X, letters(TEXTS), rtol=1e-3)


def test_it_is_a_block_like_others(folder, tmp_path):
    union = EmbedderUnion(
        [("tiny", LLMLayerEmbedder(folder())), ("letters", CallableEmbedder(letters, "letters"))],
        memory=tmp_path,
    )
    blocks = union.fit_transform(TEXTS)
    assert blocks.block_sizes == {"tiny": 16, "letters": 5}
    assert union.embedders_[1][1].memory == tmp_path
    assert len(VectorStore(tmp_path).info()["models"]) == 2
    assert list(union.get_feature_names_out())[-1] == "letters__letters_4"
    pipe = make_pipeline(union, FusionTransformer("sum", projection="random"))
    assert pipe.fit_transform(TEXTS).shape == (30, 5)


def test_frames_pickles_and_saving(tmp_path):
    embedder = CallableEmbedder(letters, "letters").set_output(transform="pandas").fit(TEXTS)
    frame = embedder.transform(TEXTS)
    assert list(frame.columns) == [f"letters_{i}" for i in range(5)]
    again = pickle.loads(pickle.dumps(embedder))
    np.testing.assert_array_equal(again.transform(TEXTS), frame)
    save(embedder, tmp_path / "model")
    with pytest.raises(ValueError, match=r"trusted=\[letters\]"):
        load(tmp_path / "model")
    loaded = load(tmp_path / "model", trusted=[letters])
    assert loaded.memory is False
    np.testing.assert_array_equal(loaded.transform(TEXTS), frame)


def wrong(value):
    return lambda texts: value if not callable(value) else value(texts)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"encode": wrong([1.0])}, ValueError, r"shape \(n_texts, n_features\).*shape \(1,\)"),
        ({"encode": wrong(np.ones((2, 3)))}, ValueError, r"shape \(2, 3\)"),
        ({"encode": wrong([["a"]])}, ValueError, "dtype <U1"),
        ({"encode": wrong(np.ones((1, 0)))}, ValueError, "0 values"),
        ({"encode": wrong([[np.nan]])}, ValueError, "position 0 .* not finite"),
        ({"encode": 3}, ValueError, "'encode' parameter"),
        ({"name": ""}, ValueError, "names nothing"),
        ({"version": 1.5}, ValueError, "'version' parameter"),
        ({"batch_size": 0}, ValueError, "'batch_size' parameter"),
        ({"memory": VectorStore(dtype="int8")}, ValueError, "dtype must be one of"),
    ],
)
def test_what_is_wrong_is_said(params, error, message):
    embedder = CallableEmbedder(letters, "letters").set_params(**params)
    with pytest.raises(error, match=message):
        embedder.fit(["a text"])


def test_another_width_and_a_bad_text_are_said_and_what_was_done_is_kept(tmp_path):
    embedder = CallableEmbedder(letters, "letters", batch_size=2, memory=tmp_path).fit(TEXTS)
    embedder.set_params(encode=lambda texts: np.ones((len(texts), 3)))
    with pytest.raises(ValueError, match=r"3 values, and those stored .* have 5"):
        embedder.transform(TEXTS)
    bad = next(text for text in TEXTS[4:] if text)
    embedder.set_params(encode=lambda ts: letters(ts) + [[np.inf if t == bad else 0] for t in ts])
    with pytest.raises(ValueError, match="not finite"):
        embedder.transform(TEXTS)
    stored = embedder.store_.info()["n_texts"]
    assert TEXTS.index(bad) - 2 <= stored < len(set(TEXTS))
    embedder.set_params(encode=letters)
    np.testing.assert_allclose(embedder.transform(TEXTS), letters(TEXTS), rtol=1e-3)
