"""`EmbeddingBlocks` inside scikit-learn, numpy, joblib and pickle."""

from __future__ import annotations

import pickle
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    cross_val_predict,
    cross_validate,
    train_test_split,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import resample, shuffle

from skfusion._blocks import EmbeddingBlocks
from skfusion.fusion.transformer import FusionTransformer


class NeedsBlocks(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fails where the blocks were lost on the way."""

    def fit(self, X: Any, y: Any = None) -> NeedsBlocks:
        assert isinstance(X, EmbeddingBlocks) and X.names == ("a", "b")
        return self

    def transform(self, X: Any) -> Any:
        assert isinstance(X, EmbeddingBlocks) and X.block_sizes == {"a": 3, "b": 5}
        return X

    def __sklearn_is_fitted__(self) -> bool:
        return True


@pytest.fixture
def parts(rng):
    return rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 5)).astype(np.float32)


@pytest.fixture
def blocks(parts):
    return EmbeddingBlocks({"a": parts[0], "b": parts[1]})


@pytest.fixture
def labels():
    return np.arange(40) % 2


def test_it_looks_like_an_array(blocks, parts):
    assert (blocks.shape, blocks.ndim, blocks.size, len(blocks)) == ((40, 8), 2, 320, 40)
    assert blocks.dtype == np.float32
    assert blocks.names == ("a", "b")
    assert blocks.block_sizes == {"a": 3, "b": 5}
    assert blocks.slices == {"a": slice(0, 3), "b": slice(3, 8)}
    np.testing.assert_array_equal(blocks, np.hstack(parts))
    np.testing.assert_array_equal(np.stack(list(blocks)), np.hstack(parts))


def test_construction_does_not_copy(parts, blocks):
    assert blocks.blocks["a"] is parts[0]
    assert blocks[5:].blocks["b"].base is parts[1]
    single = EmbeddingBlocks({"a": parts[0]})
    assert np.asarray(single) is parts[0]
    assert not np.may_share_memory(np.array(single), parts[0])


def test_array_protocol(blocks):
    assert np.asarray(blocks, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.array(blocks, copy=False)


@pytest.mark.parametrize(
    "rows",
    [
        slice(2, 9, 3),
        slice(None),
        [3, 1, 1],
        np.array([-1, 0]),
        np.arange(40) > 30,
        [],
        np.zeros(40, dtype=bool),
        [True] * 40,
        pd.Series([4, 5]),
        range(3),
    ],
    ids=str,
)
def test_taking_rows_keeps_blocks(blocks, rows):
    expected = np.asarray(blocks)[np.asarray(rows, dtype=int) if len_zero(rows) else rows]
    for taken in (blocks[rows], blocks[rows, :], blocks[rows, ...]):
        assert isinstance(taken, EmbeddingBlocks)
        assert taken.block_sizes == blocks.block_sizes
        np.testing.assert_array_equal(taken, expected)


def len_zero(rows: Any) -> bool:
    return isinstance(rows, list) and not rows


def test_everything_else_is_a_plain_array(blocks, parts):
    plain = np.hstack(parts)
    mask = plain > 0
    for key in [3, -1, (slice(None), 2), (2, 3), ([0, 1], [1, 2]), (slice(3), slice(1, 4)), mask]:
        taken = blocks[key]
        assert not isinstance(taken, EmbeddingBlocks)
        np.testing.assert_array_equal(taken, plain[key])
    results = [blocks + 1, 2 * blocks, -blocks, blocks @ np.ones(8), np.exp(blocks), blocks > 0]
    results += [np.hstack([blocks, blocks]), np.take(blocks, [1], axis=0), np.mean(blocks, axis=0)]
    assert all(type(result) is np.ndarray for result in results)
    with pytest.raises(IndexError, match="row 40 is out of range"):
        blocks[40]
    with pytest.raises(TypeError):
        blocks += 1


def test_scikit_learn_keeps_the_boundaries(blocks, labels, tmp_path):
    pipe = Pipeline(
        [("blocks", NeedsBlocks()), ("fuse", FusionTransformer()), ("clf", LogisticRegression())],
        memory=str(tmp_path),
    )
    scores = cross_validate(pipe, blocks, labels, cv=StratifiedKFold(4), error_score="raise")
    assert len(scores["test_score"]) == 4
    assert cross_val_predict(pipe, blocks, labels, cv=4).shape == (40,)
    train, test, *_ = train_test_split(blocks, labels, stratify=labels, random_state=0)
    assert train.names == test.names == ("a", "b") and len(train) == 30
    assert shuffle(blocks, random_state=0).names == ("a", "b")
    assert resample(blocks, n_samples=50, random_state=0).shape == (50, 8)


def test_joblib_workers_keep_the_boundaries(blocks, labels):
    pipe = make_pipeline(NeedsBlocks(), FusionTransformer(), LogisticRegression())
    search = GridSearchCV(
        pipe, {"fusiontransformer__operator": ["concat", "sum"]}, n_jobs=2, error_score="raise"
    )
    assert search.fit(blocks, labels).predict(blocks).shape == (40,)


def test_estimators_of_arrays_see_an_array(blocks, labels, parts):
    plain = np.hstack(parts)
    scaled = StandardScaler().fit_transform(blocks)
    assert type(scaled) is np.ndarray
    np.testing.assert_array_equal(scaled, StandardScaler().fit_transform(plain))
    a, b = (LogisticRegression().fit(X, labels).coef_ for X in (blocks, plain))
    np.testing.assert_array_equal(a, b)
    assert FunctionTransformer().fit_transform(blocks) is blocks
    assert StandardScaler().set_output(transform="pandas").fit_transform(blocks).shape == (40, 8)


def test_pickle_and_hash(blocks, tmp_path):
    blocks = EmbeddingBlocks(blocks.blocks, feature_names=[f"f{i}" for i in range(8)])
    before = joblib.hash(blocks)
    np.asarray(blocks)
    assert joblib.hash(blocks) == before
    again = pickle.loads(pickle.dumps(blocks))
    assert again.block_sizes == blocks.block_sizes and again.feature_names == blocks.feature_names
    np.testing.assert_array_equal(again, blocks)
    joblib.dump(blocks, tmp_path / "blocks")
    mapped = joblib.load(tmp_path / "blocks", mmap_mode="r")
    np.testing.assert_array_equal(mapped[3:5], np.asarray(blocks)[3:5])
    assert clone(FunctionTransformer(kw_args={"blocks": blocks})).kw_args["blocks"] is not blocks


def test_select_blocks(parts):
    features = [f"a__{i}" for i in range(3)] + [f"b__{i}" for i in range(5)]
    blocks = EmbeddingBlocks(parts, ["a", "b"], feature_names=features)
    chosen = blocks.select(["b", "a"])
    assert chosen.names == ("b", "a")
    assert chosen.feature_names == tuple(features[3:] + features[:3])
    np.testing.assert_array_equal(chosen, np.hstack(parts[::-1]))
    assert blocks.select(["b"])[:2].feature_names == tuple(features[3:])
    with pytest.raises(ValueError, match=r"no block 'c'. Blocks: a, b"):
        blocks.select(["c"])


def test_sparse_blocks_become_dense_only_when_asked(parts):
    matrix = sparse.random(40, 6, density=0.3, random_state=0, format="csc")
    blocks = EmbeddingBlocks({"tfidf": matrix, "b": parts[1]})
    assert sparse.issparse(blocks[3:9].blocks["tfidf"])
    assert blocks.dtype == np.float64
    expected = np.hstack([matrix.toarray(), parts[1]])
    np.testing.assert_array_equal(blocks, expected)
    np.testing.assert_array_equal(blocks[[4, 2]], expected[[4, 2]])
    np.testing.assert_array_equal(blocks[4], expected[4])
    np.testing.assert_array_equal(FusionTransformer(scale=None).fit_transform(blocks), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "one at least"),
        (({"a": np.zeros(3)},), r"'a' must be 2-D, got shape \(3,\)"),
        (({"a": np.zeros((3, 1)), "b": np.zeros((2, 1))},), "same rows, got a: 3, b: 2"),
        (({"": np.zeros((3, 1))},), "'' must be a non-empty str"),
        (([np.zeros((3, 1))] * 2, ["a", "a"]), "must be different, got a, a"),
        (([np.zeros((3, 1))] * 2, ["a"]), "1 names for 2 blocks"),
        (({"a": np.zeros((3, 1))}, ["a"]), "given twice"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        EmbeddingBlocks(*arguments)


def test_wrong_number_of_feature_names():
    with pytest.raises(ValueError, match="1 feature_names for 2 columns"):
        EmbeddingBlocks([np.zeros((3, 2))], feature_names=["x"])
