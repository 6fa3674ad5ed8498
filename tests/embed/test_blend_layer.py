"""``layer="blend"`` on tiny models and stubs."""

from __future__ import annotations

import pickle
from itertools import product
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
from sklearn.utils._param_validation import InvalidParameterError

from skfusion import EmbedderUnion, FusionTransformer, LLMLayerEmbedder, VectorStore, load, save
from skfusion.embed import embedder as embedder_module

TEXTS = tiny_texts(40)
LABELS = np.array(["neg", "pos"])[[len(text) % 2 for text in TEXTS]]
TRAIN, TEST = TEXTS[:30], TEXTS[30:]
ALL = list(range(tiny.DEPTH + 1))
TWO = ["mean", "last"]


@pytest.fixture
def model(tmp_path) -> str:
    """A folder of this test alone, whose log counts."""
    return str(tiny.save_folder(tmp_path / "model"))


def kernel_by_hand(model: Any, weights: dict[str, float], test: list[str]) -> np.ndarray:
    """Σ v_b K_b of all test and training rows: standardised, of mean diagonal 1 in training."""
    total = np.zeros((len(test), len(TRAIN)))
    for name, weight in weights.items():
        layer, pooling = name.removeprefix("layer").split("_", 1)
        one = LLMLayerEmbedder(model, layer=int(layer), pooling=pooling)
        scaler = StandardScaler().fit(one.fit_transform(TRAIN).astype(np.float64))
        train, rows = (scaler.transform(one.transform(X)) for X in (TRAIN, test))
        mean_square = (train**2).sum() / len(train)
        total += weight * (rows @ train.T) / (mean_square or 1)
    return total


# --- what comes out ---------------------------------------------------------------------------


@pytest.mark.parametrize("y", [None, LABELS[:30]], ids=["equal", "weighed"])
def test_inner_products_are_those_of_the_weighted_kernels(folder, y):
    blend = LLMLayerEmbedder(folder(), layer="blend", pooling=TWO)
    X = blend.fit_transform(TRAIN, y)
    names = [f"layer{k}_{pooling}" for k, pooling in product(ALL, TWO)]
    assert list(blend.layer_weights_) == names
    shares = np.array(list(blend.layer_weights_.values()))
    assert shares.sum() == pytest.approx(1) and (shares >= 0).all()
    if y is None:
        # The last token of every text is </s>, whose embedding is no news.
        assert blend.layer_weights_["layer0_last"] == 0
        np.testing.assert_allclose(shares[shares > 0], 1 / np.count_nonzero(shares))
    for test in (TRAIN, TEST):
        expected = kernel_by_hand(folder(), blend.layer_weights_, test)
        products = blend.transform(test) @ X.T / X.shape[1]
        np.testing.assert_allclose(products, expected, atol=2e-5)
    assert X.shape == (30, 29) and X.dtype == np.float32 and X.flags.c_contiguous
    assert blend.output_indices_ == {"layerblend": slice(0, 29)}
    assert blend.get_feature_names_out().tolist() == [f"layerblend_{i}" for i in range(29)]
    assert blend.transform([]).shape == (0, 29)


def test_few_components_are_the_largest(folder):
    whole = LLMLayerEmbedder(folder(), layer="blend").fit_transform(TRAIN, LABELS[:30])
    blend = LLMLayerEmbedder(folder(), layer="blend", n_components=3).fit(TRAIN, LABELS[:30])
    few = blend.transform(TRAIN)
    values, vectors = np.linalg.eigh((whole @ whole.T).astype(np.float64))
    best = vectors[:, -3:] * values[-3:] @ vectors[:, -3:].T
    assert few.shape == (30, 3)
    np.testing.assert_allclose(few @ few.T / 3, best / 29, atol=2e-5)
    assert len(blend.get_feature_names_out()) == 3
    more = clone(blend).set_params(n_components=500).fit(TRAIN)
    assert more.transform(TEST).shape == (10, 29)


def test_a_scaler_behind_it_changes_little(folder):
    """Principal components would be whitened by it."""
    X = LLMLayerEmbedder(folder(), layer="blend", pooling=TWO).fit_transform(TEXTS, LABELS)
    variances, principal = X.var(axis=0), np.linalg.eigvalsh(np.cov(X.T))
    assert variances.mean() == pytest.approx(1, rel=1e-4)
    assert variances.max() <= 2 and principal[-1] > 5

    def kept(rows: np.ndarray) -> float:
        """How alike inner products are to those of the rows as they came."""
        return float(np.corrcoef((rows @ rows.T).ravel(), (X @ X.T).ravel())[0, 1])

    values, vectors = np.linalg.eigh(X @ X.T)
    components = vectors[:, 1:] * np.sqrt(values[1:])
    assert kept(StandardScaler().fit_transform(X)) > 0.9
    assert kept(components) > 0.999 and kept(StandardScaler().fit_transform(components)) < 0.9


def test_weights_by_the_labels(model):
    texts, y = letters(60)
    blend = LLMLayerEmbedder(stub(planted, depth=4), layer="blend", pooling=["mean", "max"])
    blend.fit(texts, y)
    assert set(blend.layer_weights_) == {
        f"layer{k}_{p}" for k in range(5) for p in ("mean", "max")
    }
    counted = {name for name, weight in blend.layer_weights_.items() if weight}
    assert counted and counted <= {"layer2_mean", "layer2_max"}
    assert blend.layers_ == [2]
    assert blend.poolings_ == [p for p in ("mean", "max") if f"layer2_{p}" in counted]
    clf = LogisticRegression(C=10)
    assert cross_val_score(make_pipeline(blend, clf), texts, y, cv=3).min() > 0.9


def test_the_pooling_that_knows_has_more_weight():
    """Only the last token tells the class."""
    rng = np.random.default_rng(1)
    ends = rng.choice(list("abcxyz"), size=80)
    texts = ["".join(rng.choice(list("abcdefuvwxyz"), size=9)) + end for end in ends]
    y = np.isin(ends, list("abc"))
    memory = VectorStore(poolings=["mean", "first", "last"])
    blend = LLMLayerEmbedder(stub(depth=3), layer="blend", pooling="auto", memory=memory)
    weights = blend.fit(texts, y).layer_weights_
    by_pooling = {p: sum(w for name, w in weights.items() if name.endswith(p)) for p in TWO}
    assert len(weights) == 12 and by_pooling["last"] > 0.8


@pytest.mark.parametrize(
    "y",
    [
        np.linspace(0, 1, 40) ** 2,
        np.random.default_rng(0).normal(size=(40, 2)),
        np.random.default_rng(0).integers(2, size=(40, 3)),
        [*"ab", *"c" * 38],
    ],
    ids=["regression", "two outputs", "labels", "rare classes"],
)
def test_all_kinds_of_targets(folder, y):
    blend = LLMLayerEmbedder(folder(), layer="blend", pooling=TWO)
    assert np.isfinite(blend.fit_transform(TEXTS, y)).all()
    assert sum(blend.layer_weights_.values()) == pytest.approx(1)


def test_task():
    texts, _ = letters(60)
    blend = LLMLayerEmbedder(stub(depth=2), layer="blend", pooling=TWO)
    counts = np.arange(60) // 20
    by_rule = blend.fit(texts, counts).layer_weights_
    assert by_rule == blend.set_params(task="classification").fit(texts, counts).layer_weights_
    assert by_rule != blend.set_params(task="regression").fit(texts, counts).layer_weights_


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_few_rows(folder, n):
    blend = LLMLayerEmbedder(folder(), layer="blend", pooling=TWO)
    for y in (None, np.arange(n) % 2, np.arange(n) / 3, ["a", "b", "c", "d"][:n] * 2):
        if n == 1 and y is not None:
            continue
        X = blend.fit_transform(TEXTS[:n], None if y is None else y[:n])
        assert X.shape == (n, max(1, n - 1)) and np.isfinite(X).all()
        assert np.isfinite(blend.transform(TEXTS)).all()


def test_what_does_not_vary_is_harmless(folder):
    texts, y = letters(20)
    constant = stub(lambda k, s, m: s * 0 + 7.3, depth=2)
    for labels in (None, y):
        blend = LLMLayerEmbedder(constant, layer="blend", pooling=TWO)
        X = blend.fit_transform(texts, labels)
        assert not X.any() and sum(blend.layer_weights_.values()) == pytest.approx(1)
    same = LLMLayerEmbedder(folder(), layer="blend").fit_transform(["a film"] * 5)
    assert not same.any()
    unit = LLMLayerEmbedder(folder(), layer="blend", normalize=True).fit_transform(["a film"] * 5)
    assert np.isfinite(unit).all()


def test_normalize_is_of_the_output_alone(folder):
    X = LLMLayerEmbedder(folder(), layer="blend").fit_transform(TEXTS, LABELS)
    unit = LLMLayerEmbedder(folder(), layer="blend", normalize=True).fit_transform(TEXTS, LABELS)
    np.testing.assert_allclose(unit, X / np.linalg.norm(X, axis=1, keepdims=True), atol=1e-6)


def test_repeated_texts_tell_nothing_more(folder):
    """Else a text that is left out would be learnt from its copy."""
    blend = LLMLayerEmbedder(folder(), layer="blend")
    weights = blend.fit(TRAIN, LABELS[:30]).layer_weights_
    again = blend.fit([*TRAIN, *TRAIN], [*LABELS[:30], *LABELS[:30]]).layer_weights_
    assert again == pytest.approx(weights, abs=1e-5)


def test_seeds(folder, monkeypatch):
    monkeypatch.setattr("skfusion.linear.blending.MOST_ROWS", 20)
    before = np.random.mtrand._rand.get_state()[1].copy()

    def weights(seed: Any) -> dict[str, float]:
        blend = LLMLayerEmbedder(folder(), layer="blend", pooling=TWO, random_state=seed)
        return blend.fit(TEXTS, LABELS).layer_weights_

    assert weights(0) == weights(0) == weights(np.random.RandomState(0))
    assert weights(0) != weights(1)
    np.testing.assert_array_equal(np.random.mtrand._rand.get_state()[1], before)


# --- what it looks at, and how it is paid for -------------------------------------------------


def test_a_store_with_lists(folder):
    memory = VectorStore(layers=[1, 3], poolings=["max", "first"])
    blend = LLMLayerEmbedder(folder(), layer="blend", pooling="auto", memory=memory).fit(TEXTS)
    names = [f"layer{k}_{p}" for k in (1, 3) for p in ("max", "first")]
    assert list(blend.layer_weights_) == names
    assert blend.set_params(pooling="max").fit(TEXTS).layers_ == [1, 3]
    assert blend.poolings_ == ["max"]


def test_a_search_runs_each_text_once(model):
    pipe = make_pipeline(CountingEmbedder(model, random_state=0), LogisticRegression())
    grid = {"countingembedder__layer": [-1, "auto", "blend", "mean"]}
    search = GridSearchCV(pipe, grid, cv=3, error_score="raise").fit(TEXTS, LABELS)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert read_log(model)[1] == len(TEXTS)
    nested = cross_val_score(clone(search), TEXTS, LABELS, cv=2, error_score="raise")
    assert np.isfinite(nested).all() and read_log(model) == (0, 0)


def test_transform_stops_behind_the_deepest_layer_that_counts(model, tmp_path, monkeypatch):
    def first_two(blocks: Any, prior: Any, *_: Any) -> np.ndarray:
        assert len(list(blocks)) == len(prior) == 8
        return np.array([0.5, 0, 0, 0.5, 0, 0, 0, 0])

    monkeypatch.setattr("skfusion.embed.blend.blend_shares", first_two)
    memory = VectorStore(tmp_path / "s", layers="requested")
    blend = CountingEmbedder(model, layer="blend", pooling=TWO, memory=memory).fit(TRAIN)
    assert blend.store_.info()["models"][0]["layers"] == ALL
    assert (blend.layers_, blend.poolings_) == ([0, 1], TWO)
    assert {name for name, w in blend.layer_weights_.items() if w} == {
        "layer0_mean",
        "layer1_last",
    }
    calls: list[int] = []
    handles = [
        layer.register_forward_pre_hook(lambda *_, k=k: calls.append(k))
        for k, layer in enumerate(blend._load()._body.layers)
    ]
    blend.transform(TEST)
    for handle in handles:
        handle.remove()
    assert set(calls) == {0}
    assert read_log(model)[1] == len(TEXTS)


def test_columns_are_read_in_parts_where_memory_is_short(model, monkeypatch):
    whole = LLMLayerEmbedder(model, layer="blend", pooling=TWO).fit(TRAIN, LABELS[:30])
    expected = whole.transform(TEST)
    monkeypatch.setattr(embedder_module, "_READ_BYTES", 2 * 4 * tiny.WIDTH * len(TRAIN))
    parts = CountingEmbedder(model, layer="blend", pooling=TWO).fit(TRAIN, LABELS[:30])
    assert read_log(model) == (0, 0)
    np.testing.assert_array_equal(parts.transform(TEST), expected)
    CountingEmbedder(model, layer="blend", pooling=TWO, prompt="a ").fit(TRAIN, LABELS[:30])
    assert read_log(model) == (1, len(TRAIN))


def test_precompute(model):
    blend = CountingEmbedder(model, layer="blend").precompute(TEXTS, LABELS, verbose=0)
    assert blend.transform(TEXTS).shape == (40, 39)
    assert read_log(model) == (1, len(TEXTS))


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "options", "words"),
    [
        (["a"] * 40, {}, "1 class"),
        ([0, 1], {}, "inconsistent"),
        ([*LABELS[:3], None, *LABELS[4:]], {}, "y misses 1 of 40 values, at position 3"),
        ([2.5] * 40, {}, "same in all 40 rows"),
        (np.arange(40) / 7, {"task": "classification"}, "takes classes or labels"),
        (LABELS, {"task": "regression"}, "numbers, got str values"),
        (LABELS, {"n_components": 0}, "'n_components' parameter"),
        (LABELS, {"random_state": "a"}, "'random_state' parameter"),
        (LABELS, {"layer": ["blend", 1]}, "layer must be a number, got 'blend'"),
        (LABELS, {"layer": "mean", "pooling": "auto"}, "or layer='blend', which takes several"),
        (LABELS, {"pooling": ["mean", "auto"]}, "pooling="),
    ],
)
def test_errors_are_said_before_the_model_runs(model, y, options, words):
    blend = CountingEmbedder(model, **{"layer": "blend", **options})
    with pytest.raises((ValueError, InvalidParameterError), match=words):
        blend.fit(TEXTS, y)
    assert read_log(model) == (0, 0)


def test_an_interrupted_fit_is_none(model, monkeypatch):
    blend = LLMLayerEmbedder(model, layer="blend").fit(TEXTS)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(embedder_module, "fit_blend", interrupt)
        with pytest.raises(KeyboardInterrupt):
            blend.fit(TEXTS, LABELS)
    with pytest.raises(NotFittedError):
        blend.transform(TEXTS)


# --- honesty ----------------------------------------------------------------------------------


def test_a_row_is_the_same_whatever_is_beside_it(folder):
    blend = LLMLayerEmbedder(folder(), layer="blend", pooling=TWO).fit(TRAIN, LABELS[:30])
    together = blend.transform(TEST)
    alone = np.vstack([blend.transform([text]) for text in TEST])
    np.testing.assert_allclose(alone, together, rtol=1e-7, atol=1e-9)


def test_poisoned_test_rows_change_nothing_fitted(folder):
    train, test = np.arange(30), np.arange(30, 40)
    poisoned, flipped = list(TEXTS), LABELS.copy()
    for i in test:
        poisoned[i] = "good " * (i % 7) if LABELS[i] == "pos" else "dull plot"
        flipped[i] = "neg" if LABELS[i] == "pos" else "pos"
    fitted = []
    for texts, y in ((TEXTS, LABELS), (poisoned, flipped)):
        pipe = make_pipeline(
            LLMLayerEmbedder(folder(), layer="blend", pooling=TWO), LogisticRegression()
        )
        result = cross_validate(pipe, texts, y, cv=[(train, test)], return_estimator=True)
        fitted.append(result["estimator"][0][0])
    assert fitted[0].layer_weights_ == fitted[1].layer_weights_
    np.testing.assert_array_equal(fitted[0].transform(TRAIN), fitted[1].transform(TRAIN))


def test_shuffled_labels_give_no_more_than_chance(folder):
    texts, rng = tiny_texts(100), np.random.default_rng(0)
    pipe = make_pipeline(
        LLMLayerEmbedder(folder(), layer="blend", pooling=TWO), LogisticRegression(C=10)
    )
    labels = [rng.permutation(np.arange(100) % 2) for _ in range(8)]
    scores = [cross_val_score(pipe, texts, y, cv=3).mean() for y in labels]
    assert abs(np.mean(scores) - 0.5) < 2 * 0.5 / np.sqrt(8 * 100)


# --- among estimators -------------------------------------------------------------------------


def test_copies(folder, tmp_path):
    blend = LLMLayerEmbedder(folder(), layer="blend", pooling=TWO)
    X = blend.fit_transform(TEXTS, LABELS)
    sent = pickle.dumps(blend)
    assert len(sent) < 4 * 8 * tiny.WIDTH * 39 + 20_000
    save(blend, tmp_path / "saved")
    for other in (pickle.loads(sent), load(tmp_path / "saved")):
        np.testing.assert_array_equal(other.transform(TEXTS), X)
        assert other.layer_weights_ == blend.layer_weights_
    assert not hasattr(clone(blend), "layer_weights_")


def test_another_fit_forgets_the_weights(folder):
    blend = LLMLayerEmbedder(folder(), layer="blend").fit(TEXTS, LABELS)
    blend.set_params(layer=1).fit(TEXTS)
    assert not hasattr(blend, "layer_weights_") and blend.layers_ == [1]
    assert blend.transform(TEXTS).shape == (40, tiny.WIDTH)


def test_data_frames(folder):
    blend = LLMLayerEmbedder(folder(), layer="blend", n_components=4)
    frame = blend.set_output(transform="pandas").fit_transform(TEXTS, LABELS)
    assert list(frame.columns) == [f"layerblend_{i}" for i in range(4)]


def test_in_a_union_and_fused(folder):
    union = EmbedderUnion(
        [
            ("one", LLMLayerEmbedder(folder(), layer="blend", pooling="auto", n_components=5)),
            ("two", LLMLayerEmbedder(folder("bert"), pooling=TWO)),
        ]
    )
    X = union.fit_transform(TEXTS, LABELS)
    assert X.block_sizes == {"one": 5, "two_layer3_mean": 16, "two_layer3_last": 16}
    assert union.get_feature_names_out()[0] == "one__layerblend_0"
    alone = union.named_embedders_.one
    np.testing.assert_array_equal(X.blocks["one"], alone.transform(TEXTS))
    pipe = make_pipeline(clone(union), FusionTransformer("sum"), LogisticRegression())
    assert pipe.fit(TEXTS, LABELS).predict(TEXTS[:3]).shape == (3,)


def test_tags(folder):
    tags = LLMLayerEmbedder(folder(), layer="blend", pooling="auto").__sklearn_tags__()
    assert not tags.target_tags.required
