"""`FusionTransformer`: boundaries, formulas, names, errors, and no statistic of a test row."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.fixes import parse_version

from skfusion._blocks import EmbeddingBlocks
from skfusion.fusion.operators import hadamard
from skfusion.fusion.projection import ProjectionWarning
from skfusion.fusion.registry import (
    BUILT_IN,
    OPERATORS,
    PAPER_OPERATORS,
    register_operator,
)
from skfusion.fusion.transformer import FusionTransformer

NAMES = [*sorted(BUILT_IN), "weighted"]
PROJECTED = [name for name in NAMES if name not in ("concat", "weighted")]
PROJECTIONS = ["pca", "random", "supervised"]


def make_blocks(n: int = 40, *, dtype: type = np.float64, seed: int = 0) -> EmbeddingBlocks:
    rng = np.random.default_rng(seed)
    sizes = {"a": 16, "b": 20, "c": 17}
    mixed = rng.normal(size=(n, 8))
    return EmbeddingBlocks(
        {
            name: (3 + mixed @ rng.normal(size=(8, k)) + rng.normal(size=(n, k))).astype(dtype)
            for name, k in sizes.items()
        }
    )


@pytest.fixture(scope="module")
def blocks():
    return make_blocks()


@pytest.fixture(scope="module")
def labels(blocks):
    return np.array(["no", "yes"])[(np.asarray(blocks)[:, 0] > 3).astype(int)]


def fused_by(operator: str, **more: Any) -> FusionTransformer:
    return FusionTransformer(operator, random_state=0, **more)


# --- what comes out ---------------------------------------------------------------------------


@pytest.mark.parametrize("operator", PROJECTED)
@pytest.mark.parametrize("projection", ["pca", "random"])
def test_both_residuals_against_the_formulas(blocks, operator, projection):
    n_components = 16
    plain = fused_by(operator, projection=projection, n_components=n_components).fit(blocks)
    scaled = [StandardScaler().fit_transform(block) for block in blocks.blocks.values()]
    projected = [
        project(E) for project, E in zip(plain.projections_.values(), scaled, strict=True)
    ]
    F = OPERATORS[operator](projected)
    np.testing.assert_allclose(plain.transform(blocks), F, atol=1e-9)
    concat = clone(plain).set_params(residual="concat").fit_transform(blocks)
    np.testing.assert_allclose(concat, np.hstack([*scaled, F]), atol=1e-9)
    add = clone(plain).set_params(residual="add").fit_transform(blocks)
    np.testing.assert_allclose(add, F + np.mean(projected, axis=0), atol=1e-9)


def test_pca_is_that_of_scikit_learn(blocks):
    fuse = fused_by("sum", n_components=5).fit(blocks)
    for name, block in blocks.blocks.items():
        scaled = StandardScaler().fit_transform(block)
        expected = PCA(5, svd_solver="full").fit_transform(scaled)
        found = fuse.projections_[name](scaled)
        np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-8)
        weight = fuse.projections_[name].weight
        assert (weight[np.abs(weight).argmax(axis=0), range(5)] > 0).all()


@pytest.mark.parametrize("residual", [False, "concat", "add"])
@pytest.mark.parametrize("operator", ["concat", "weighted"])
def test_side_by_side_operators_have_no_residual(blocks, labels, operator, residual):
    plain = fused_by(operator).fit_transform(blocks, labels)
    with_residual = fused_by(operator, residual=residual).fit_transform(blocks, labels)
    np.testing.assert_array_equal(plain, with_residual)


def test_paper_operators(blocks):
    assert len(PAPER_OPERATORS) == 9
    found = {(s["operator"], s["residual"]) for s in PAPER_OPERATORS}
    four = ["sum", "quaternion", "multiplication", "hadamard"]
    assert found == {("concat", False), *((o, r) for o in four for r in (False, "concat"))}
    for setting in PAPER_OPERATORS:
        assert FusionTransformer(**setting).fit_transform(blocks).shape[0] == 40


@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_dtypes_layout_and_finite(operator, projection, labels):
    for dtype in (np.float32, np.float64):
        X = make_blocks(dtype=dtype)
        fuse = fused_by(operator, projection=projection, residual="concat").fit(X, labels)
        out = fuse.transform(X)
        assert out.dtype == dtype and out.flags.c_contiguous and np.isfinite(out).all()
        assert list(fuse.output_indices_.values())[-1].stop == out.shape[1]
    for other in (np.float16, np.int64):
        X = EmbeddingBlocks({k: b.astype(other) for k, b in make_blocks().blocks.items()})
        assert fused_by("sum").fit_transform(X).dtype == np.float64


def test_float32_is_close_to_float64():
    double = fused_by("hadamard").fit_transform(make_blocks())
    single = fused_by("hadamard").fit_transform(make_blocks(dtype=np.float32))
    np.testing.assert_allclose(single, double, atol=1e-4)


def test_mixed_dtypes():
    X = EmbeddingBlocks({"a": np.eye(4, dtype=np.float32), "b": np.eye(4)})
    assert FusionTransformer().fit_transform(X).dtype == np.float64


def test_output_is_not_the_input(blocks):
    single = blocks.select(["a"])
    before = np.array(single)
    for operator in ("concat", "sum", "hadamard"):
        for X in (single, before):
            fuse = FusionTransformer(operator, scale=None, block_sizes="single")
            assert not np.may_share_memory(fuse.fit_transform(X), np.asarray(X))
    np.testing.assert_array_equal(single, before)


def test_scale_l2_and_none(blocks):
    rows = FusionTransformer(scale="l2").fit_transform(blocks)
    np.testing.assert_allclose(np.linalg.norm(rows[:, :16], axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm(rows[:, 16:36], axis=1), 1)
    np.testing.assert_array_equal(FusionTransformer(scale=None).fit_transform(blocks), blocks)


@pytest.mark.parametrize("operator", PROJECTED)
def test_one_block(blocks, operator):
    single = blocks.select(["a"])
    if operator in ("multiplication", "quaternion"):
        with pytest.raises(ValueError, match="at least two blocks, got 1"):
            fused_by(operator).fit(single)
        return
    expected = StandardScaler().fit_transform(single)
    np.testing.assert_allclose(fused_by(operator).fit_transform(single), expected, atol=1e-12)
    assert fused_by(operator, n_components=3).fit_transform(single).shape == (40, 3)


def test_order_of_blocks(blocks):
    swapped = blocks.select(["b", "a"])
    straight = blocks.select(["a", "b"])
    for operator in PROJECTED:
        if operator == "bilinear":
            continue  # its sketches are drawn in the order of the blocks
        a, b = (fused_by(operator).fit_transform(X) for X in (straight, swapped))
        assert np.allclose(a, b) == (operator not in ("multiplication", "quaternion"))


# --- boundaries -------------------------------------------------------------------------------


def test_boundaries_from_everywhere(blocks):
    columns = [f"{name}__{i}" for name, k in blocks.block_sizes.items() for i in range(k)]
    plain = np.asarray(blocks)
    expected = fused_by("hadamard").fit_transform(blocks)
    frames = [pd.DataFrame(plain, columns=columns), pl.DataFrame(plain, schema=columns)]
    for X in [blocks, *frames]:
        fuse = fused_by("hadamard").fit(X)
        assert fuse.block_indices_ == blocks.slices
        np.testing.assert_allclose(fuse.transform(X), expected)
    for sizes in ([16, 20, 17], np.array([16, 20, 17]), {"x": 16, "y": 20, "z": 17}):
        for X in [plain, plain.tolist(), blocks, *frames]:
            fuse = fused_by("hadamard", block_sizes=sizes).fit(X)
            np.testing.assert_allclose(fuse.transform(X), expected)
            assert list(fuse.block_indices_.values()) == list(blocks.slices.values())
    assert list(fuse.block_indices_) == ["x", "y", "z"]


def test_block_sizes_go_before_the_blocks(blocks):
    fuse = fused_by("concat", block_sizes="single").fit(blocks)
    assert fuse.block_indices_ == {"block0": slice(0, 53)}


def test_a_plain_array_will_do_after_fit(blocks):
    fuse = fused_by("sum").fit(blocks)
    np.testing.assert_array_equal(fuse.transform(np.asarray(blocks)), fuse.transform(blocks))


def test_boundaries_lost_by_a_scaler(blocks, labels):
    pipe = make_pipeline(StandardScaler(), FusionTransformer(), LogisticRegression())
    with pytest.raises(ValueError, match=r"StandardScaler.*scale='standard'.*block_sizes=\["):
        pipe.fit(blocks, labels)
    pipe.set_params(fusiontransformer__block_sizes=[16, 20, 17]).fit(blocks, labels)


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_feature_union_with_frames(container):
    if container == "polars" and parse_version(sklearn.__version__) < parse_version("1.9"):
        pytest.skip("its FeatureUnion cannot join frames of equal column names")
    X = np.random.default_rng(0).normal(size=(30, 6))
    union = FeatureUnion(
        [("raw", FunctionTransformer(feature_names_out="one-to-one")), ("std", StandardScaler())]
    ).set_output(transform=container)
    pipe = make_pipeline(union, FusionTransformer("hadamard", residual="concat"))
    out = pipe.set_output(transform=container).fit_transform(X)
    assert pipe[-1].block_indices_ == {"raw": slice(0, 6), "std": slice(6, 12)}
    assert list(out.columns[:2]) == ["raw__x0", "raw__x1"]
    assert list(out.columns[-2:]) == ["hadamard4", "hadamard5"]
    union.transformer_list[0] = ("raw", StandardScaler())
    again = clone(pipe).fit_transform(X)
    assert again.shape == (30, 18)


def test_polars_and_pandas_keep_float32(blocks):
    columns = [f"{name}__{i}" for name, k in blocks.block_sizes.items() for i in range(k)]
    single = np.asarray(blocks, dtype=np.float32)
    for frame in (pd.DataFrame(single, columns=columns), pl.DataFrame(single, schema=columns)):
        fuse = FusionTransformer("sum").fit(frame)
        assert fuse.transform(frame).dtype == np.float32
        assert list(fuse.feature_names_in_) == columns
        with pytest.raises(ValueError, match="feature names"):
            fuse.transform(frame[columns[::-1]])


# --- names ------------------------------------------------------------------------------------


def test_names_of_columns(blocks, labels):
    fuse = FusionTransformer("sum", residual="concat", n_components=2).fit(blocks)
    names = fuse.get_feature_names_out()
    assert [*names[:2], *names[-2:]] == ["a__0", "a__1", "sum0", "sum1"]
    assert fuse.output_indices_ == {**blocks.slices, "sum": slice(53, 55)}
    given = [f"g{i}" for i in range(53)]
    assert list(fuse.get_feature_names_out(given)) == [*given, "sum0", "sum1"]
    known = EmbeddingBlocks(blocks.blocks, feature_names=given)
    fuse = FusionTransformer("concat").fit(known)
    assert list(fuse.get_feature_names_out()) == given == list(fuse.feature_names_in_)
    assert fuse.fit(blocks).get_feature_names_out()[0] == "a__0"
    with pytest.raises(ValueError, match="input_features"):
        fuse.get_feature_names_out(["too", "few"])


def test_a_block_named_like_the_operator(blocks):
    X = EmbeddingBlocks([blocks.blocks["a"], blocks.blocks["b"]], ["sum", "b"])
    fuse = FusionTransformer("sum", residual="concat").fit(X)
    assert list(fuse.output_indices_) == ["sum", "b", "sum_"]
    assert len(set(fuse.get_feature_names_out())) == 16 + 20 + 16


@pytest.mark.parametrize("container", ["pandas", "polars"])
@pytest.mark.parametrize("residual", [False, "concat"])
@pytest.mark.parametrize("operator", NAMES)
def test_set_output(blocks, labels, operator, residual, container):
    fuse = fused_by(operator, residual=residual).set_output(transform=container)
    out = fuse.fit(blocks, labels).transform(blocks)
    assert type(out).__module__.startswith(container)
    assert list(out.columns) == list(fuse.get_feature_names_out())


# --- the common width -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "n_rows", "width"),
    [
        ("sum", 40, 16),
        ("sum", 12, 11),
        ("quaternion", 40, 16),
        ("quaternion", 12, 8),
        ("multiplication", 40, 16),
        ("multiplication", 12, 9),
    ],
)
def test_default_width(operator, n_rows, width):
    fuse = FusionTransformer(operator)
    if width == 16:
        out = fuse.fit_transform(make_blocks(n_rows))
    else:
        with pytest.warns(ProjectionWarning, match=f"is {width}, not 16 .*= {n_rows - 1} comp"):
            out = fuse.fit_transform(make_blocks(n_rows))
    assert out.shape[1] == width == fuse.common_width_
    rounded = OPERATORS[operator].width.largest(17)
    wide = make_blocks(n_rows).select(["b", "c"])
    out = FusionTransformer(operator, projection="random").fit_transform(wide)
    assert out.shape[1] == rounded


def test_too_few_rows_are_said_once_in_a_search():
    X, y = make_blocks(24), np.arange(24) % 2
    pipe = make_pipeline(FusionTransformer("sum"), LogisticRegression())
    grid = {"fusiontransformer__operator": ["sum", "hadamard"]}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        GridSearchCV(pipe, grid, cv=3).fit(X.select(["b", "c"]), y)
    assert sum(one.category is ProjectionWarning for one in said) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"operator": "quaternion", "n_components": 10}, "multiple of 4, got 10.*8 and 12"),
        ({"operator": "multiplication", "n_components": 10}, "square, got 10.*9 and 16"),
        ({"operator": "sum", "n_components": 17}, "n_components=17 is more.*give: 16"),
        ({"operator": "sum", "projection": None}, r"widths \[16, 20, 17\].*equal"),
        ({"operator": "gated"}, "FusionMLPClassifier only.*weighted"),
        ({"operator": "plus"}, "no operator 'plus'. Use one of concat, sum"),
        ({"residual": True}, "residual=True is not known"),
        ({"residual": "mul"}, "residual"),
        ({"block_sizes": [16, 20]}, "add up to 36, but X has 53 columns"),
        ({"block_sizes": [16, 37, 0]}, "must be a list of widths"),
        ({"block_sizes": []}, "must be a list of widths"),
        ({"block_sizes": {"": 53}}, "must be a non-empty str"),
        ({"block_sizes": "one"}, "block_sizes"),
        ({"operator": "sum", "projection": "supervised"}, "requires y to be passed"),
    ],
)
def test_errors_at_fit(blocks, parameters, message):
    with pytest.raises(ValueError, match=message):
        FusionTransformer(**parameters).fit(blocks)


def test_widths_without_projection(blocks):
    X = EmbeddingBlocks([blocks.blocks["b"], blocks.blocks["b"] ** 2])
    assert fused_by("quaternion", projection=None).fit_transform(X).shape == (40, 20)
    with pytest.raises(ValueError, match=r"square, got 20.*16 and 25"):
        fused_by("multiplication", projection=None).fit(X)
    with pytest.raises(ValueError, match="width 20, but n_components=8"):
        fused_by("sum", projection=None, n_components=8).fit(X)


def test_too_narrow_for_any_width():
    X = EmbeddingBlocks([np.eye(9, 3), np.eye(9, 5)])
    with pytest.raises(ValueError, match="multiple of 4, but the most there is is 3"):
        FusionTransformer("quaternion").fit(X)


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["concat", "sum"])
def test_nan_names_the_block(blocks, operator):
    bad = np.array(blocks.blocks["b"])
    bad[3, 2] = np.nan
    X = EmbeddingBlocks({**blocks.blocks, "b": bad})
    with pytest.raises(ValueError, match="block 'b' contains NaN"):
        fused_by(operator).fit(X)
    with pytest.raises(ValueError, match="block 'b' contains NaN"):
        fused_by(operator).fit(blocks).transform(X)
    with pytest.raises(ValueError, match="contains NaN"):
        fused_by(operator, block_sizes="single").fit(np.asarray(X))


def test_other_blocks_at_transform(blocks):
    fuse = FusionTransformer().fit(blocks)
    with pytest.raises(ValueError, match=r"blocks a: 16, b: 20 \(36 features\).*c: 17 of fit"):
        fuse.transform(blocks.select(["a", "b"]))
    with pytest.raises(ValueError, match="blocks b: 20, a: 16, c: 17"):
        fuse.transform(blocks.select(["b", "a", "c"]))
    with pytest.raises(ValueError, match="X has 36 features, but FusionTransformer is expecting"):
        fuse.transform(np.asarray(blocks.select(["a", "b"])))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["a__0", "b", "a__1"], "Column 'b' of X does not say"),
        (["a__0", "__1", "a__1"], "Column '__1' of X"),
        (["a__0", "b__0", "a__1"], "block 'a' are not adjacent"),
    ],
)
def test_bad_column_names(columns, message):
    with pytest.raises(ValueError, match=message):
        FusionTransformer().fit(pd.DataFrame(np.eye(3), columns=columns))


@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("scale", ["standard", "l2", None])
def test_a_block_that_does_not_vary(blocks, labels, operator, projection, scale):
    for constant in (np.zeros((40, 16)), np.full((40, 16), 0.1, dtype=np.float32)):
        X = EmbeddingBlocks({"a": constant, "b": blocks.blocks["b"]})
        fuse = fused_by(operator, projection=projection, scale=scale, residual="concat")
        fuse.fit(X, labels)
        assert np.isfinite(fuse.transform(X)).all()
        moved = EmbeddingBlocks({"a": constant + 0.01, "b": blocks.blocks["b"]})
        if operator == "weighted":  # it has no columns of its own
            np.testing.assert_array_equal(fuse.transform(moved), fuse.transform(X))
        else:
            assert np.abs(fuse.transform(moved)[:, :16]).max() <= 1


@pytest.mark.parametrize("operator", PROJECTED)
def test_a_single_training_row(blocks, operator):
    row = blocks[:1]
    with pytest.raises(ValueError, match="two training rows at least, got n_samples=1"):
        fused_by(operator).fit(row) if operator != "bilinear" else fused_by("sum").fit(row)
    fuse = fused_by(operator, projection="random", residual="concat").fit(row)
    assert np.isfinite(fuse.transform(blocks)).all()
    assert np.isfinite(FusionTransformer().fit(row).transform(blocks)).all()
    for needy in (fused_by("weighted"), fused_by("sum", projection="supervised")):
        with pytest.raises(ValueError, match="got 1 class"):
            needy.fit(row, ["yes"])


# --- learning from training rows only ---------------------------------------------------------


def fitted_state(fuse: FusionTransformer) -> bytes:
    state = {k: v for k, v in vars(fuse).items() if k.endswith("_")}
    return pickle.dumps(state)


@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_no_statistic_sees_a_test_row(blocks, labels, operator, projection):
    train = np.arange(30)
    poisoned = EmbeddingBlocks({k: b.copy() for k, b in blocks.blocks.items()})
    for block in poisoned.blocks.values():
        block[30:] = 1e6
    states, outputs = [], []
    for X in (blocks, poisoned):
        fuse = fused_by(operator, projection=projection).fit(X[train], labels[train])
        before = fitted_state(fuse)
        fuse.transform(X)
        assert fitted_state(fuse) == before
        states.append(before)
        outputs.append(fuse.transform(blocks))
    assert states[0] == states[1]
    np.testing.assert_array_equal(*outputs)
    for i in (0, 35):
        alone = fuse.transform(blocks[[i]])
        np.testing.assert_allclose(alone[0], outputs[1][i], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_random_state(blocks, labels, operator, projection):
    def run(seed: Any) -> np.ndarray:
        parameters = {"projection": projection, "n_components": 4, "random_state": seed}
        fuse = FusionTransformer(operator, **parameters)
        return fuse.fit(blocks, labels).transform(blocks)

    before = np.random.mtrand._rand.get_state()[1].copy()
    first = run(3)
    np.testing.assert_array_equal(first, run(np.random.RandomState(3)))
    by_chance = operator == "bilinear" or (operator in PROJECTED and projection != "pca")
    assert np.array_equal(first, run(4)) != by_chance
    np.testing.assert_array_equal(np.random.mtrand._rand.get_state()[1], before)


# --- in use -----------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", BUILT_IN)
def test_without_labels(blocks, operator):
    fuse = fused_by(operator)
    assert make_pipeline(fuse, KMeans(2, n_init=1, random_state=0)).fit_predict(blocks).size == 40
    found = NearestNeighbors(metric="cosine").fit(fuse.fit_transform(blocks))
    assert found.kneighbors(fuse.transform(blocks[:3]))[1][:, 0].tolist() == [0, 1, 2]


def test_all_settings_in_a_search(blocks, labels):
    pipe = make_pipeline(fused_by("sum"), LogisticRegression())
    grid = {
        "fusiontransformer__operator": NAMES,
        "fusiontransformer__residual": [False, "concat", "add"],
        "fusiontransformer__projection": ["pca", "random"],
    }
    search = GridSearchCV(pipe, grid, cv=2, error_score="raise").fit(blocks, labels)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.fixture
def gap():
    register_operator("gap", lambda blocks: abs(blocks[0] - blocks[1]), width=5)
    yield "gap"
    OPERATORS.pop("gap", None)


def test_an_operator_of_ones_own(blocks, labels, gap):
    X = blocks.select(["a", "b"])
    fuse = FusionTransformer(gap, residual="concat").fit(X)
    assert fuse.output_indices_["gap"] == slice(36, 51)
    a, b = (
        u(s(E))
        for u, s, E in zip(
            fuse.projections_.values(), fuse.scalers_.values(), X.blocks.values(), strict=True
        )
    )
    np.testing.assert_allclose(fuse.transform(X)[:, 36:], abs(a - b))
    with pytest.raises(ValueError, match=r"multiple of 5, got 7. The nearest valid are 5 and 10"):
        FusionTransformer(gap, n_components=7).fit(X)
    pipe = make_pipeline(FusionTransformer(), LogisticRegression())
    grid = {"fusiontransformer__operator": [gap, "sum"]}
    GridSearchCV(pipe, grid, n_jobs=2, error_score="raise").fit(X, labels)
    trained = fused_by(gap, projection="supervised").fit(X, labels)
    assert np.isfinite(trained.transform(X)).all()


def test_an_operator_travels_with_a_pickle(blocks, gap):
    fuse = FusionTransformer(gap).fit(blocks)
    expected, kept = fuse.transform(blocks), pickle.dumps(fuse)
    del OPERATORS["gap"]
    again = pickle.loads(kept)
    np.testing.assert_array_equal(again.transform(blocks), expected)
    for copy in (clone(again), pickle.loads(pickle.dumps(again))):
        np.testing.assert_array_equal(copy.fit(blocks).transform(blocks), expected)
    assert "gap" not in OPERATORS  # unpickling changes nothing of the process


def test_an_unpickled_operator_replaces_none_that_is_registered(blocks, gap):
    fuse = FusionTransformer(gap).fit(blocks)
    expected, kept = fuse.transform(blocks), pickle.dumps(fuse)
    for _ in range(2):  # whichever was registered later
        register_operator(gap, lambda blocks: 2 * abs(blocks[0] - blocks[1]), width=5)
        here, again = OPERATORS[gap], pickle.loads(kept)
        np.testing.assert_array_equal(again.transform(blocks), expected)
        assert OPERATORS[gap] is here
        np.testing.assert_array_equal(clone(again).fit_transform(blocks), 2 * expected)
        np.testing.assert_array_equal(fuse.transform(blocks), 2 * expected)
        kept = pickle.dumps(again)


def test_a_pickle_cannot_replace_what_skfusion_has(blocks):
    fuse = FusionTransformer("sum").fit(blocks)
    state = fuse.__getstate__() | {"_own_operators": {"sum": (hadamard, lambda d: True, "any")}}
    again = clone(fuse)
    again.__setstate__(state)
    np.testing.assert_array_equal(again.transform(blocks), fuse.transform(blocks))


def test_workers_of_a_nested_search_have_the_operator(blocks, labels, gap):
    X = blocks.select(["a", "b"])
    fuse = fused_by("sum", projection="random", n_components=5)
    pipe = make_pipeline(fuse, LogisticRegression())
    grid = {"fusiontransformer__operator": [gap]}
    search = GridSearchCV(pipe, grid, cv=2, error_score="raise")
    scores = [cross_val_score(search, X, labels, cv=2, n_jobs=n) for n in (1, 2)]
    register_operator(gap, lambda blocks: 0 * blocks[0])  # the workers live on
    again = cross_val_score(search, X, labels, cv=2, n_jobs=2, error_score="raise")
    np.testing.assert_array_equal(*scores)
    assert not np.array_equal(scores[0], again)


@pytest.mark.parametrize(
    ("arguments", "more", "error", "message"),
    [
        (("sum", hadamard), {}, ValueError, "cannot be named 'sum'"),
        (("weighted", hadamard), {}, ValueError, "cannot be named"),
        (("", hadamard), {}, ValueError, "cannot be named ''"),
        (("own", 3), {}, TypeError, "'own' cannot be called: 3"),
        (("own", hadamard), {"width": 0}, ValueError, "width must be an int from 1"),
    ],
)
def test_bad_registrations(arguments, more, error, message):
    with pytest.raises(error, match=message):
        register_operator(*arguments, **more)
    assert "own" not in OPERATORS


def test_pickle_is_small_and_exact(blocks):
    fuse = fused_by("quaternion").fit(blocks)
    again = pickle.loads(pickle.dumps(fuse))
    np.testing.assert_array_equal(again.transform(blocks), fuse.transform(blocks))


def test_refit_forgets(blocks, labels):
    fuse = fused_by("weighted").fit(blocks, labels)
    assert hasattr(fuse, "kernel_weights_") and hasattr(fuse, "blend_")
    fuse.set_params(operator="quaternion").fit(blocks)
    assert not hasattr(fuse, "kernel_weights_") and not hasattr(fuse, "blend_")
    expected = fuse.transform(blocks)
    fuse.set_params(operator="concat", residual="add")  # takes effect at the next fit only
    np.testing.assert_array_equal(fuse.transform(blocks), expected)


def test_signs_of_components_are_fixed(blocks):
    """Signs of principal components matter for products: they are fixed, whatever the rows."""
    fuse = fused_by("quaternion").fit(blocks)
    shuffled = fused_by("quaternion").fit(blocks[np.random.default_rng(0).permutation(40)])
    np.testing.assert_allclose(fuse.transform(blocks), shuffled.transform(blocks), atol=1e-6)
