from __future__ import annotations

import copy
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from _support import tiny
from _support.doubles import CountingEmbedder, read_log
from scipy import sparse
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfusion import EmbedderUnion, EmbeddingBlocks, LLMLayerEmbedder, VectorStore


#: Checks that the union may fail, each with its reason: none.
@pytest.fixture
def union(folder) -> EmbedderUnion:
    return EmbedderUnion(
        [
            ("one", LLMLayerEmbedder(folder("llama"), layer=2, pooling="last")),
            ("two", LLMLayerEmbedder(folder("bert"))),
        ]
    )


def test_blocks_are_what_the_embedders_give(union, texts):
    X = union.fit_transform(texts)
    assert isinstance(X, EmbeddingBlocks)
    assert X.names == ("one", "two") and X.dtype == np.float32
    for name, embedder in union.embedders:
        np.testing.assert_array_equal(X.blocks[name], clone(embedder).fit_transform(texts))
    assert union.output_indices_ == X.slices
    np.testing.assert_array_equal(np.asarray(union.transform(texts)), np.asarray(X))
    names = union.get_feature_names_out()
    assert names[0] == "one__layer2_last_0" and names[-1] == f"two__layer3_mean_{tiny.WIDTH - 1}"
    assert X.feature_names == tuple(names)


def test_fit_alone_knows_the_columns_and_loads_no_weights(union, texts, monkeypatch):
    monkeypatch.setattr(LLMLayerEmbedder, "_load", None)
    union.fit(texts)
    assert list(union.output_indices_) == ["one", "two"]
    assert len(union.get_feature_names_out()) == 2 * tiny.WIDTH


def test_several_layers_are_several_blocks(union, texts):
    union.set_params(one__layer=[0, 1], one__pooling=["mean", "max"])
    X = union.fit_transform(texts)
    assert X.names == (
        "one_layer0_mean",
        "one_layer0_max",
        "one_layer1_mean",
        "one_layer1_max",
        "two",
    )
    assert union.get_feature_names_out()[0] == "one_layer0_mean__layer0_mean_0"
    nested = EmbedderUnion([("deep", union), ("tfidf", TfidfVectorizer())])
    Y = nested.fit_transform(texts)
    assert Y.names[:2] == ("deep_one_layer0_mean", "deep_one_layer0_max")
    np.testing.assert_array_equal(np.asarray(Y)[:, : X.shape[1]], np.asarray(X))


def test_parameters(union):
    params = union.get_params()
    assert params["one__layer"] == 2 and params["two"] is union.embedders[1][1]
    union.set_params(one="drop", two__layer=1, memory="somewhere")
    assert union.embedders[0] == ("one", "drop") and union.get_params()["two__layer"] == 1
    copied = clone(union)
    assert copied.embedders[1][1] is not union.embedders[1][1]
    assert copied.get_params()["two__layer"] == 1


def test_fitting_changes_no_parameter(union, texts, tmp_path):
    union.set_params(memory=tmp_path, verbose=0)
    before = {name: repr(value) for name, value in union.get_params().items()}
    union.fit(texts).fit_transform(texts)
    assert {name: repr(value) for name, value in union.get_params().items()} == before
    assert not hasattr(union.embedders[0][1], "store_")


def test_memory_goes_to_every_embedder_that_has_none(folder, texts, tmp_path):
    own = VectorStore(tmp_path / "own")
    union = EmbedderUnion(
        [
            ("a", LLMLayerEmbedder(folder("llama"))),
            ("b", LLMLayerEmbedder(folder("bert"), memory=own)),
            ("c", make_pipeline(LLMLayerEmbedder(folder("gpt2")), StandardScaler())),
            ("d", TfidfVectorizer()),
        ],
        memory=tmp_path / "shared",
    )
    union.fit_transform(texts)
    assert len(own.info()["models"]) == 1
    assert len(VectorStore(tmp_path / "shared").info()["models"]) == 2


def test_other_transformers_of_texts(union, texts):
    union.set_params(two=make_pipeline(TfidfVectorizer(), TruncatedSVD(3, random_state=0)))
    X = union.fit_transform(texts)
    assert X.block_sizes == {"one": tiny.WIDTH, "two": 3}
    union.set_params(two=TfidfVectorizer())
    X = union.fit_transform(pd.DataFrame({"text": texts}))
    assert sparse.issparse(X.blocks["two"])
    assert union.get_feature_names_out()[tiny.WIDTH].startswith("two__")
    again = union.transform(pd.Series(texts))
    np.testing.assert_allclose(np.asarray(again), np.asarray(X))


class NoNames(BaseEstimator):
    """A transformer of texts that has neither feature names nor a fit_transform."""

    def fit(self, X, y=None, weight=None):
        self.weight_ = weight
        return self

    def transform(self, X, factor=1):
        return np.array([[len(text) * factor] for text in X], dtype=np.float64)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        return tags


def test_a_transformer_without_names(texts):
    union = EmbedderUnion([("length", NoNames())]).fit(texts)
    assert union.get_feature_names_out().tolist() == ["length__0"]
    assert union.fit_transform(texts).shape == (len(texts), 1)


def test_metadata_are_routed(texts):
    with config_context(enable_metadata_routing=True):
        inner = NoNames().set_fit_request(weight=True).set_transform_request(factor=True)
        union = EmbedderUnion([("length", inner), ("off", "drop")])
        X = union.fit_transform(texts, weight=3, factor=2)
        assert union.named_embedders_.length.weight_ == 3
        assert X[1][0] == 2 * len(texts[1])
        assert union.transform(texts, factor=5)[1][0] == 5 * len(texts[1])
        with pytest.raises(TypeError, match="unknown"):
            union.fit(texts, unknown=1)
    with pytest.raises(ValueError, match="metadata"):
        EmbedderUnion([("length", NoNames())]).fit(texts, weight=3)


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_set_output(union, texts, container):
    X = union.fit_transform(texts)
    index = range(50, 50 + len(texts))
    frame = union.set_output(transform=container).fit_transform(pd.Series(texts, index=index))
    assert list(frame.columns) == union.get_feature_names_out().tolist()
    np.testing.assert_array_equal(frame.to_numpy(), np.asarray(X))
    if container == "pandas":
        assert list(frame.index) == list(index)
    with config_context(transform_output=container):
        again = clone(union).fit_transform(texts)
        np.testing.assert_array_equal(again.to_numpy(), np.asarray(X))


@pytest.mark.parametrize(
    ("embedders", "error", "words"),
    [
        ([], ValueError, "Every embedder"),
        ([("a", "drop")], ValueError, "Every embedder"),
        ([("a", TfidfVectorizer()), ("a", TfidfVectorizer())], ValueError, "not unique"),
        ([("a__b", TfidfVectorizer())], ValueError, "__"),
        ([("memory", TfidfVectorizer())], ValueError, "conflict"),
        ([("a", LogisticRegression())], TypeError, "must be a transformer"),
        ([("a", "off")], TypeError, "'drop'"),
        (TfidfVectorizer(), ValueError, "embedders"),
    ],
)
def test_errors(embedders, error, words, texts):
    with pytest.raises(error, match=words):
        EmbedderUnion(embedders).fit(texts)


def test_blocks_whose_names_clash(folder, texts):
    union = EmbedderUnion(
        [
            ("a", LLMLayerEmbedder(folder(), layer=[1, 2])),
            ("a_layer1_mean", LLMLayerEmbedder(folder())),
        ]
    )
    with pytest.raises(ValueError, match="Two blocks would be named 'a_layer1_mean'"):
        union.fit(texts)


def test_copies_and_parallel_runs_agree(union, texts):
    X = np.asarray(union.fit_transform(texts))
    for other in (copy.deepcopy(union), pickle.loads(pickle.dumps(union))):
        np.testing.assert_array_equal(np.asarray(other.transform(texts)), X)
    assert len(pickle.dumps(union)) < 100_000
    both = clone(union).set_params(n_jobs=2)
    np.testing.assert_array_equal(np.asarray(both.fit_transform(texts)), X)
    with joblib.parallel_config(backend="threading"):
        np.testing.assert_array_equal(np.asarray(both.transform(texts[:3])), X[:3])


def test_in_scikit_learns_tools(union, texts):
    labels = np.arange(len(texts)) % 2
    pipe = make_pipeline(union, StandardScaler(), LogisticRegression())
    assert len(cross_validate(pipe, texts, labels, cv=2)["test_score"]) == 2
    assert cross_val_predict(pipe, texts, labels, cv=2, n_jobs=2).shape == (len(texts),)


def test_a_search_encodes_each_text_once_a_model(tmp_path, texts):
    models = [str(tiny.save_folder(tmp_path / kind, kind)) for kind in ("llama", "bert")]
    one, two = (CountingEmbedder(model) for model in models)
    union = EmbedderUnion([("one", one), ("two", two)], memory=tmp_path / "store")
    pipe = make_pipeline(union, LogisticRegression())
    grid = {
        "embedderunion__one__layer": [0, 1, -1],
        "embedderunion__one__pooling": ["mean", "last"],
        "embedderunion__two": ["drop", two],
    }
    labels = np.arange(len(texts)) % 2
    search = GridSearchCV(pipe, grid, cv=2, n_jobs=2).fit(texts, labels)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    for model in models:
        assert 0 < read_log(model)[1] <= 2 * len(texts)
