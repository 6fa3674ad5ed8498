"""``layer="auto"``, ``pooling="auto"`` and ``layer="mean"`` on tiny models and stubs."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from _support import tiny
from _support.doubles import CountingEmbedder, planted, read_log, stub
from _support.tiny import letters, tiny_texts
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfusion import EmbedderUnion, LLMLayerEmbedder, StoreWarning, VectorStore
from skfusion.embed import embedder as embedder_module
from skfusion.linear.layer_scores import layer_scores

TEXTS = tiny_texts(40)
LABELS = np.array(["neg", "pos"])[[len(text) % 2 for text in TEXTS]]
ALL = range(tiny.DEPTH + 1)


@pytest.fixture
def model(tmp_path) -> str:
    """A folder of this test alone, whose log counts."""
    return str(tiny.save_folder(tmp_path / "model"))


def pipeline(embedder: Any) -> Any:
    return make_pipeline(embedder, StandardScaler(), LogisticRegression(C=0.1, max_iter=300))


# --- what is chosen -------------------------------------------------------------------------


def test_finds_the_layer_that_knows():
    texts, y = letters(60)
    embedder = LLMLayerEmbedder(stub(planted, depth=4), layer="auto").fit(texts, y)
    assert (embedder.layer_, embedder.pooling_) == (2, "mean")
    assert (embedder.layers_, embedder.poolings_) == ([2], ["mean"])
    assert list(embedder.output_indices_) == ["layer2_mean"]
    assert set(embedder.layer_scores_) == {f"layer{k}_mean" for k in range(5)}
    assert max(embedder.layer_scores_, key=embedder.layer_scores_.get) == "layer2_mean"
    assert embedder.layer_ties_ == ["layer2_mean"]
    assert embedder.layer_errors_["layer2_mean"] == 0
    fixed = LLMLayerEmbedder(stub(planted, depth=4), layer=2).fit(texts)
    np.testing.assert_array_equal(embedder.transform(texts), fixed.transform(texts))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("criterion", ["ridge", "logme", "variability"])
def test_scores_are_those_of_the_single_layers(folder, criterion, normalize):
    options: dict[str, Any] = {"normalize": normalize}
    auto = LLMLayerEmbedder(folder(), layer="auto", layer_criterion=criterion, **options)
    X = auto.fit_transform(TEXTS, LABELS)
    layers = [LLMLayerEmbedder(folder(), layer=k, **options).fit_transform(TEXTS) for k in ALL]
    found = layer_scores(np.stack(layers), LABELS, criterion=criterion)
    assert list(auto.layer_scores_.values()) == pytest.approx(found.scores.tolist())
    assert auto.layer_ == int(found.shallowest(ALL).removeprefix("layer"))
    assert hasattr(auto, "layer_errors_") == (criterion == "ridge")
    np.testing.assert_array_equal(X, layers[auto.layer_])


def test_of_equal_layers_the_shallowest():
    texts, y = letters(40)
    embedder = LLMLayerEmbedder(stub(lambda k, s, m: s * (k > 0), depth=4), layer="auto")
    assert embedder.fit(texts, y).layer_ == 1


def test_pooling_alone_and_with_the_layer():
    """Only the last token tells the class."""
    rng = np.random.default_rng(1)
    ends = rng.choice(list("abcxyz"), size=60)
    texts = ["".join(rng.choice(list("abcdefuvwxyz"), size=9)) + end for end in ends]
    y = np.isin(ends, list("abc"))
    model = stub(planted, depth=3)
    alone = LLMLayerEmbedder(model, layer=2, pooling="auto").fit(texts, y)
    assert (alone.layer_, alone.pooling_) == (2, "last")
    assert len(alone.layer_scores_) == 6
    both = LLMLayerEmbedder(model, layer="auto", pooling="auto").fit(texts, y)
    assert (both.layer_, both.pooling_) == (2, "last")
    assert len(both.layer_scores_) == 4 * 6
    memory = VectorStore(layers=[1, 2], poolings=["max", "mean"])
    few = LLMLayerEmbedder(model, layer="auto", pooling="auto", memory=memory).fit(texts, y)
    assert set(few.layer_scores_) == {f"layer{k}_{p}" for k in (1, 2) for p in ("max", "mean")}


def test_regression_and_labels(folder):
    rng = np.random.default_rng(0)
    for y in (rng.normal(size=len(TEXTS)), rng.integers(2, size=(len(TEXTS), 3))):
        embedder = LLMLayerEmbedder(folder(), layer="auto").fit(TEXTS, y)
        assert embedder.layer_ in ALL


def test_effective_rank_takes_no_labels(folder):
    embedder = LLMLayerEmbedder(folder(), layer="auto", layer_criterion="effective_rank")
    assert embedder.fit(TEXTS).layer_ in ALL


@pytest.mark.parametrize("y", [None, ["a"] * len(TEXTS), [0, 1]])
def test_bad_labels_are_said_before_the_model_runs(model, y):
    with pytest.raises(ValueError, match=r"y to be passed.*layer='mean'|1 class|inconsistent"):
        CountingEmbedder(model, layer="auto").fit(TEXTS, y)
    assert read_log(model) == (0, 0)


@pytest.mark.parametrize(
    ("y", "options", "words"),
    [
        ([*LABELS[:3], None, *LABELS[4:]], {}, "y misses 1 of 40 values, at position 3"),
        ([*LABELS[:3], np.nan, *LABELS[4:]], {}, "y misses 1 of 40 values, at position 3"),
        ([2.5] * len(TEXTS), {"pooling": "auto"}, "same in all 40 rows"),
        (np.arange(40) % 2, {"task": "counts"}, "'task' parameter"),
        (np.arange(40) / 7, {"task": "classification"}, "takes classes or labels"),
        (LABELS, {"task": "regression"}, "numbers, got str values"),
        (np.arange(40), {"layer_criterion": "h_score"}, "takes classes, .*task='classification'"),
    ],
)
def test_what_y_cannot_be_is_said_before_the_model_runs(model, y, options, words):
    with pytest.raises(ValueError, match=words):
        CountingEmbedder(model, layer="auto", **options).fit(TEXTS, y)
    assert read_log(model) == (0, 0)


@pytest.mark.filterwarnings("ignore:The number of unique classes")  # scikit-learn before 1.9
@pytest.mark.parametrize("dtype", [int, float])
def test_counts_are_a_regression(dtype):
    """Layer 2 alone knows how many letters of a text are an "a"."""
    rng = np.random.default_rng(0)
    texts = ["a" * k + "b" * (60 - k) for k in range(60)]
    counts = (np.arange(60) + rng.integers(-3, 4, size=60)).astype(dtype)
    auto = LLMLayerEmbedder(stub(planted, depth=4), layer="auto").fit(texts, counts)
    assert auto.layer_ == 2
    assert clone(auto).set_params(task="regression").fit(texts, counts).layer_ == 2
    assert clone(auto).set_params(task="classification").fit(texts, counts).layer_ == 0
    stars = counts // 20
    by_rule = auto.fit(texts, stars).layer_scores_
    assert by_rule == auto.set_params(task="classification").fit(texts, stars).layer_scores_
    assert by_rule != auto.set_params(task="regression").fit(texts, stars).layer_scores_


@pytest.mark.parametrize("criterion", ["logme", "ridge"])
def test_a_label_that_no_row_has_changes_no_choice(criterion):
    texts, y = letters(60)
    auto = LLMLayerEmbedder(stub(planted, depth=4), layer="auto", layer_criterion=criterion)
    known = auto.fit(texts, np.column_stack([y, 1 - y])).layer_scores_
    assert auto.fit(texts, np.column_stack([y, 0 * y, 1 - y])).layer_ == 2
    assert auto.layer_scores_ == known


# --- how it is paid for ---------------------------------------------------------------------


def test_a_cross_validation_runs_each_text_once(model):
    auto = CountingEmbedder(model, layer="auto", pooling="auto")
    cross_val_score(pipeline(auto), TEXTS, LABELS, cv=5)
    assert read_log(model)[1] == len(TEXTS)
    grid = {"countingembedder__layer": ["auto", "mean", 1]}
    GridSearchCV(pipeline(CountingEmbedder(model)), grid, cv=5).fit(TEXTS, LABELS)
    assert read_log(model) == (0, 0)


def test_transform_stops_at_the_chosen_layer_where_only_that_is_asked_for(model, tmp_path):
    memory = VectorStore(tmp_path / "s", layers="requested")
    auto = CountingEmbedder(model, layer="auto", memory=memory)
    auto.fit(TEXTS[:30], np.arange(30) % 2)
    seen = auto.store_.info()["models"][0]
    assert (seen["layers"], seen["poolings"]) == (list(ALL), ["mean"])
    assert auto.layer_ < tiny.DEPTH  # labels that no layer knows: the shallowest will do
    calls: list[int] = []
    handle = auto._load()._body.layers[-1].register_forward_pre_hook(lambda *_: calls.append(1))
    auto.transform(TEXTS)
    handle.remove()
    assert not calls
    assert read_log(model)[1] == len(TEXTS)


def test_layers_are_read_in_parts_where_memory_is_short(model, monkeypatch):
    whole = CountingEmbedder(model, layer="auto", pooling="auto").fit(TEXTS, LABELS)
    read_log(model)
    monkeypatch.setattr(embedder_module, "_READ_BYTES", 2 * 4 * tiny.WIDTH * len(TEXTS))
    parts = CountingEmbedder(model, layer="auto", pooling="auto", prompt="a ")
    parts.fit(TEXTS, LABELS)
    assert read_log(model) == (1, len(TEXTS))
    again = LLMLayerEmbedder(model, layer="auto", pooling="auto").fit(TEXTS, LABELS)
    assert again.layer_scores_ == whole.layer_scores_


def test_a_store_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    auto = LLMLayerEmbedder(folder(), layer="auto", memory=tmp_path / "file")
    with pytest.warns(StoreWarning):
        X = auto.fit_transform(TEXTS, LABELS)
    other = LLMLayerEmbedder(folder(), layer="auto")
    np.testing.assert_array_equal(X, other.fit_transform(TEXTS, LABELS))


def test_precompute(model):
    auto = CountingEmbedder(model, layer="auto").precompute(TEXTS, LABELS, verbose=0)
    assert auto.layer_ in ALL
    mean = CountingEmbedder(model, layer="mean").precompute(TEXTS, verbose=0)
    assert mean.transform(TEXTS).shape == (len(TEXTS), tiny.WIDTH)
    assert read_log(model) == (1, len(TEXTS))


def test_an_interrupted_choice_is_made_by_the_next_call(model, monkeypatch):
    auto = LLMLayerEmbedder(model, layer="auto")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(embedder_module, "score_layers", interrupt)
        with pytest.raises(KeyboardInterrupt):
            auto.precompute(TEXTS, LABELS, verbose=0)
    with pytest.raises(NotFittedError):
        auto.transform(TEXTS)
    assert auto.precompute(TEXTS, LABELS, verbose=0).layer_ in ALL


# --- honesty --------------------------------------------------------------------------------


def test_shuffled_labels_give_no_more_than_chance(folder):
    texts, rng = tiny_texts(100), np.random.default_rng(0)
    auto = pipeline(LLMLayerEmbedder(folder(), layer="auto", pooling="auto"))
    labels = [rng.permutation(np.arange(100) % 2) for _ in range(8)]
    scores = [cross_val_score(auto, texts, y, cv=3).mean() for y in labels]
    assert abs(np.mean(scores) - 0.5) < 2 * 0.5 / np.sqrt(8 * 100)


def test_poisoned_test_rows_change_no_choice(folder):
    train, test = np.arange(30), np.arange(30, 40)
    poisoned, flipped = list(TEXTS), LABELS.copy()
    for i in test:
        poisoned[i] = "good " * (i % 7) if LABELS[i] == "pos" else "dull plot"
        flipped[i] = "neg" if LABELS[i] == "pos" else "pos"
    chosen = []
    for texts, y in ((TEXTS, LABELS), (poisoned, flipped)):
        embedder = LLMLayerEmbedder(folder(), layer="auto", pooling="auto")
        result = cross_validate(
            pipeline(embedder), texts, y, cv=[(train, test)], return_estimator=True
        )
        chosen.append(result["estimator"][0][0])
    assert chosen[0].layer_scores_ == chosen[1].layer_scores_
    assert (chosen[0].layer_, chosen[0].pooling_) == (chosen[1].layer_, chosen[1].pooling_)


# --- the mean over layers -------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["all", [1, 3]])
def test_mean_by_hand(folder, layers):
    poolings = ["last", "mean"]
    memory = VectorStore(layers=layers)
    embedder = LLMLayerEmbedder(folder(), layer="mean", pooling=poolings, memory=memory)
    train, test = TEXTS[:30], TEXTS[30:]
    embedder.fit(train)
    used = list(ALL) if layers == "all" else layers
    expected = []
    for pooling in poolings:
        scaled = []
        for k in used:
            one = LLMLayerEmbedder(folder(), layer=k, pooling=pooling)
            scaled.append(
                StandardScaler().fit(one.fit_transform(train)).transform(one.transform(test))
            )
        expected.append(np.mean(scaled, axis=0))
    X = embedder.transform(test)
    np.testing.assert_allclose(X, np.hstack(expected), atol=1e-5)
    assert X.dtype == np.float32 and X.flags.c_contiguous
    assert embedder.layers_ == used
    assert list(embedder.output_indices_) == ["layermean_last", "layermean_mean"]
    assert embedder.get_feature_names_out()[0] == "layermean_last_0"
    assert embedder.layer_means_.shape == (len(used) * 2, tiny.WIDTH)
    assert embedder.transform([]).shape == (0, 2 * tiny.WIDTH)


def test_mean_is_normalized_after_it_is_taken(folder):
    X = LLMLayerEmbedder(folder(), layer="mean").fit_transform(TEXTS)
    unit = LLMLayerEmbedder(folder(), layer="mean", normalize=True).fit_transform(TEXTS)
    np.testing.assert_allclose(unit, X / np.linalg.norm(X, axis=1, keepdims=True), atol=1e-6)


# --- among estimators -----------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["auto", "mean"])
def test_fitted_copies_work_and_are_small(folder, layer):
    embedder = LLMLayerEmbedder(folder(), layer=layer)
    X = embedder.fit_transform(TEXTS, LABELS)
    sent = pickle.dumps(embedder)
    assert len(sent) < 100_000
    np.testing.assert_array_equal(pickle.loads(sent).transform(TEXTS), X)
    assert not hasattr(clone(embedder), "layers_")


def test_another_fit_forgets_the_choice(folder):
    embedder = LLMLayerEmbedder(folder(), layer="auto").fit(TEXTS, LABELS)
    embedder.set_params(layer=1).fit(TEXTS)
    assert not hasattr(embedder, "layer_scores_") and not hasattr(embedder, "layer_")
    assert embedder.layers_ == [1]


def test_in_a_union(folder):
    union = EmbedderUnion(
        [
            ("auto", LLMLayerEmbedder(folder(), layer="auto")),
            ("mean", LLMLayerEmbedder(folder("bert"), layer="mean", pooling=["mean", "last"])),
        ]
    )
    X = union.fit_transform(TEXTS, LABELS)
    sizes = {"auto": 16, "mean_layermean_mean": 16, "mean_layermean_last": 16}
    assert X.block_sizes == sizes
    alone = union.named_embedders_.auto
    np.testing.assert_array_equal(X.blocks["auto"], alone.transform(TEXTS))
    np.testing.assert_array_equal(np.asarray(union.transform(TEXTS)), np.asarray(X))
    assert pipeline(clone(union)).fit(TEXTS, LABELS).predict(TEXTS[:3]).shape == (3,)


def test_tags(folder):
    def required(**options: Any) -> bool:
        return LLMLayerEmbedder(folder(), **options).__sklearn_tags__().target_tags.required

    assert required(layer="auto") and required(pooling="auto")
    assert not required(layer="mean") and not required(layer=np.array([1, 2]))
    assert not required(layer="auto", layer_criterion="effective_rank")
