"""What is learnt in `fit`: principal components, weights of blocks, trained projections."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from skfusion._blocks import EmbeddingBlocks
from skfusion._targets import CLASSES, read_targets
from skfusion.fusion.projection import add_bias, pca_projection, random_projection
from skfusion.fusion.registry import OPERATORS
from skfusion.fusion.transformer import FusionTransformer
from skfusion.linear import blending, spectrum
from skfusion.linear.blending import blend_shares


@pytest.fixture
def problem(rng):
    """A block that tells the classes, a wider one that tells less, and noise."""
    y = rng.integers(3, size=90)
    means = rng.normal(size=(3, 12)), rng.normal(size=(3, 30))
    X = EmbeddingBlocks(
        {
            "good": means[0][y] + rng.normal(size=(90, 12)),
            "fair": 0.4 * means[1][y] + rng.normal(size=(90, 30)),
            "noise": rng.normal(size=(90, 50)),
        }
    )
    return X, y


# --- the paper's "same-model concat brings nothing" -------------------------------------------


@pytest.mark.parametrize("penalty", [0.1, 1.0, 100.0])
def test_a_model_beside_itself_is_that_model_under_ridge(rng, penalty):
    X, Y = rng.normal(size=(50, 12)) * 7 + 3, rng.normal(size=(50, 3))
    train, test = np.arange(40), np.arange(40, 50)
    single = EmbeddingBlocks({"a": X})
    double = EmbeddingBlocks({"a": X, "again": X})
    predicted = []
    for blocks, factor in ((single, 1), (double, 2)):
        fuse = FusionTransformer("concat").fit(blocks[train])
        ridge = Ridge(factor * penalty).fit(fuse.transform(blocks[train]), Y[train])
        predicted.append(ridge.predict(fuse.transform(blocks[test])))
    np.testing.assert_allclose(*predicted, rtol=1e-9, atol=1e-10)


# --- principal components ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(30, 80), (80, 30)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_components(rng, shape, dtype):
    X = (rng.normal(size=shape) @ rng.normal(size=(shape[1], shape[1])) + 5).astype(dtype)
    k = 20
    found = pca_projection(X, k, np.random.RandomState(0))(X)
    expected = PCA(k, svd_solver="full").fit_transform(X.astype(np.float64))
    tolerance = 1e-4 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=tolerance * expected.max())


def test_the_randomised_solver_keeps_the_variance(rng):
    widths = np.arange(1, 1601) ** -0.7
    X = rng.normal(size=(1800, 1600)) * widths
    assert spectrum.prefers_randomised(X.shape, 16)
    found = pca_projection(X, 16, np.random.RandomState(0))
    exact = spectrum._from_covariance(X, X.mean(axis=0), 16)
    kept, best = ((X @ W).var(axis=0).sum() for W in (found.weight, exact))
    assert kept > best * (1 - 1e-3)
    np.testing.assert_allclose(found.weight.T @ found.weight, np.eye(16), atol=1e-9)


def test_directions_without_variance_give_zeros(rng):
    X = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 10))
    for rows in (X, X[:8]):
        project = pca_projection(rows, 5, np.random.RandomState(0))
        np.testing.assert_array_equal(project.weight[:, 3:], 0)


# --- the bias of products ---------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["hadamard", "multiplication", "quaternion", "bilinear"])
def test_a_bias_leaves_linear_terms_in_products(rng, operator):
    X = EmbeddingBlocks([rng.normal(size=(900, 16)), rng.normal(size=(900, 16))])
    y = (X[:, 0] + X[:, 16] > 0).astype(int)
    scores = []
    for bias in (True, False):
        fuse = FusionTransformer(operator, projection="random", bias=bias, random_state=0)
        fused = fuse.fit_transform(X[:600])
        model = LogisticRegression().fit(fused, y[:600])
        scores.append(model.score(fuse.transform(X[600:]), y[600:]))
    assert scores[0] > 0.7 and scores[0] > scores[1] + 0.1


@pytest.mark.parametrize("n_blocks", [2, 3])
@pytest.mark.parametrize("name", ["hadamard", "multiplication", "quaternion", "bilinear"])
def test_the_bias_against_its_formula(rng, name, n_blocks):
    operator, d = OPERATORS[name], 16
    blocks = [rng.normal(size=(50, 10)) for _ in range(n_blocks)]
    state = np.random.RandomState(0)
    plain = [random_projection(10, d, state) for _ in blocks]
    v = [project(block) for project, block in zip(plain, blocks, strict=True)]
    v = [each / np.sqrt(np.mean(each**2)) for each in v]
    e = np.tile(operator.neutral(d), (50, 1))
    np.testing.assert_allclose(operator([e, v[0]]), v[0], atol=1e-12)
    np.testing.assert_allclose(operator([v[0], e]), v[0], atol=1e-12)
    s = 1 / 3 / np.sqrt(operator.terms(d))
    u = [
        project(block)
        for project, block in zip(add_bias(plain, blocks, operator), blocks, strict=True)
    ]
    expected = operator([e + s * each for each in v]) / s
    np.testing.assert_allclose(operator(u), expected, atol=1e-9)
    if n_blocks == 2:
        terms = e / s + v[0] + v[1] + s * operator(v)
        np.testing.assert_allclose(operator(u), terms, atol=1e-9)
        assert 0.2 < np.std(s * operator(v)) < 0.5


def test_sums_and_single_blocks_have_no_bias(rng):
    project = random_projection(5, 3, np.random.RandomState(0))
    block = rng.normal(size=(9, 5))
    assert add_bias([project] * 2, [block] * 2, OPERATORS["sum"]) == [project] * 2
    assert add_bias([project], [block], OPERATORS["hadamard"]) == [project]


# --- weighted ---------------------------------------------------------------------------------


def test_weights_are_those_of_standardised_blocks(problem):
    """And the output has the inner products of the blocks' principal components."""
    X, y = problem
    fuse = FusionTransformer("weighted", n_components=7).fit(X, y)
    scaled = [StandardScaler().fit_transform(block) for block in X.blocks.values()]
    targets, rng = read_targets(y, CLASSES, ""), np.random.RandomState(0)
    shares = blend_shares(scaled, np.ones(3), targets, rng, even=0.5)
    np.testing.assert_allclose(fuse.kernel_weights_, shares, rtol=1e-6)
    assert shares.sum() == pytest.approx(1) and shares[0] > shares[2]
    weighted = [
        np.sqrt(share / block.var(axis=0).sum()) * block
        for share, block in zip(shares, scaled, strict=True)
    ]
    expected = PCA(7, svd_solver="full").fit_transform(np.concatenate(weighted, axis=1))
    out = fuse.transform(X)
    np.testing.assert_allclose(out @ out.T, 7 * expected @ expected.T, atol=1e-8)
    assert (out.var(axis=0) < 2).all()
    assert fuse.output_indices_ == {"weighted": slice(0, 7)}
    assert fuse.get_feature_names_out().tolist() == [f"weighted{i}" for i in range(7)]
    assert FusionTransformer("weighted").fit_transform(X, y).shape == (90, 89)


def test_weights_find_the_block_that_helps(rng):
    """Two halves of the answer are kept, and noise is weighed down."""
    y = rng.integers(2, size=200)
    X = EmbeddingBlocks([y[:, None] * s + rng.normal(size=(200, 6)) for s in (0.7, 0.7, 0.0)])
    shares = FusionTransformer("weighted").fit(X, y).kernel_weights_
    assert min(shares[:2]) > shares[2]


def test_weights_of_equal_blocks_are_equal(problem):
    X, y = problem
    same = EmbeddingBlocks({"a": X.blocks["good"], "b": X.blocks["good"] * 5 + 1})
    fuse = FusionTransformer("weighted").fit(same, y)
    np.testing.assert_allclose(fuse.kernel_weights_, 0.5, atol=1e-6)
    single = FusionTransformer("weighted").fit(same.select(["a"]), y)
    assert single.kernel_weights_.tolist() == [1]


def test_weights_without_y_are_equal(problem):
    X, _ = problem
    fuse = FusionTransformer("weighted").fit(X)
    np.testing.assert_allclose(fuse.kernel_weights_, 1 / 3)
    assert not fuse.__sklearn_tags__().target_tags.required
    assert FusionTransformer("weighted").fit_transform(X[:1]).tolist() == [[0]]


def test_weights_for_numbers_labels_and_balanced_classes(problem):
    X, y = problem
    numbers = X.blocks["good"] @ np.ones(12)
    fuse = FusionTransformer("weighted").fit(X, numbers)
    assert fuse.kernel_weights_[0] > 0.6
    assert fuse.fit(X, np.stack([numbers, -numbers], axis=1)).kernel_weights_[0] > 0.6
    labels = fuse.fit(X, np.stack([y == 0, y != 1], axis=1).astype(int)).kernel_weights_
    assert labels[0] > labels[2]
    rare = y == 0
    kept = np.flatnonzero(~rare | (np.cumsum(rare) <= 6))
    mixed = X.select(["fair", "noise"])
    plain, balanced = (
        FusionTransformer("weighted", class_weight=how).fit(mixed[kept], y[kept]).kernel_weights_
        for how in (None, "balanced")
    )
    assert not np.allclose(plain, balanced, rtol=1e-9)


def test_rare_words_are_not_blown_up(rng):
    """A sparse block is not standardised, and any scale of a block is the same to the weights."""
    y = rng.integers(2, size=60)
    words = sparse.csr_array(np.where(rng.uniform(size=(60, 40)) < 0.05, 1.0, 0.0))
    X = EmbeddingBlocks({"words": words, "dense": rng.normal(size=(60, 5)) + y[:, None]})
    fuse = FusionTransformer("weighted").fit(X, y)
    assert [scaler.how for scaler in fuse.scalers_.values()] == [None, "standard"]
    dense = EmbeddingBlocks({"words": words.toarray(), "dense": X.blocks["dense"]})
    np.testing.assert_array_equal(fuse.transform(dense), fuse.transform(X))
    plain = FusionTransformer("weighted", scale=None).fit(X, y)
    larger = EmbeddingBlocks({"words": words * 1e3, "dense": X.blocks["dense"]})
    again = FusionTransformer("weighted", scale=None).fit(larger, y)
    np.testing.assert_allclose(plain.kernel_weights_, again.kernel_weights_, rtol=1e-6)
    np.testing.assert_allclose(plain.transform(X), again.transform(larger), atol=1e-9)


def test_repeated_rows_tell_nothing_new(problem):
    X, y = problem
    order = np.random.default_rng(0).permutation(180) % 90
    once, twice = (
        FusionTransformer("weighted").fit(X[rows], y[rows]).kernel_weights_
        for rows in (np.arange(90), order)
    )
    np.testing.assert_allclose(once, twice, rtol=1e-6)


@pytest.mark.parametrize("dtype", [int, float])
def test_weights_for_counts(dtype):
    """Whole numbers in a row; read as classes, they are in the block that knows each by name."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(60), 2)
    line = y[:, None] / 60 + 0.05 * rng.normal(size=(120, 1))
    names = rng.normal(size=(60, 24))[y] + 0.05 * rng.normal(size=(120, 24))
    X = EmbeddingBlocks({"line": line, "names": names})
    fuse = FusionTransformer("weighted").fit(X, y.astype(dtype))
    assert fuse.kernel_weights_[0] > 0.5
    assert fuse.set_params(task="classification").fit(X, y).kernel_weights_[0] < 0.5
    assert fuse.fit(X, [f"{value}" for value in y]).kernel_weights_[0] < 0.5


@pytest.mark.parametrize(
    ("options", "y", "words"),
    [
        ({}, np.full(90, 0.1), "same in all 90 rows"),
        ({"task": "regression"}, ["a", "b"] * 45, "numbers, got str values"),
        ({"task": "classification"}, np.linspace(0, 1, 90), "takes classes or labels"),
        (
            {"task": "classification"},
            np.arange(180).reshape(90, 2),
            "'multiclass-multioutput', but",
        ),
        ({"task": "counts"}, np.arange(90), "'task' parameter"),
        ({"operator": "sum", "projection": "supervised"}, np.arange(90), "task='classification'"),
        (
            {"operator": "sum", "projection": "supervised", "task": "regression"},
            np.arange(90) % 2,
            "trains a classifier and needs classes",
        ),
    ],
)
def test_what_y_cannot_be(problem, options, y, words):
    with pytest.raises(ValueError, match=words):
        FusionTransformer(**{"operator": "weighted", **options}).fit(problem[0], y)


def test_supervised_takes_many_classes_where_it_is_told_so(problem):
    X, codes = problem[0][:44], np.arange(44) // 2
    fuse = FusionTransformer("sum", projection="supervised", n_components=2, random_state=0)
    told = fuse.set_params(task="classification").fit_transform(X, codes)
    named = fuse.set_params(task="auto").fit_transform(X, [f"{c:02}" for c in codes])
    np.testing.assert_array_equal(told, named)


def test_many_rows_are_sampled(problem, monkeypatch):
    X, y = problem[0].select(["fair", "noise"]), problem[1]
    monkeypatch.setattr(blending, "MOST_ROWS", 60)
    runs = [
        FusionTransformer("weighted", random_state=s).fit(X, y).kernel_weights_ for s in (0, 0, 1)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    FusionTransformer("weighted").fit(X, np.append(y[:-1], 7))  # a class of one row


# --- supervised -------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["sum", "hadamard", "quaternion", "multiplication"])
def test_trained_projections_find_what_pca_misses(rng, operator):
    """The classes differ where the blocks vary least."""
    y = rng.integers(2, size=160)
    spread = np.r_[np.full(14, 5.0), np.full(2, 0.1)]
    parts = []
    for _ in range(2):
        block = rng.normal(size=(160, 16)) * spread
        block[:, -1] += 0.3 * (2 * y - 1)
        parts.append(block)
    X = EmbeddingBlocks(parts)
    scores = {}
    for projection in ("pca", "supervised"):
        fuse = FusionTransformer(
            operator, projection=projection, scale=None, n_components=4, random_state=0
        ).fit(X[:100], y[:100])
        head = LogisticRegression(C=100, max_iter=2000)
        head.fit(StandardScaler().fit_transform(fuse.transform(X[:100])), y[:100])
        scaled = StandardScaler().fit(fuse.transform(X[:100])).transform(fuse.transform(X[100:]))
        scores[projection] = head.score(scaled, y[100:])
    assert scores["supervised"] > 0.85 > 0.75 > scores["pca"]


def test_wide_blocks_of_few_rows_are_reduced_without_loss(rng):
    from skfusion.fusion.supervised import _to_coordinates

    block = rng.normal(size=(20, 200)) + 2
    basis = _to_coordinates(block, np.random.RandomState(0))
    assert basis.rows.shape == (20, 19)
    assert np.mean((basis.rows**2).sum(axis=1)) == pytest.approx(1)
    weight, bias = rng.normal(size=(19, 4)), rng.normal(size=4)
    np.testing.assert_allclose(
        basis.widen(weight, bias)(block), basis.rows @ weight + bias, atol=1e-9
    )


def test_numbers_cannot_train_a_classifier(problem):
    X, _ = problem
    with pytest.raises(ValueError, match=r"y is 'continuous'.*needs classes"):
        FusionTransformer("sum", projection="supervised").fit(X, np.linspace(0, 1, 90))


def test_few_rows_are_trained_on_without_holding_out(problem):
    X, y = problem
    rows = np.array([np.flatnonzero(y == c)[0] for c in range(3)] + [5])
    fuse = FusionTransformer("sum", projection="supervised", random_state=0)
    assert np.isfinite(fuse.fit(X[rows], y[rows]).transform(X)).all()


def test_torch_is_left_as_it_was(problem):
    import torch

    X, y = problem
    before = torch.random.get_rng_state().clone(), torch.get_num_threads()
    FusionTransformer("sum", projection="supervised").fit(X[:40], y[:40])
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert torch.get_num_threads() == before[1]
