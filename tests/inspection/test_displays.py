"""Displays: what they compute from real searches, and what they draw."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import matplotlib
import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.pipeline import Pipeline, make_pipeline

from skfusion import (
    EmbedderUnion,
    EmbeddingBlocks,
    FusionHeatmapDisplay,
    FusionMLPClassifier,
    FusionTransformer,
    LayerHeatmapDisplay,
    LayerProfileDisplay,
    LLMLayerEmbedder,
    ModelSubsetSearchCV,
    OptunaSearchCV,
    PoolingDisplay,
    SubsetDisplay,
    TradeoffDisplay,
    WeightsDisplay,
)
from skfusion.inspection.candidates import half_intervals, within_one_error


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    matplotlib.use("agg")
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


class Column(ClassifierMixin, BaseEstimator):
    """Logistic regression on one of eight columns: four layers with two poolings."""

    def __init__(self, layer: Any = 0, pooling: str = "mean", C: float = 1.0) -> None:
        self.layer = layer
        self.pooling = pooling
        self.C = C

    def _column(self, X: Any) -> Any:
        if self.layer == 99:
            raise RuntimeError("no such layer")
        return X[:, [range(4)[self.layer] + 4 * (self.pooling == "last")]]

    def fit(self, X: Any, y: Any) -> Column:
        self.inner_ = LogisticRegression(C=self.C).fit(self._column(X), y)
        self.classes_ = self.inner_.classes_
        return self

    def predict(self, X: Any) -> Any:
        return self.inner_.predict(self._column(X))


GRID = {"layer": [0, 1, 2, -1], "pooling": ["mean", "last"], "C": [0.1, 1.0]}


def rows() -> tuple[Any, Any]:
    """The mean of layer 2 knows the class, all other columns are noise."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 8)), np.arange(60) % 2
    X[:, 2] += 4 * y
    return X, y


def search(grid: Any = None, **settings: Any) -> GridSearchCV:
    settings = {"cv": 3, "scoring": "accuracy", **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that fail
        return GridSearchCV(Column(), GRID if grid is None else grid, **settings).fit(*rows())


def scores_of(fitted: Any, **params: Any) -> np.ndarray:
    """The split scores of the best candidate with these parameters."""
    results = fitted.cv_results_
    scores = np.stack([results[f"split{i}_test_score"] for i in range(fitted.n_splits_)], axis=1)
    own = [all(p[k] == v for k, v in params.items()) for p in results["params"]]
    return scores[own][np.argmax(scores[own].mean(axis=1))]


def drawn_texts(display: Any) -> list[str]:
    """All words of a picture."""
    from matplotlib.text import Text

    return [text.get_text() for text in display.figure_.findobj(Text) if text.get_text()]


# --- rules -----------------------------------------------------------------------------------


def test_ties_are_those_of_the_paired_rule() -> None:
    scores = np.array([[0.9, 0.7, 0.8], [0.88, 0.72, 0.78], [0.6, 0.4, 0.5], [0.9, 0.5, 0.95]])
    behind = scores[0] - scores
    expected = behind.mean(1) <= behind.std(1, ddof=1) / np.sqrt(3)
    assert within_one_error(scores).tolist() == expected.tolist() == [True, True, False, True]
    assert within_one_error(np.array([[0.5], [0.4], [0.5]])).tolist() == [True, False, True]


def test_one_split_has_no_interval() -> None:
    assert np.isnan(half_intervals(np.array([[0.5], [0.7]]), 0.3)).all()


# --- from searches ---------------------------------------------------------------------------


def test_a_profile_has_the_best_candidate_of_each_layer() -> None:
    fitted = search()
    display = LayerProfileDisplay.from_cv_results(fitted, by="pooling")
    assert display.layers == ["0", "1", "2", "last"]
    assert list(display.profiles) == ["mean", "last"]
    for pooling, profile in display.profiles.items():
        for value, layer in zip(np.asarray(profile), GRID["layer"], strict=True):
            assert value == pytest.approx(scores_of(fitted, layer=layer, pooling=pooling).mean())
    expected = half_intervals(scores_of(fitted, layer=2, pooling="mean"), 1 / 3)
    assert np.asarray(display.half_intervals["mean"])[2] == pytest.approx(expected)
    assert np.asarray(display.tied["mean"]).tolist() == [False, False, True, False]
    assert display.chosen == "2"
    words = drawn_texts(display)
    assert {"accuracy", "layer", "mean", "last", "chosen"} <= set(words)
    assert any("3 splits" in text for text in words)


def test_a_heat_map_has_a_row_for_each_pooling() -> None:
    fitted = search()
    display = LayerHeatmapDisplay.from_cv_results(fitted)
    values = np.asarray(display.values)
    assert values.shape == (2, 4)
    expected = scores_of(fitted, layer=-1, pooling="last").mean()
    assert values[1, 3] == pytest.approx(expected)
    assert np.asarray(display.tied).sum() == 1
    assert f"{values[0, 2]:.3f}" in drawn_texts(display)
    by_c = LayerHeatmapDisplay.from_cv_results(fitted, by="C")
    assert by_c.rows == ["0.1", "1.0"]


def test_poolings_are_compared_by_their_best_layers() -> None:
    fitted = search()
    display = PoolingDisplay.from_cv_results(fitted)
    assert display.poolings == ["mean", "last"]
    assert np.asarray(display.best)[0] == pytest.approx(
        scores_of(fitted, pooling="mean", layer=2).mean()
    )
    assert [len(np.asarray(means)) for means in display.means] == [4, 4]
    assert np.asarray(display.tied).tolist() == [True, False]


def test_failed_candidates_are_left_out_and_said() -> None:
    fitted = search({**GRID, "layer": [0, 2, 99]}, error_score=np.nan)
    for display in (
        LayerProfileDisplay.from_cv_results(fitted),
        LayerHeatmapDisplay.from_cv_results(fitted),
        PoolingDisplay.from_cv_results(fitted),
        TradeoffDisplay.from_cv_results(fitted),
    ):
        assert any("4 candidates without" in text for text in drawn_texts(display))
    assert LayerProfileDisplay.from_cv_results(fitted).layers == ["0", "2"]
    nothing = search({"layer": [0]})
    nothing.cv_results_["split0_test_score"][:] = np.nan
    with pytest.raises(ValueError, match="No candidate has finite scores"):
        LayerProfileDisplay.from_cv_results(nothing)


def test_candidates_without_a_layer_have_no_place() -> None:
    fitted = search([{**GRID, "layer": [0, 2]}, {"C": [0.1]}, {"layer": [1], "C": [0.1]}])
    assert LayerProfileDisplay.from_cv_results(fitted).layers == ["0", "1", "2"]
    heat = LayerHeatmapDisplay.from_cv_results(fitted)
    # Where a candidate sets no pooling, it is the estimator's.
    assert (list(heat.rows), list(heat.layers)) == (["mean", "last"], ["0", "1", "2"])
    poolings = PoolingDisplay.from_cv_results(fitted)
    assert [len(np.asarray(means)) for means in poolings.means] == [3, 2]


def test_a_single_split_is_drawn_without_intervals() -> None:
    fitted = search(cv=ShuffleSplit(1, test_size=0.5, random_state=0))
    for display in (
        LayerProfileDisplay.from_cv_results(fitted),
        PoolingDisplay.from_cv_results(fitted),
        TradeoffDisplay.from_cv_results(fitted),
    ):
        assert any("no intervals" in text for text in drawn_texts(display))


def test_pruned_trials_are_left_out() -> None:
    import optuna

    space = {
        "layer": optuna.distributions.CategoricalDistribution([0, 1, 2]),
        "pooling": optuna.distributions.CategoricalDistribution(["mean", "last"]),
    }
    pruner = optuna.pruners.ThresholdPruner(lower=0.8)
    fitted = OptunaSearchCV(
        Column(), space, n_trials=12, cv=3, pruner=pruner, random_state=0, scoring="accuracy"
    ).fit(*rows())
    assert PoolingDisplay.from_cv_results(fitted).poolings == ["mean"]


def test_what_is_missing_is_said() -> None:
    fitted = search()
    with pytest.raises(ValueError, match="no parameter 'depth'"):
        LayerProfileDisplay.from_cv_results(fitted, layer="depth")
    with pytest.raises(ValueError, match="has no cv_results_"):
        LayerProfileDisplay.from_cv_results(LogisticRegression())
    with pytest.raises(ValueError, match="no column 'price'"):
        TradeoffDisplay.from_cv_results(fitted, cost="price")
    with pytest.raises(ValueError, match="Of 0 parameters called 'pooling'"):
        LayerHeatmapDisplay.from_cv_results(search({"layer": [0, 1]}))
    with pytest.raises(ValueError, match="0 EmbedderUnions"):
        FusionHeatmapDisplay.from_cv_results(fitted, operator="pooling")
    with pytest.raises(ValueError, match="has weights"):
        WeightsDisplay.from_estimator(fitted)
    with pytest.raises(ValueError, match="chosen or blended"):
        LayerProfileDisplay.from_estimator(fitted)


# --- sets of models --------------------------------------------------------------------------

TEXTS = [f"{kind} {word}" for kind in ("good", "bad") for word in "abcdefghijklmnop"]
LABELS = np.repeat([0, 1], 16)


def union() -> EmbedderUnion:
    return EmbedderUnion(
        [
            ("words", TfidfVectorizer(token_pattern=r"\w+")),
            ("letters", TfidfVectorizer(analyzer="char")),
            ("pairs", TfidfVectorizer(analyzer="char", ngram_range=(2, 2))),
        ]
    )


def test_a_fusion_is_compared_with_the_best_of_its_own_models() -> None:
    pipe = Pipeline(
        [
            ("embed", union()),
            ("fuse", FusionTransformer(n_components=4, random_state=0)),
            ("clf", LogisticRegression()),
        ]
    )
    names = ["words", "letters", "pairs"]
    alone = [
        {**{f"embed__{other}": ["drop"] for other in names if other != name}} for name in names
    ]
    grid = [
        {"fuse__operator": ["concat", "sum"], "fuse__residual": [False, "add"]},
        {"fuse__operator": ["concat", "sum"], "embed__pairs": ["drop"]},
        *[{"fuse__operator": ["concat"], **one} for one in alone],
    ]
    fitted = GridSearchCV(pipe, grid, cv=4, scoring="f1_macro").fit(TEXTS, LABELS)
    display = FusionHeatmapDisplay.from_cv_results(fitted)
    assert display.sets == ["words + letters + pairs", "words + letters"]
    assert display.operators == ["concat", "concat + add", "sum", "sum + add"]
    results = fitted.cv_results_
    scores = np.stack([results[f"split{i}_test_score"] for i in range(4)], axis=1)
    best = scores[-3:-1][np.argmax(scores[-3:-1].mean(axis=1))]  # words, letters
    differences = scores[4] - best
    assert np.asarray(display.changes)[1, 0] == pytest.approx(differences.mean())
    assert np.asarray(display.half_intervals)[1, 0] == pytest.approx(
        half_intervals(differences, 1 / 4)
    )
    assert np.isnan(np.asarray(display.changes)[1, 1])  # not tried
    assert any("its best model alone" in text for text in drawn_texts(display))
    with pytest.raises(ValueError, match="no fusion of models"):
        only = GridSearchCV(pipe, {"fuse__operator": ["concat"]}, cv=2).fit(TEXTS, LABELS)
        FusionHeatmapDisplay.from_cv_results(only)


@pytest.fixture(scope="module")
def subsets() -> ModelSubsetSearchCV:
    pipe = make_pipeline(union(), FusionTransformer("concat"), LogisticRegression())
    costs = {"words": 1.0, "letters": 2.0, "pairs": 5.0}
    return ModelSubsetSearchCV(pipe, cost=costs, cv=4, scoring="f1_macro").fit(TEXTS, LABELS)


def test_the_tradeoff_has_the_front_of_the_search(subsets: ModelSubsetSearchCV) -> None:
    display = TradeoffDisplay.from_estimator(subsets)
    assert display.front.tolist() == subsets.pareto_.tolist()
    assert display.names[0] == "words"
    assert np.asarray(display.costs).tolist() == subsets.costs_.tolist()
    assert display.chosen == subsets.best_index_
    assert {"chosen", "not beaten", "f1_macro", "cost"} <= set(drawn_texts(display))


def test_subsets_are_shown_by_their_number_of_models(subsets: ModelSubsetSearchCV) -> None:
    display = SubsetDisplay.from_estimator(subsets)
    assert list(display.sizes) == [1, 2, 3]
    assert [len(np.asarray(scores)) for scores in display.scores] == [3, 3, 1]
    assert display.chosen == (len(subsets.best_subset_), pytest.approx(subsets.best_score_))
    expected = subsets.size_report_["expected_min"]
    assert np.asarray(display.expected_minimum).tolist() == expected.tolist()


# --- fitted estimators -------------------------------------------------------------------------


def blocks() -> tuple[EmbeddingBlocks, Any]:
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    noise = rng.normal(size=(40, 3)).astype(np.float32)
    signal = (rng.normal(size=(40, 3)) + 4 * y[:, None]).astype(np.float32)
    return EmbeddingBlocks({"noise": noise, "signal": signal}), y


def test_weights_of_blocks_are_those_of_the_fusion() -> None:
    X, y = blocks()
    pipe = make_pipeline(FusionTransformer("weighted"), LogisticRegression()).fit(X, y)
    display = WeightsDisplay.from_estimator(pipe)
    weights = dict(zip(["noise", "signal"], pipe[0].kernel_weights_, strict=True))
    assert display.names == ["signal", "noise"]
    assert np.asarray(display.weights).tolist() == [weights["signal"], weights["noise"]]
    one = WeightsDisplay.from_estimator(pipe, max_bars=1)
    assert one.names == ["signal"]
    assert "1 smaller ones left out" in drawn_texts(one)


def test_gates_are_those_of_rows() -> None:
    X, y = blocks()
    net = FusionMLPClassifier("gated", max_epochs=2, n_components=4, random_state=0).fit(X, y)
    display = WeightsDisplay.from_estimator(net, X)
    gates = net.compute_gates(X)
    order = [list(X.block_sizes).index(name) for name in display.names]
    np.testing.assert_allclose(display.weights, gates.mean(axis=0)[order])
    np.testing.assert_allclose(display.spread, np.percentile(gates, [5, 95], axis=0)[:, order])
    with pytest.raises(ValueError, match="X="):
        WeightsDisplay.from_estimator(net)


def test_layers_of_fitted_embedders(folder: Any, texts: list[str]) -> None:
    y = np.arange(len(texts)) % 2
    blend, auto = (
        LLMLayerEmbedder(folder(), layer=layer, pooling=pooling).fit(texts, y)
        for layer, pooling in (("blend", ["mean", "last"]), ("auto", "mean"))
    )
    weights = LayerHeatmapDisplay.from_estimator(make_pipeline(blend))
    assert weights.rows == ["mean", "last"]
    assert np.asarray(weights.values).sum() == pytest.approx(1)
    assert np.asarray(weights.values)[1, 0] == blend.layer_weights_["layer0_last"]
    profile = LayerProfileDisplay.from_estimator(auto)
    assert profile.chosen == str(auto.layer_)
    assert np.asarray(profile.profiles["mean"])[1] == auto.layer_scores_["layer1_mean"]
    half = np.asarray(profile.half_intervals["mean"])[1]
    assert half == pytest.approx(1.96 * auto.layer_errors_["layer1_mean"])
    tied = np.flatnonzero(profile.tied["mean"])
    assert [f"layer{k}_mean" for k in tied] == sorted(auto.layer_ties_)
    bars = WeightsDisplay.from_estimator(blend)
    assert np.asarray(bars.weights).max() == max(blend.layer_weights_.values())
    both = EmbedderUnion([("a", blend), ("b", auto)]).fit(texts, y)
    assert LayerProfileDisplay.from_estimator(both, model="b").name == "score, nats per row"
    with pytest.raises(ValueError, match="none of the embedders a, b"):
        LayerProfileDisplay.from_estimator(both, model="c")


# --- from scores, and drawing ------------------------------------------------------------------


def test_models_of_different_depths_stand_side_by_side() -> None:
    display = LayerProfileDisplay.from_scores({"deep": [[0.1], [0.2], [0.3]], "flat": [[0.5]]})
    assert np.isnan(np.asarray(display.profiles["flat"])[1:]).all()
    assert display.layers == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerProfileDisplay.from_scores({}), "n_layers, n_splits"),
        (lambda: LayerHeatmapDisplay.from_scores({"a": [0.5]}), "n_layers, n_splits"),
        (
            lambda: LayerHeatmapDisplay.from_scores({"a": [[0.5]], "b": [[0.5, 0.4]]}),
            "same splits",
        ),
        (lambda: PoolingDisplay.from_scores({"a": [0.5]}), "n_layers, n_splits"),
        (lambda: FusionHeatmapDisplay.from_scores({}, {}), "no score of a fusion"),
        (
            lambda: FusionHeatmapDisplay.from_scores({(("a", "b"), "sum"): [1.0]}, {"a": [1.0]}),
            "no score of b",
        ),
        (lambda: TradeoffDisplay.from_scores([[0.5]], [1.0, 2.0], ["a"]), "n names"),
        (lambda: SubsetDisplay.from_scores({}), "no set of models"),
    ],
)
def test_other_shapes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_displays_draw_on_axes_that_are_given_and_again() -> None:
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    display = LayerProfileDisplay.from_scores({"a": [[0.5, 0.6], [0.7, 0.8]]}, ax=ax)
    assert display.ax_ is ax
    assert display.plot().ax_ is not ax


def cells(display: Any) -> np.ndarray:
    """The middle of each cell of a heat map as it is drawn, in levels of grey from 0 to 255."""
    figure, axis = display.figure_, display.ax_
    for text in list(axis.texts):
        text.remove()
    for patch in list(axis.patches):
        patch.remove()
    figure.canvas.draw()
    picture = np.asarray(figure.canvas.buffer_rgba())[..., :3] @ [0.299, 0.587, 0.114]
    n_rows, n_columns = axis.images[0].get_array().shape
    middle = np.array([[(column, row) for column in range(n_columns)] for row in range(n_rows)])
    x, y = axis.transData.transform(middle.reshape(-1, 2)).astype(int).T
    grey: np.ndarray = picture[len(picture) - 1 - y, x].reshape(n_rows, n_columns)
    return grey


def test_higher_scores_are_lighter_in_grey_print() -> None:
    values = np.linspace(0.2, 0.9, 12).reshape(3, 4)
    scores = {str(i): row[:, None] for i, row in enumerate(values)}
    grey = cells(LayerHeatmapDisplay.from_scores(scores))
    assert (np.diff(grey.ravel()) > 0).all()


def test_gains_and_losses_have_different_colours_and_noise_is_hatched() -> None:
    fused = {(("a", "b"), "x"): [0.7, 0.71], (("a", "b"), "y"): [0.3, 0.31]}
    fused |= {(("a", "b"), "z"): [0.3, 0.71]}
    display = FusionHeatmapDisplay.from_scores(fused, {"a": [0.5, 0.51], "b": [0.4, 0.4]})
    hatched = [patch for patch in display.ax_.patches if patch.get_hatch()]
    assert [patch.get_x() for patch in hatched] == [1.5]
    image = display.ax_.images[0]
    gain, loss = (image.cmap(image.norm(value))[:3] for value in (20, -20))
    assert gain[2] > gain[0]  # bluer than red
    assert loss[0] > loss[2]
    assert image.norm(0) == 0.5


def test_a_picture_is_legible_at_400_pixels() -> None:
    """No words are smaller than 6 pixels, and none hangs over the edge."""
    display = LayerHeatmapDisplay.from_scores(
        {name: np.full((6, 2), 0.5) for name in ("mean", "last", "mean_no_first")}
    )
    figure = display.figure_
    figure.set_dpi(400 / figure.get_figwidth())
    figure.canvas.draw()
    box = figure.bbox
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            extent = text.get_window_extent()
            assert text.get_fontsize() * figure.dpi / 72 >= 6
            assert extent.x0 >= -1
            assert extent.x1 <= box.width + 1
