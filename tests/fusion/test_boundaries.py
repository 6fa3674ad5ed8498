"""Where blocks end: the same rule for the fusing transformer and for both heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.fixes import parse_version

from skfusion import (
    EmbeddingBlocks,
    FusionMLPClassifier,
    FusionMLPRegressor,
    FusionTransformer,
    ModelSubsetSearchCV,
)
from skfusion._boundaries import find_boundaries

NETWORK: dict[str, Any] = {
    "n_components": 4, "hidden_layer_sizes": (8, 4), "max_epochs": 1, "random_state": 0
}  # fmt: skip
HEADS = [FusionMLPClassifier("sum", **NETWORK), FusionMLPRegressor("sum", **NETWORK)]
ALL = pytest.mark.parametrize(
    "estimator", [FusionTransformer("sum"), *HEADS], ids=lambda e: type(e).__name__
)


@pytest.fixture
def blocks(rng):
    return EmbeddingBlocks({"a": rng.normal(size=(20, 4)), "b": rng.normal(size=(20, 5))})


@pytest.fixture
def y():
    return np.arange(20) % 2


def outputs(estimator: Any, X: Any) -> Any:
    for method in ("transform", "predict_proba", "predict"):
        if hasattr(estimator, method):
            return getattr(estimator, method)(X)
    raise AssertionError


# --- plain arrays -----------------------------------------------------------------------------


@ALL
def test_a_plain_array_is_refused(estimator, blocks, y):
    message = (
        r"plain array of 9 columns.*StandardScaler or ColumnTransformer.*scale='standard'.*"
        r"set_output\(transform='pandas'\).*block_sizes=\[\.\.\.\].*block_sizes='single'"
    )
    with pytest.raises(ValueError, match=message):
        clone(estimator).fit(np.asarray(blocks), y)
    if isinstance(estimator, FusionMLPClassifier):
        with pytest.raises(ValueError, match=message):
            clone(estimator).partial_fit(np.asarray(blocks), y, classes=[0, 1])
    for step in (StandardScaler(), ColumnTransformer([("all", "passthrough", slice(0, 9))])):
        with pytest.raises(ValueError, match=message):
            make_pipeline(step, clone(estimator)).fit(blocks, y)


@ALL
@pytest.mark.parametrize("sizes", [[4, 5], np.array([4, 5]), {"a": 4, "b": 5}], ids=str)
def test_block_sizes_say_where_blocks_are(estimator, sizes, blocks, y):
    expected = outputs(clone(estimator).fit(blocks, y), blocks)
    told = clone(estimator).set_params(block_sizes=sizes)
    plain = np.asarray(blocks)
    for X in (plain, plain.tolist(), blocks, pd.DataFrame(plain, columns=list("abcdefghi"))):
        np.testing.assert_allclose(outputs(told.fit(X, y), X), expected, atol=1e-6)
        assert list(told.block_indices_.values()) == [slice(0, 4), slice(4, 9)]
    single = told.set_params(block_sizes="single").fit(plain, y)
    assert single.block_indices_ == {"block0": slice(0, 9)}


@ALL
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([4, 4], r"block_sizes=\[4, 4\] add up to 8, but X has 9 columns"),
        ([9, 0], "must be a list of widths"),
        ([], "must be a list of widths"),
        ("one", "'block_sizes' parameter"),
    ],
)
def test_wrong_block_sizes_say_so(estimator, sizes, message, blocks, y):
    with pytest.raises(ValueError, match=message):
        clone(estimator).set_params(block_sizes=sizes).fit(np.asarray(blocks), y)


@ALL
def test_after_fit_a_plain_array_of_the_same_columns_will_do(estimator, blocks, y):
    fitted = clone(estimator).fit(blocks, y)
    np.testing.assert_array_equal(outputs(fitted, np.asarray(blocks)), outputs(fitted, blocks))


@ALL
def test_columns_without_a_block_are_refused(estimator, blocks, y):
    frame = pd.DataFrame(np.asarray(blocks)).add_prefix("x")
    for X in (frame, pl.from_pandas(frame)):
        with pytest.raises(ValueError, match=r"'x0'.*does not say to which block.*'single'"):
            clone(estimator).fit(X, y)


@pytest.mark.parametrize("head", HEADS, ids=lambda e: type(e).__name__)
def test_a_sparse_matrix_is_refused_as_everywhere(head, blocks, y):
    for sizes in (None, "single"):
        with pytest.raises(TypeError, match=r"[Ss]parse data was passed"):
            clone(head).set_params(block_sizes=sizes).fit(sparse.csr_array(np.asarray(blocks)), y)


# --- nested names -----------------------------------------------------------------------------


def union(*names: str) -> FeatureUnion:
    """Each block holds all columns, named ``block__column``."""
    return FeatureUnion(
        [(name, FunctionTransformer(feature_names_out="one-to-one")) for name in names]
    )


def container(name: str) -> Any:
    old = parse_version(sklearn.__version__) < parse_version("1.9")
    reason = "its FeatureUnion cannot join frames of equal column names"
    return pytest.param(name, marks=pytest.mark.skipif(name == "polars" and old, reason=reason))


@ALL
@pytest.mark.parametrize("library", [container("pandas"), container("polars")])
def test_a_column_transformer_keeps_inner_blocks(estimator, library, y, rng):
    """Also where two of its parts have blocks of one name, and behind a scaler."""
    X = pd.DataFrame(rng.normal(size=(20, 4)), columns=list("pqrs"))
    X = X if library == "pandas" else pl.from_pandas(X)
    parts = [("text", union("m", "n"), ["p", "q"]), ("title", union("m"), ["r", "s"])]
    pipe = make_pipeline(ColumnTransformer(parts), StandardScaler(), clone(estimator))
    pipe[:-1].set_output(transform=library)
    pipe.fit(X, y)
    assert pipe[-1].block_indices_ == {
        "text__m": slice(0, 2), "text__n": slice(2, 4), "title__m": slice(4, 6)
    }  # fmt: skip
    assert len(outputs(pipe, X)) == 20


def test_parts_of_a_column_transformer_that_are_no_blocks(y, rng):
    X = pd.DataFrame(rng.normal(size=(20, 3)), columns=list("pqr"))
    options = {"remainder": "passthrough"}
    inner = union("m", "n").set_output(transform="pandas")
    named = ColumnTransformer([("text", inner, ["p", "q"])], **options).set_output(
        transform="pandas"
    )
    fuse = FusionTransformer().fit(named.fit_transform(X), y)
    assert list(fuse.block_indices_) == ["text__m", "text__n", "remainder"]
    bare = clone(named).set_params(verbose_feature_names_out=False)
    with pytest.raises(ValueError, match="'r' of X does not say to which block"):
        FusionTransformer().fit(bare.fit_transform(X), y)
    blocks = bare.set_params(remainder="drop").fit_transform(X)
    assert list(FusionTransformer().fit(blocks, y).block_indices_) == ["m", "n"]


def test_unions_in_unions_keep_inner_blocks(rng):
    X = rng.normal(size=(10, 2))
    nested = FeatureUnion([("x", union("m", "n")), ("y", FeatureUnion([("x", union("m"))]))])
    frame = nested.set_output(transform="pandas").fit_transform(X)
    assert list(find_boundaries(frame)) == ["x__m", "x__n", "y__x__m"]


NAMES = st.lists(
    st.lists(st.sampled_from(["text", "a", "minilm", "a_layer1_mean", "b_"]), min_size=1).map(
        "__".join
    ),
    min_size=1,
    max_size=6,
    unique=True,
)


@settings(max_examples=100, deadline=None)
@given(NAMES, st.integers(1, 3))
def test_frames_of_blocks_have_the_blocks_that_they_were_made_of(names, width):
    """Or are refused, where one name begins another."""
    columns = [f"{name}__{i}" for name in names for i in range(width)]
    frame = pd.DataFrame(np.zeros((2, len(columns))), columns=columns)
    if any(name.startswith(f"{other}__") for name in names for other in names):
        with pytest.raises(ValueError, match="may be of block"):
            find_boundaries(frame)
    else:
        expected = {name: slice(i * width, (i + 1) * width) for i, name in enumerate(names)}
        assert find_boundaries(frame) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "some__token", "z"], r"'tfidf' are not adjacent.*such as 'tfidf__some__token'"),
        (["a", "zoo__z"], r"'tfidf__zoo__z' of X may be of block 'tfidf__zoo', or of .*'tfidf'"),
        (["__init__", "a"], r"'tfidf____init__' of X may be of"),
    ],
)
def test_words_that_look_like_blocks_are_refused(words, message):
    frame = pd.DataFrame(np.zeros((2, len(words))), columns=[f"tfidf__{word}" for word in words])
    with pytest.raises(ValueError, match=f"{message}.*last '__'.*rename.*block_sizes="):
        FusionTransformer().fit(frame)
    FusionTransformer(block_sizes="single").fit(frame)


def test_a_subset_search_knows_nested_blocks(y, rng):
    X = pd.DataFrame(
        rng.normal(size=(20, 4)),
        columns=["text__m__0", "text__m__1", "title__m__0", "title__m__1"],
    )
    search = ModelSubsetSearchCV(LogisticRegression(), cv=2, error_score="raise").fit(X, y)
    assert ("text__m", "title__m") in list(search.cv_results_["param_blocks"])
    assert search.predict(X).shape == (20,)
