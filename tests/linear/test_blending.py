"""Shares of blocks against refits, and their components against the explicit decomposition."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.linear_model import Ridge

from skfusion._targets import CLASSES, LABELS, NUMBERS, Targets, read_targets
from skfusion.linear import blending
from skfusion.linear.blending import blend_shares, count_components, fit_components
from skfusion.linear.criteria import balanced_shares, softly_balanced
from skfusion.linear.ridge import leave_one_out_features, leave_one_out_kernel, log_losses


def read(y) -> Targets:
    return read_targets(y, CLASSES | LABELS | NUMBERS, "")


def shares_of(blocks, y, prior=None, seed=0, even=0.0):
    targets = y if y is None or isinstance(y, Targets) else read(y)
    prior = np.ones(len(blocks)) if prior is None else np.array(prior, dtype=float)
    return blend_shares(iter(blocks), prior, targets, np.random.RandomState(seed), even=even)


def components_of(blocks, shares, k=None, seed=0):
    return fit_components(lambda: iter(blocks), shares, k, np.random.RandomState(seed))


@pytest.fixture
def problem(rng):
    """A block that tells the classes, a wider one that tells less, and noise."""
    y = rng.integers(3, size=90)
    good = 0.4 * rng.normal(size=(3, 12))[y] + rng.normal(size=(90, 12))
    fair = 0.2 * rng.normal(size=(3, 30))[y] + rng.normal(size=(90, 30))
    return [good, fair, rng.normal(size=(90, 50))], y


# --- leaving rows out -------------------------------------------------------------------------


def refit_errors(features, penalty, matrix, weights):
    """Miss each row by a regression that was fitted without it."""
    errors = np.empty_like(matrix)
    for i in range(len(matrix)):
        kept = np.arange(len(matrix)) != i
        ridge = Ridge(penalty).fit(features[kept], matrix[kept], sample_weight=weights[kept])
        errors[i] = matrix[i] - ridge.predict(features[[i]]).reshape(-1)
    return errors


@pytest.mark.parametrize("width", [1, 8, 60])
@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_leave_one_out_against_refits(rng, width, penalty):
    features, matrix = rng.normal(size=(25, width)) + 4, rng.normal(size=(25, 2))
    weights = rng.uniform(0.2, 3, size=25)
    expected = refit_errors(features, penalty, matrix, weights)
    kernel = leave_one_out_kernel(features @ features.T, matrix, weights)
    assert_allclose(kernel(penalty), expected, rtol=1e-7, atol=1e-9)
    by_features = leave_one_out_features(features, matrix, weights)
    assert_allclose(by_features(penalty), expected, rtol=1e-7, atol=1e-9)
    single = leave_one_out_features(features.astype(np.float32), matrix, weights)
    assert_allclose(single(penalty), expected, atol=2e-3)


@pytest.mark.parametrize("kind", ["classes", "labels", "number", "numbers"])
def test_shares_against_refits(rng, kind):
    codes = rng.integers(3, size=30)
    y = {
        "classes": codes,
        "labels": np.eye(3, dtype=int)[codes],
        "number": codes + rng.normal(size=30),
        "numbers": rng.normal(size=(30, 2)) + codes[:, None],
    }[kind]
    targets = read(y).weighted(rng.uniform(0.5, 1.5, size=30))
    blocks = [
        rng.normal(size=(30, width)) * 3 + 7 + strength * rng.normal(size=(3, width))[codes]
        for width, strength in ((4, 1.0), (40, 1.0), (9, 0.0))
    ]
    kernels = []
    for block in blocks:
        centred = block - block.mean(axis=0)
        kernels.append(centred @ centred.T / (centred**2).sum(axis=1).mean())

    def refitted(kernel, penalty):
        errors = np.empty_like(targets.matrix)
        for i in range(30):
            kept = np.delete(np.arange(30), i)
            system = np.ones((30, 30))  # slopes of rows, and the intercept
            system[:-1, :-1] = kernel[np.ix_(kept, kept)] + np.diag(penalty / weights[kept])
            system[-1, -1] = 0
            sides = np.append(targets.matrix[kept], np.zeros((1, errors.shape[1])), axis=0)
            errors[i] = targets.matrix[i] - np.append(kernel[i, kept], 1) @ np.linalg.solve(
                system, sides
            )
        return errors

    fitted = softly_balanced(targets)
    weights = fitted.weights / fitted.weights.mean()
    counts = balanced_shares(targets)

    def losses(kernel):
        errors = min(
            (refitted(kernel, penalty) for penalty in blending.PENALTIES),
            key=lambda e: counts @ (e**2).sum(axis=1),
        )
        return log_losses(targets.matrix - errors, fitted, counts)

    made = np.stack([losses(kernel) for kernel in kernels], axis=1)
    prior = np.array([0.5, 0.3, 0.2])
    # The odds of each against the best: the one of the smallest mean loss.
    best = int(np.argmin(counts @ made))
    odds = []
    for b in range(3):
        gaps = [made[i, b] - made[i, best] for i in range(30)]
        mean = sum(c * gap for c, gap in zip(counts, gaps, strict=True))
        error2 = sum(c**2 * (gap - mean) ** 2 for c, gap in zip(counts, gaps, strict=True))
        z = 1.5 * 30 * mean / np.sqrt(30**2 * error2 + 8 / np.pi)
        odds.append(prior[b] * stats.norm.cdf(-z) / stats.norm.cdf(z))
    expected = np.array(odds) / sum(odds)
    found = shares_of(blocks, targets, prior)
    assert found.min() > 0
    assert_allclose(found, expected, rtol=1e-5)
    half = shares_of(blocks, targets, prior, even=0.5)
    assert_allclose(half, (expected + prior) / 2, rtol=1e-5)


def test_every_class_counts_the_same(rng):
    """A block that knows the rare class is better than one that knows part of the frequent one."""
    y = np.array([0] * 90 + [1] * 10)
    rare = (y == 1)[:, None] * 2.0 + rng.normal(size=(100, 6))
    frequent = (np.arange(100) < 45)[:, None] * 2.0 + rng.normal(size=(100, 6))
    assert shares_of([rare, frequent], y)[0] > 0.99


# --- shares -----------------------------------------------------------------------------------


def test_shares_follow_what_blocks_know(problem):
    blocks, y = problem
    shares = shares_of(blocks, y)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > 0.9
    fair, noise = shares_of(blocks[1:], y)
    assert fair > noise
    assert shares_of(blocks, np.array(["a", "b", "c"])[y]) == pytest.approx(shares)


def test_shuffled_labels_give_nearly_equal_shares(problem):
    blocks, y = problem
    rng = np.random.default_rng(1)
    shares = [shares_of(blocks, rng.permutation(y)) for _ in range(10)]
    assert_allclose(np.mean(shares, axis=0), 1 / 3, atol=0.12)
    half = [shares_of(blocks, rng.permutation(y), even=0.5) for _ in range(5)]
    assert np.min(half) > 1 / 6 - 1e-9


def test_the_order_of_rows_and_blocks_does_not_matter(problem):
    blocks, y = problem
    prior = [0.2, 0.5, 0.3]
    shares = shares_of(blocks, y, prior)
    order = np.random.default_rng(0).permutation(len(y))
    assert_allclose(shares_of([b[order] for b in blocks], y[order], prior), shares, rtol=1e-6)
    assert_allclose(shares_of(blocks[::-1], y, prior[::-1]), shares[::-1], rtol=1e-9)


def test_scale_and_offset_of_a_block_do_not_matter(problem):
    blocks, y = problem
    moved = [blocks[0] * 1e3 + 5, blocks[1] * 1e-3 - 1, blocks[2]]
    assert_allclose(shares_of(moved, y), shares_of(blocks, y), rtol=1e-6)


def test_equal_blocks_have_equal_shares_and_one_has_all(problem):
    blocks, y = problem
    assert_allclose(shares_of([blocks[0], blocks[0] * 5 + 1], y), 0.5)
    assert shares_of(blocks[:1], y).tolist() == [1]
    assert shares_of(blocks[:2], None).tolist() == [0.5, 0.5]


def test_repeated_rows_are_one_row_of_their_weight(problem):
    """Else a row that is left out would be learnt from its copy."""
    blocks, y = problem
    order = np.random.default_rng(0).permutation(180) % 90
    found = blending.without_repeats(read(y[order]), order.tolist())
    shares = shares_of([block[order] for block in blocks], found)
    assert_allclose(shares, shares_of(blocks, y), rtol=1e-6)
    assert found.weights.sum() == 180 and np.count_nonzero(found.weights) == 90
    contradicting = blending.without_repeats(read([0, 1, 1, 0]), ["a", "a", "a", "b"])
    assert contradicting.weights.tolist() == [1, 2, 0, 1]


def test_rows_without_weight_are_not_seen(problem, rng):
    blocks, y = problem
    wild = [np.append(b, 100 * rng.normal(size=(9, b.shape[1])), axis=0) for b in blocks]
    more = read(np.append(y, [0] * 9)).weighted(np.append(np.ones(90), np.zeros(9)))
    assert_allclose(shares_of(wild, more), shares_of(blocks, y), rtol=1e-9)


def test_weights_count_like_repeated_rows_in_what_is_fitted(problem):
    blocks, y = problem
    blocks = [blocks[2][:, :25], blocks[2][:, 25:]]
    plain = shares_of(blocks, read(y))
    heavy = shares_of(blocks, read(y).weighted(np.where(np.arange(90) < 30, 5.0, 1.0)))
    assert not np.allclose(plain, heavy, rtol=1e-9)
    assert_allclose(shares_of(blocks, read(y).weighted(np.full(90, 7.0))), plain, rtol=1e-9)


def test_what_knows_nothing_is_weighed_down(rng):
    y = rng.integers(2, size=120)
    good = [y[:, None] + rng.normal(size=(120, 6)) for _ in range(3)]
    noise = [rng.normal(size=(120, 6)) for _ in range(3)]
    shares = shares_of([*good, *noise], y)
    assert shares[:3].sum() > 0.95


def test_few_rows_keep_the_prior_shares():
    """Fifty times the rows with the same losses tell blocks apart."""
    rng = np.random.default_rng(3)
    losses = rng.normal(1.0, 0.5, size=(20, 2))
    losses[:, 1] += 0.05
    few = blending.average(losses, np.full(20, 1 / 20), np.array([0.5, 0.5]))
    many = blending.average(np.tile(losses, (50, 1)), np.full(1000, 1e-3), np.array([0.5, 0.5]))
    assert 0.1 < few.min() < 0.5 and many.min() < 0.01
    fading = blending.fading_prior([True, True, False, False], 100)
    assert_allclose(fading, [1 / 3, 1 / 3, 1 / 6, 1 / 6])
    assert blending.fading_prior([False, False], 9).tolist() == [0.5, 0.5]


def test_small_shares_are_none():
    assert_allclose(blending._trimmed(np.array([0.5, 0.0009, 0.5, 0.0])), [0.5, 0, 0.5, 0])
    assert_allclose(blending._trimmed(np.ones(2000)), 1 / 2000)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_that_do_not_vary_have_no_share(problem, dtype):
    blocks, y = problem
    still = np.full((90, 4), 1 / 3, dtype=dtype)
    given = [blocks[0].astype(dtype), still, blocks[2].astype(dtype)]
    for targets in (y, None):
        shares = shares_of(given, targets)
        assert shares[1] == 0 and shares.sum() == pytest.approx(1)
    assert shares_of([still, still], y).tolist() == [0.5, 0.5]


@given(
    st.integers(2, 9).flatmap(lambda n: st.lists(st.integers(0, 3), min_size=n, max_size=n)),
    st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=20, deadline=None)
def test_few_rows_and_rare_classes_are_finite(codes, dtype):
    if len(set(codes)) < 2:
        codes = [*codes[:-1], max(codes) + 1]
    rng = np.random.default_rng(len(codes))
    blocks = [rng.normal(size=(len(codes), width)).astype(dtype) for width in (1, 3, 12)]
    for y in (codes, np.eye(5, dtype=int)[codes], np.array(codes) + 0.5):
        shares = shares_of(blocks, y, [0.3, 0.3, 0.4])
        assert shares.sum() == pytest.approx(1) and (shares >= 0).all()
        assert np.isfinite(components_of(blocks, shares)(blocks)).all()


def test_many_rows_are_drawn_by_class(problem, monkeypatch):
    blocks, y = problem
    monkeypatch.setattr(blending, "MOST_ROWS", 40)
    found = [shares_of(blocks, y, seed=seed) for seed in (0, 0, 1)]
    assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    rare = np.array([0] * 70 + [1] * 18 + [2] * 2)
    rows = blending.draw_rows(read(rare), np.random.RandomState(0))
    assert len(rows) == len(set(rows)) == 40 and (np.diff(rows) > 0).all()
    counts = np.bincount(rare[rows])
    assert counts[2] == 2 and abs(counts[0] - 30) <= 2
    numbers = read(np.linspace(0, 1, 90))
    assert len(blending.draw_rows(numbers, np.random.RandomState(0))) == 40


# --- components -------------------------------------------------------------------------------


def explicit(blocks, shares):
    """Return the scores of all components, by the decomposition of the whole."""
    parts = []
    for block, share in zip(blocks, shares, strict=True):
        centred = block.astype(np.float64) - block.mean(axis=0, dtype=np.float64)
        parts.append(np.sqrt(share / (centred**2).sum(axis=1).mean()) * centred)
    left, s, _ = np.linalg.svd(np.concatenate(parts, axis=1), full_matrices=False)
    return left * s


@pytest.mark.parametrize("n_rows", [3, 20, 60, 200])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_components_are_those_of_the_weighted_concatenation(rng, n_rows, dtype):
    """By rows, and for 200 rows by columns."""
    blocks = [(rng.normal(size=(n_rows, w)) * w + 9).astype(dtype) for w in (30, 41, 1)]
    shares = np.array([0.2, 0.7, 0.1])
    found = components_of(blocks, shares)
    expected = explicit(blocks, shares)[:, : min(n_rows - 1, 72)]
    scores = found(blocks)
    assert scores.dtype == dtype and scores.shape == expected.shape
    tolerance = {np.float32: 3e-5, np.float64: 1e-9}[dtype]
    largest = np.abs(expected).max()
    assert_allclose(np.abs(scores), np.abs(expected), atol=tolerance * largest)
    few = components_of(blocks, shares, 2)
    assert_allclose(few(blocks), scores[:, :2], atol=tolerance * largest)
    single = components_of(blocks[:1], np.ones(1)).projections[0]
    assert (single[np.abs(single).argmax(axis=0), range(single.shape[1])] > 0).all()


def test_the_kernel_form_is_the_form_by_columns(rng, monkeypatch):
    blocks = [rng.normal(size=(70, w)) + 3 for w in (20, 30)]
    shares = np.array([0.4, 0.6])
    by_columns = components_of(blocks, shares, 10)
    monkeypatch.setattr(blending, "_EXACT_COLUMNS", 0)
    by_rows = components_of(blocks, shares, 10)
    for one, other in zip(by_columns.projections, by_rows.projections, strict=True):
        assert_allclose(one, other, atol=1e-6 * np.abs(one).max())


def test_inner_products_are_kept(rng):
    blocks = [rng.normal(size=(30, w)) for w in (20, 80)]
    shares, fresh = np.array([0.5, 0.5]), [rng.normal(size=(5, w)) for w in (20, 80)]
    found = components_of(blocks, shares)
    kernel = np.zeros((5, 30))
    for block, new in zip(blocks, fresh, strict=True):
        centred = block - block.mean(axis=0)
        t = (centred**2).sum(axis=1).mean()
        kernel += 0.5 * (new - block.mean(axis=0)) @ centred.T / t
    assert_allclose(found(fresh) @ found(blocks).T, kernel, atol=1e-9)
    assert_allclose((found(blocks) ** 2).sum(axis=1).mean(), 1)


def test_the_randomised_form_keeps_the_largest(rng, monkeypatch):
    monkeypatch.setattr(blending, "_EXACT_ROWS", 10)
    monkeypatch.setattr(blending, "_EXACT_COLUMNS", 10)
    hidden = rng.normal(size=(400, 60)) * np.arange(1, 61) ** -1.0
    blocks = [
        (hidden @ rng.normal(size=(60, w)) + 0.01 * rng.normal(size=(400, w))).astype(np.float32)
        for w in (90, 200, 70, 80)
    ]
    shares, passes, alive = np.full(4, 0.25), [], []

    def read_anew():
        passes.append(0)
        for block in blocks:
            copy = block.copy()
            alive.append(weakref.ref(copy))
            yield copy
            assert sum(ref() is not None for ref in alive) <= 2

    found = fit_components(read_anew, shares, 12, np.random.RandomState(0))
    assert len(passes) == 5
    expected = explicit(blocks, shares)[:, :12]
    scores = found(blocks)
    kept, best = ((each**2).sum(axis=0) for each in (scores, expected))
    assert_allclose(kept, best, rtol=2e-3)
    assert_allclose(np.abs(scores[:, :5]), np.abs(expected[:, :5]), atol=1e-3 * scores.max())
    again = fit_components(read_anew, shares, 12, np.random.RandomState(0))
    assert_array_equal(again(blocks), scores)


def test_directions_without_variation_are_zeros(rng):
    block = rng.normal(size=(20, 2)) @ rng.normal(size=(2, 30))
    scores = components_of([block, np.ones((20, 3))], np.array([0.5, 0.5]))(
        [block, np.ones((20, 3))]
    )
    assert scores.shape == (20, 19) and not scores[:, 2:].any() and scores[:, :2].any()
    still = [np.ones((4, 3)), np.ones((4, 2))]
    assert not components_of(still, np.array([0.5, 0.5]))(still).any()


@pytest.mark.parametrize(
    ("asked", "rows", "columns", "n"),
    [
        (None, 5000, 4000, 1000),
        (None, 50, 4000, 49),
        (None, 50, 7, 7),
        (8, 50, 9, 8),
        (2000, 5000, 4000, 2000),
        (8, 4, 9, 3),
        (None, 1, 9, 1),
    ],
)
def test_how_many_components_there_are(asked, rows, columns, n):
    assert count_components(asked, rows, columns) == n
