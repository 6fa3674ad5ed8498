"""Scores of layers against brute force, exact densities and computations by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, sparse, stats
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from skfusion import EmbeddingBlocks
from skfusion.linear.criteria import CRITERIA
from skfusion.linear.evidence import log_evidence
from skfusion.linear.layer_scores import LayerScores, layer_scores, read_criterion_targets
from skfusion.linear.ridge import RELATIVE_PENALTIES, leave_one_out_path, ridge_losses

RIDGE = {"criterion": "ridge"}
ridge_scores = partial(layer_scores, **RIDGE)
logme_scores = partial(layer_scores, criterion="logme")
SHAPES = [(12, 30), (30, 5), (20, 20)]


def problem(n: int, d: int, n_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + d)
    y = np.arange(n) % n_classes
    centres = rng.normal(size=(n_classes, d))
    X = rng.normal(size=(n, d)) + 0.7 * centres[y]
    return StandardScaler().fit_transform(X), np.array(["a", "b", "c"])[y]


def brute_force(X, matrix, weights, penalty) -> np.ndarray:
    rows = []
    for i in range(len(X)):
        rest = np.arange(len(X)) != i
        ridge = Ridge(alpha=penalty, solver="svd", tol=0)
        ridge.fit(X[rest], matrix[rest], sample_weight=weights[rest])
        rows.append(ridge.predict(X[[i]]).reshape(-1))
    return np.array(rows)


# --- ridge ----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_leave_one_out_equals_brute_force(n, d, weighted, rng):
    X, y = problem(n, d)
    matrix = (y[:, None] == np.unique(y)).astype(float)
    weights = rng.uniform(0.2, 3, size=n) if weighted else np.ones(n)
    penalties = np.array([0.01, 1.0, 300.0])
    path = leave_one_out_path(X + 5, matrix, weights, penalties)
    for penalty, predicted in zip(penalties, path, strict=True):
        expected = brute_force(X + 5, matrix, weights, penalty)
        np.testing.assert_allclose(predicted, expected, atol=1e-8)


def test_losses_are_those_of_the_best_penalty_and_temperature():
    X, y = problem(20, 6)
    matrix = (y[:, None] == np.unique(y)).astype(float)
    penalties = RELATIVE_PENALTIES * X.shape[1]
    tried = [brute_force(X, matrix, np.ones(20), penalty) for penalty in penalties]
    scores = min(tried, key=lambda s: ((s - matrix) ** 2).sum())
    shares = matrix.mean(axis=0)

    def losses(sharpness: float) -> np.ndarray:
        raised = shares * np.exp(sharpness * (scores - shares))
        return -np.log((matrix * raised).sum(axis=1) / raised.sum(axis=1))

    best = optimize.minimize_scalar(lambda t: losses(t).mean(), bounds=(0, 100)).x
    made = ridge_losses(X, read_criterion_targets("ridge", y, 20))
    np.testing.assert_allclose(made, losses(best), atol=1e-4)


def test_a_layer_without_information_scores_the_entropy_of_the_classes(rng):
    y = np.repeat([0, 1, 1, 1], 20)
    layers = {"constant": np.ones((80, 3)), "noise": rng.normal(size=(80, 3))}
    found = ridge_scores(layers, y)
    entropy = stats.entropy([0.25, 0.75])
    np.testing.assert_allclose(found.scores, -entropy, atol=0.01)
    assert layer_scores(layers, y).shallowest([0, 1]) == "constant"


def test_a_perfect_layer_scores_nearly_zero():
    y = np.tile([0, 1], 30)
    assert -0.001 < ridge_scores({"copy": y[:, None].astype(float)}, y).scores[0] <= 0


def test_numbers_have_gaussian_losses(rng):
    X = StandardScaler().fit_transform(rng.normal(size=(20, 3)))
    y = X @ [1.0, 2.0, 3.0] + rng.normal(size=20)
    tried = [brute_force(X, y[:, None], np.ones(20), p * 3) for p in RELATIVE_PENALTIES]
    errors = y - min((s[:, 0] for s in tried), key=lambda s: ((s - y) ** 2).sum())
    expected = stats.norm(scale=np.sqrt((errors**2).mean())).logpdf(errors)
    np.testing.assert_allclose(ridge_scores({"X": X}, y).row_losses[:, 0], -expected, atol=1e-8)


def test_labels_are_so_many_problems_of_two_classes(rng):
    X = rng.normal(size=(40, 4))
    one = (X[:, 0] > 0).astype(int)
    both = np.column_stack([one, one])
    double = ridge_scores({"X": X}, both).row_losses
    np.testing.assert_array_equal(
        ridge_scores({"X": X}, sparse.csr_array(both)).row_losses, double
    )
    np.testing.assert_allclose(double, 2 * ridge_scores({"X": X}, one).row_losses, atol=1e-6)


def test_weights(rng):
    X = rng.normal(size=(40, 5))
    y = (X[:, 0] + rng.normal(size=40) > 0.8).astype(int)
    kept = rng.random(40) < 0.7
    by_hand = np.where(y == 1, 40 / (2 * y.sum()), 40 / (2 * (1 - y).sum()))
    balanced = ridge_scores({"X": X}, y, class_weight="balanced")
    np.testing.assert_allclose(
        balanced.scores, ridge_scores({"X": X}, y, sample_weight=by_hand).scores
    )
    np.testing.assert_allclose(
        balanced.scores, ridge_scores({"X": X}, y, sample_weight=7 * by_hand).scores
    )
    without = ridge_scores({"X": X}, y, sample_weight=kept.astype(float))
    np.testing.assert_allclose(without.scores, ridge_scores({"X": X[kept]}, y[kept]).scores)
    assert without.row_losses.shape == (kept.sum(), 1)


def test_standard_errors_are_those_of_paired_differences():
    layers = [problem(50, 4)[0], np.random.default_rng(1).normal(size=(50, 4))]
    y = problem(50, 4)[1]
    found = ridge_scores(np.stack(layers), y)
    difference = found.row_losses[:, 1] - found.row_losses[:, 0]
    assert found.scores[0] - found.scores[1] == pytest.approx(difference.mean())
    assert found.standard_errors.tolist() == [0.0, pytest.approx(stats.sem(difference))]


def test_a_row_that_outweighs_all_others(rng):
    X = rng.normal(size=(60, 5)).astype(np.float32)
    X[0] *= 1e6
    found = ridge_scores({"X": X}, np.arange(60) % 2)
    assert np.isfinite(found.row_losses).all()


# --- classes counted alike ------------------------------------------------------------------


def unbalanced(counts: tuple[int, ...], d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised rows, the classes apart, and classes of so many rows."""
    y = np.repeat(np.arange(len(counts)), counts)
    rng = np.random.default_rng(len(y))
    X = rng.normal(size=(len(y), d)) + rng.normal(size=(len(counts), d))[y]
    return StandardScaler().fit_transform(X), y


def test_balanced_losses_by_brute_force():
    X, y = unbalanced((14, 4, 2))
    matrix, counts = np.eye(3)[y], np.bincount(y)
    roots = np.sqrt(1 / counts)[y]
    tried = [
        brute_force(X, matrix, roots / roots.mean(), 4 * relative)
        for relative in RELATIVE_PENALTIES * (roots @ (X**2).sum(axis=1) / roots.sum() / 4)
    ]
    scores = min(tried, key=lambda s: roots @ ((s - matrix) ** 2).sum(axis=1))
    prior = np.sqrt(counts) / np.sqrt(counts).sum()

    def losses(sharpness: float) -> np.ndarray:
        raised = np.exp(sharpness * (scores - prior))
        return -np.log((matrix * raised).sum(axis=1) / raised.sum(axis=1))

    def of_classes(sharpness: float) -> np.ndarray:
        return [losses(sharpness)[y == c].mean() for c in range(3)]

    best = optimize.minimize_scalar(lambda t: np.mean(of_classes(t)), bounds=(0, 100)).x
    found = layer_scores({"X": X}, y)
    np.testing.assert_allclose(found.row_losses[:, 0], losses(best), atol=1e-4)
    assert found.scores[0] == pytest.approx(-np.mean(of_classes(best)), abs=1e-6)


def test_a_layer_that_tells_rare_classes_apart_is_better():
    """One layer halves the frequent class, as the labels do, and the other knows the rare ones."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2, 3, 4], [100, 100, 8, 8, 8])
    frequent, rare = rng.normal(size=(2, len(y), 6))
    frequent[:, 0] += 3 * (y == 0)
    rare[:, :3] += 4 * np.eye(5)[y][:, 2:]
    rare[:, 3] += y == 0
    layers = {"frequent": frequent, "rare": rare}
    assert layer_scores(layers, y).best == "rare"
    assert logme_scores(layers, y).best == ridge_scores(layers, y).best == "frequent"


def test_a_layer_without_information_scores_even_chances():
    y = np.repeat([0, 1, 2], [60, 20, 2])
    found = layer_scores({"constant": np.ones((82, 3))}, y)
    assert found.scores[0] == pytest.approx(-np.log(3), abs=1e-6)


def test_a_class_of_one_row_counts_nothing_beside_two_larger_ones():
    X, y = unbalanced((6, 4, 1))
    np.testing.assert_allclose(
        layer_scores({"X": X}, y).row_shares * 2, [*[1 / 6] * 6, *[1 / 4] * 4, 0]
    )
    X, y = unbalanced((6, 1, 1))
    np.testing.assert_allclose(layer_scores({"X": X}, y).row_shares * 3, [*[1 / 6] * 6, 1, 1])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=9).filter(lambda y: len(set(y)) > 1))
def test_few_rows_have_finite_scores(y):
    rng = np.random.default_rng(len(y))
    wide, narrow = rng.normal(size=(len(y), 12)), rng.normal(size=(len(y), 2))
    found = layer_scores({"wide": wide, "narrow": narrow, "none": np.zeros((len(y), 2))}, y)
    assert np.isfinite(found.scores).all() and np.isfinite(found.standard_errors).all()
    assert found.row_shares.sum() == pytest.approx(1)


def test_weights_count_within_classes(rng):
    X, y = unbalanced((30, 10))
    weights = rng.uniform(0.5, 2, size=40)
    shares = layer_scores({"X": X}, y, sample_weight=weights).row_shares
    np.testing.assert_allclose([shares[y == 0].sum(), shares[y == 1].sum()], 0.5)
    np.testing.assert_allclose(shares[y == 0] / shares[0], weights[:30] / weights[0])


def test_labels_and_numbers_are_scored_as_by_ridge(rng):
    X = rng.normal(size=(40, 4))
    for y in (X[:, 0] + rng.normal(size=40), (X[:, :2] > 1).astype(int)):
        expected = ridge_scores({"X": X}, y).row_losses
        np.testing.assert_array_equal(layer_scores({"X": X}, y).row_losses, expected)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_the_unit_of_numbers_does_not_matter(size, rng):
    layers = rng.normal(size=(2, 40, 4))
    y = layers[1] @ np.ones(4) + rng.normal(size=40)
    expected = layer_scores(layers, y)
    found = layer_scores(layers, size * y)
    np.testing.assert_allclose(found.scores, expected.scores - np.log(size), rtol=1e-9)
    both = layer_scores(layers, np.column_stack([y, size * y]))
    np.testing.assert_allclose(both.scores, 2 * expected.scores - np.log(size), rtol=1e-9)


# --- evidence -------------------------------------------------------------------------------


def best_density(F: np.ndarray, y: np.ndarray) -> float:
    """The largest density of y ~ N(0, b I + a F Fᵀ), by search over both variances."""

    def negative(logs: np.ndarray) -> float:
        a, b = np.exp(logs)
        covariance = b * np.eye(len(y)) + a * F @ F.T
        return -stats.multivariate_normal(cov=covariance).logpdf(y)

    runs = [
        optimize.minimize(negative, start, method="Nelder-Mead", options={"xatol": 1e-7})
        for start in ([-2.0, 0.0], [0.0, -1.0])
    ]
    return -min(run.fun for run in runs)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_log_evidence_is_exact(n, d, rng):
    F = rng.normal(size=(n, d))
    matrix = np.column_stack([F[:, 0] + rng.normal(size=n), rng.normal(size=n)])
    expected = [best_density(F, column) for column in matrix.T]
    np.testing.assert_allclose(log_evidence(F, matrix), expected, atol=1e-5)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_log_evidence_does_not_change_under_rescaling(n, d, rng):
    F, matrix = rng.normal(size=(n, d)), rng.normal(size=(n, 2))
    for scale in (1e-3, 7.0, 1e4):
        np.testing.assert_allclose(log_evidence(scale * F, matrix), log_evidence(F, matrix))


def contrasts(n: int) -> np.ndarray:
    """Return n - 1 orthonormal columns (n, n - 1) that see no mean."""
    return np.linalg.svd(np.eye(n) - 1 / n)[0][:, :-1]


def density_on_a_grid(F: np.ndarray, y: np.ndarray) -> float:
    """The largest density of y ~ N(0, b I + a F Fᵀ) over a grid of both logarithms."""
    covariances = F @ F.T
    values, vectors = np.linalg.eigh(covariances)
    z = (vectors.T @ y) ** 2
    variances = np.exp(np.linspace(-30, 10, 401))
    best = -np.inf
    for b in variances:
        spread = b + variances[:, None] * np.maximum(values, 0)
        best = max(best, -0.5 * (np.log(2 * np.pi * spread) + z / spread).sum(axis=1).min())
    return best


@pytest.mark.parametrize("noise", [0.01, 1.0, 30.0])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_logme_is_the_evidence_of_the_n_minus_one_contrasts(n, d, noise, rng):
    F = StandardScaler().fit_transform(rng.normal(size=(n, d)))
    y = 1e3 + F @ rng.normal(size=d) / np.sqrt(d) + noise * rng.normal(size=n)
    seen = contrasts(n).T
    expected = density_on_a_grid(seen @ F, seen @ y) / (n - 1)
    found = logme_scores({"F": F}, y).scores[0]
    assert expected - 1e-9 <= found <= expected + 0.01


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_without_a_signal_the_evidence_is_that_of_noise_alone(size, rng):
    n, d = 30, 5
    both = np.linalg.qr(np.column_stack([np.ones(n), rng.normal(size=(n, d + 1))]))[0]
    F, y = both[:, 1 : d + 1], size * both[:, -1]
    with np.errstate(under="ignore"):
        null = stats.norm(scale=np.sqrt(1 / (n - 1))).logpdf(0) - 0.5 - np.log(size)
    assert logme_scores({"F": F}, y).scores[0] == pytest.approx(null, rel=1e-12)
    constant = logme_scores({"F": F, "constant": np.ones((n, 3))}, y)
    assert constant.scores[0] == constant.scores[1]


def test_without_noise_the_evidence_is_its_limit(rng):
    """As many directions as rows, all of the size that slopes of one variance give them."""
    F = rng.normal(size=(12, 40))
    U, S, _ = np.linalg.svd(F)
    y = U @ S
    limit = stats.multivariate_normal(cov=F @ F.T).logpdf(y)
    assert log_evidence(F, y[:, None])[0] == pytest.approx(limit, abs=1e-9)
    assert log_evidence(F, 1e3 * y[:, None])[0] == pytest.approx(limit - 12 * np.log(1e3))


def test_where_the_evidence_has_no_maximum_it_says_so(rng):
    X = rng.normal(size=(40, 3))
    copy, repeated = rng.normal(size=(40, 3)), rng.normal(size=(40, 60))
    copy[:, 0] = X[:, 0]
    repeated[20:] = repeated[:20]
    with pytest.warns(UserWarning, match=r"fit y exactly.*rows are repeated.*no maximum"):
        found = logme_scores({"X": rng.normal(size=(40, 3)), "copy": copy}, X[:, 0])
    assert np.isfinite(found.scores).all() and found.best == "copy"
    with pytest.warns(UserWarning, match="no maximum"):
        logme_scores({"repeated": repeated}, np.tile(X[:20, 0], 2))
    assert np.isfinite(ridge_scores({"copy": copy}, X[:, 0]).scores[0])
    logme_scores({"copy": copy}, X[:, 0] + 0.01 * rng.normal(size=40))


# --- targets that say nothing ---------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["logme", "ridge"])
def test_labels_and_outputs_that_do_not_vary_are_left_out(criterion, rng):
    y = (rng.random((60, 2)) < 0.5).astype(int)
    layers = [rng.normal(size=(60, 4)), rng.normal(size=(60, 4)) + y[:, [0, 1, 0, 1]]]
    for labels, constant in ((y, 0), (y, 1), (rng.normal(size=(60, 2)), 0.1)):
        expected = layer_scores(np.stack(layers), labels, criterion=criterion)
        wider = np.insert(labels, 1, constant, axis=1)
        found = layer_scores(np.stack(layers), wider, criterion=criterion)
        np.testing.assert_array_equal(found.scores, expected.scores)
    assert layer_scores(np.stack(layers), np.insert(y, 1, 0, axis=1)).best == "layer1"
    weights = np.r_[np.ones(30), np.zeros(30)]
    y[:30, 1] = 1
    layer_scores(np.stack(layers), y, **RIDGE, sample_weight=weights)
    with pytest.raises(ValueError, match="same in all 30 rows that have weight"):
        layer_scores(np.stack(layers), y[:, 1], **RIDGE, sample_weight=weights)


def test_layers_that_say_nothing_score_finitely(rng):
    wide = rng.normal(size=(30, 50)).astype(np.float32)
    layers = {
        "zeros": np.zeros((30, 4)),
        "constant": np.full((30, 4), 3.7, np.float32),
        "one column": np.column_stack([np.ones(30), rng.normal(size=30)]),
        "tiny": wide * 1e-30,
        "large": wide * 1e30,
        "repeated rows": wide[np.arange(30) // 2],
        "rank 1": wide[:, :1] * np.ones(50, np.float32),
    }
    y = np.arange(30) % 3
    for criterion in CRITERIA:
        assert np.isfinite(layer_scores(layers, y, criterion=criterion).scores).all()


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([0.5, np.nan], "'ridge' score of 'b' is nan, by which no layer"),
        ([np.inf, 0.5], "'ridge' score of 'a' is inf, by which no layer"),
        ([-np.inf, -np.inf], "'ridge' score of 'a' is -inf"),
    ],
)
def test_scores_are_finite_before_a_choice(scores, words):
    with pytest.raises(ValueError, match=words):
        LayerScores("ridge", ("a", "b"), np.array(scores), None, None)


def test_a_hopeless_layer_is_not_chosen():
    for scores in ([-np.inf, -1e9], [-1e9, -np.inf]):
        found = LayerScores("ridge", ("a", "b"), np.array(scores), None, None)
        assert found.best == found.shallowest([0, 1]) == "ab"[int(np.argmax(scores))]


# --- the task -------------------------------------------------------------------------------


def test_counts_are_a_regression(rng):
    """Whole numbers in a row; read as classes, they are in the layer that knows each by name."""
    y = np.repeat(np.arange(60), 2)
    line = y[:, None] / 60 + 0.05 * rng.normal(size=(120, 1))
    names = rng.normal(size=(60, 24))[y] + 0.05 * rng.normal(size=(120, 24))
    layers = {"line": line, "names": names}
    assert layer_scores(layers, y).best == layer_scores(layers, y.astype(float)).best == "line"
    assert layer_scores(layers, y, task="classification").best == "names"
    assert layer_scores(layers, [f"{value}" for value in y]).best == "names"
    stars = y // 12
    assert layer_scores(layers, stars, task="regression").best == "line"
    by_rule = layer_scores(layers, stars, task="classification").scores
    np.testing.assert_array_equal(layer_scores(layers, stars).scores, by_rule)
    for criterion in ("h_score", "variability"):
        with pytest.raises(ValueError, match=r"takes classes, .*'continuous'.*classification'"):
            layer_scores(layers, y, criterion=criterion)
        layer_scores(layers, y, criterion=criterion, task="classification")


# --- the other criteria ---------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_h_score_by_hand(n, d):
    X, y = problem(n, d)
    shrunk, shrinkage = ledoit_wolf(X, assume_centered=True)
    between = sum((y == c).mean() * np.outer(m, m) for c in "abc" for m in [X[y == c].mean(0)])
    expected = (1 - shrinkage) * np.trace(np.linalg.solve(shrunk, between))
    assert layer_scores({"X": X}, y, criterion="h_score").scores[0] == pytest.approx(expected)


def test_variability_by_hand():
    X, y = problem(30, 5)
    within = sum(((X[y == c] - X[y == c].mean(0)) ** 2).sum() for c in "abc")
    between = (X**2).sum() - within
    found = layer_scores({"X": X}, y, criterion="variability")
    assert found.scores[0] == pytest.approx(between / within)


def test_effective_rank_counts_directions(rng):
    corners = np.kron(np.eye(4), np.array([[1.0], [-1.0]]))
    found = layer_scores({"even": corners, "one": corners[:, [0] * 4]}, criterion="effective_rank")
    np.testing.assert_allclose(found.scores, [4, 1])


@pytest.mark.filterwarnings("ignore:Vectors fit y exactly")  # 10 directions, 3 of them classes
@pytest.mark.parametrize("criterion", ["ridge", "logme", "h_score", "variability"])
def test_every_criterion_finds_the_layer_that_tells_the_classes_apart(criterion):
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    # Columns that go together, as those of language models do: the H-score lives on it.
    layers = np.stack([rng.normal(size=(150, 8)) @ rng.normal(size=(8, 40)) for _ in range(5)])
    layers[3] += 2 * rng.normal(size=(3, 40))[y]
    found = layer_scores(layers, y, criterion=criterion)
    assert found.best == found.shallowest(range(5)) == "layer3"


# --- what goes in and comes out -------------------------------------------------------------


def test_forms_of_blocks_agree():
    layers = [problem(30, 4)[0], problem(30, 4)[0] ** 2]
    y = problem(30, 4)[1]
    forms = [
        np.stack(layers),
        dict(zip(["layer0", "layer1"], layers, strict=True)),
        {"layer0": sparse.csr_array(layers[0]), "layer1": layers[1].tolist()},
        EmbeddingBlocks(layers, ["layer0", "layer1"]),
    ]
    made = [layer_scores(form, y) for form in forms]
    for found in made:
        assert found.names == ("layer0", "layer1")
        np.testing.assert_array_equal(found.scores, made[0].scores)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(("n", "d"), [(60, 100), (300, 40)])
def test_float32_is_exact_enough_and_scale_does_not_matter(criterion, n, d):
    X, y = problem(n, d)
    expected = layer_scores({"X": X}, y, criterion=criterion).scores
    narrow = (1000 * X + 50).astype(np.float32)
    found = layer_scores({"X": narrow}, y, criterion=criterion).scores
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("stretch", "chosen"), [(2, "layer5"), (3, "layer9")])
def test_a_worse_stretch_of_a_tenth_of_the_depths_is_passed_over(stretch, chosen):
    """Of 20 layers the ninth is best and the fifth as good; those between are not."""
    scores = np.full(20, -9.0)
    scores[9], scores[5] = -1.0, -1.005
    scores[6 + stretch : 9] = -1.005
    names = tuple(f"layer{i}" for i in range(20))
    found = LayerScores("logme", names, scores, None, None)
    assert found.shallowest(range(20)) == chosen


def test_shallowest_by_hand():
    scores = np.array([-0.7, -0.505, -0.6, -0.506, -0.5, -0.505])
    found = LayerScores("logme", tuple("abcdef"), scores, None, None)
    assert found.best == "e"
    assert found.shallowest(range(6)) == "d"  # "b" is as good too, but lies behind "c"
    assert found.shallowest([0, 1, 2, 1, 2, 0]) == "f"  # of "b" and "d" to it, and of "a" and "f"
    unitless = LayerScores("h_score", tuple("abcdef"), scores, None, None)
    assert unitless.shallowest(range(6)) == "e"


def test_a_hundredth_of_a_bit_is_a_likelihood_ratio_of_a_row():
    """Of 100 rows a layer may be less likely by a factor of two, and no more."""
    for gap, chosen in ((0.99, "a"), (1.01, "b")):
        scores = np.array([-0.5 - gap * np.log(2) / 100, -0.5])
        assert LayerScores("logme", ("a", "b"), scores, None, None).shallowest([0, 1]) == chosen


def by_losses(losses: np.ndarray, names: str) -> LayerScores:
    """Return scores with the standard errors of differences to the best."""
    scores = -losses.mean(axis=0)
    errors = stats.sem(losses - losses[:, [int(np.argmax(scores))]], axis=0)
    return LayerScores("balanced", tuple(names), scores, errors, losses)


def test_ties_are_within_one_standard_error(rng):
    noise = rng.normal(size=400)
    noise = (noise - noise.mean()) / noise.std(ddof=1) * 20  # a mean difference errs by 1
    losses = np.column_stack([np.zeros(400), noise + 0.99, noise + 1.01])
    assert by_losses(losses, "abc").ties == ("a", "b")
    assert LayerScores("logme", ("a", "b", "c"), np.array([1.0, 2, 2]), None, None).ties == (
        "b",
        "c",
    )


@pytest.mark.parametrize(("lead", "chosen"), [(2.99, "b"), (3.01, "d")])
def test_another_pooling_must_beat_the_means_by_three_standard_errors(lead, chosen, rng):
    noise = rng.normal(size=400)
    noise = (noise - noise.mean()) / noise.std(ddof=1) * 20
    losses = np.column_stack([np.full(400, 0.5), np.zeros(400), noise + 5, noise - lead])
    found = by_losses(losses, "abcd")
    assert found.best == found.shallowest(range(4)) == "d"
    poolings = ["mean", "mean_no_first", "last", "last"]
    assert found.shallowest(range(4), poolings) == chosen
    assert found.shallowest(range(4), ["first", "last", "last", "last"]) == "d"
    unknown = LayerScores("logme", found.names, found.scores, None, None)
    assert unknown.shallowest(range(4), poolings) == "d"


def test_arguments_are_left_alone_and_no_random_number_is_drawn():
    X, y = problem(30, 4)
    before, state = X.copy(), np.random.get_state()[1].copy()  # noqa: NPY002 - the global one
    for criterion in CRITERIA:
        layer_scores({"X": X}, y, criterion=criterion)
    np.testing.assert_array_equal(X, before)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


WRONG = [
    ({"y": None}, ValueError, "requires y .*effective_rank"),
    ({"criterion": "best"}, ValueError, "criterion='best' must be one of balanced, logme, ridge"),
    ({"y": ["a"] * 9}, ValueError, "one class|1 class: .*'a'"),
    ({"y": ["a", "b"]}, ValueError, "inconsistent numbers"),
    ({"y": [np.nan] * 9}, ValueError, "NaN"),
    ({"y": np.linspace(0, 1, 9), "criterion": "h_score"}, ValueError, "classes, .*numbers"),
    (
        {"y": np.linspace(0, 1, 9), **RIDGE, "class_weight": "balanced"},
        ValueError,
        "needs classes",
    ),
    (
        {"criterion": "logme", "sample_weight": np.ones(9)},
        ValueError,
        "takes no class_weight.*'ridge' does",
    ),
    ({"class_weight": {0: 2}}, ValueError, r"counts classes alike.*got \{0: 2\}.*'ridge' does"),
    ({**RIDGE, "sample_weight": -np.ones(9)}, ValueError, "[Nn]egative"),
    ({**RIDGE, "sample_weight": np.eye(9)[0]}, ValueError, "n_samples=1"),
    ({"y": np.array([[0, 1, 2]] * 9)}, ValueError, "same in all 9 rows"),
    ({"task": "classes"}, ValueError, "task='classes' must be one of auto, classification, reg"),
    ({"y": np.eye(9) * 2, "task": "classification"}, ValueError, "multiclass-multioutput"),
    ({"y": np.linspace(0, 1, 9), "task": "classification"}, ValueError, "takes classes or labels"),
    ({"y": ["a", "b", "c"] * 3, "task": "regression"}, ValueError, "numbers, got str values"),
    ({"blocks": np.ones((9, 2))}, TypeError, r"n_layers, n_samples"),
    ({"blocks": {}}, ValueError, "one at least"),
    ({"blocks": {"a": np.ones((9, 1)), "b": np.ones((8, 1))}}, ValueError, "same rows"),
    ({"blocks": {"a": np.full((9, 1), np.inf)}}, ValueError, "infinity"),
    ({"blocks": {"a": 1e200 * np.eye(9)}}, ValueError, "'a' holds values too large to be stand"),
]


@pytest.mark.filterwarnings("ignore:overflow encountered in square:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize(("change", "error", "words"), WRONG)
def test_errors(change, error, words):
    options = {"blocks": np.ones((2, 9, 3)), "y": [0, 1, 0] * 3, **change}
    blocks, y = options.pop("blocks"), options.pop("y")
    with pytest.raises(error, match=words):
        layer_scores(blocks, y, **options)
