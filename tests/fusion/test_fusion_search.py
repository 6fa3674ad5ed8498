"""The whole pipeline in one search: layers, poolings, models, operators and residuals."""

from __future__ import annotations

import numpy as np
import pytest
from _support import tiny
from _support.doubles import CountingEmbedder, read_log
from _support.tiny import tiny_texts
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skfusion import EmbedderUnion, FusionTransformer


@pytest.fixture
def models(tmp_path) -> dict[str, str]:
    kinds = {"minilm": "bert", "smol": "llama"}
    return {name: str(tiny.save_folder(tmp_path / name, kind)) for name, kind in kinds.items()}


@pytest.fixture
def pipe(models, tmp_path) -> Pipeline:
    embed = EmbedderUnion(
        [(name, CountingEmbedder(model)) for name, model in models.items()],
        memory=tmp_path / "store",
    )
    fuse = FusionTransformer(n_components=4, random_state=0)
    return Pipeline([("embed", embed), ("fuse", fuse), ("clf", LogisticRegression())])


@pytest.mark.slow
def test_each_text_passes_once_through_each_model(pipe, models):
    texts = tiny_texts(24)
    labels = np.arange(len(texts)) % 2
    grid = {
        "fuse__operator": ["concat", "sum", "hadamard", "weighted"],
        "fuse__residual": [False, "concat", "add"],
        "embed__smol__layer": [0, 1, -1],
        "embed__minilm": ["drop", pipe["embed"].embedders[0][1]],
    }
    search = GridSearchCV(pipe, grid, cv=2, n_jobs=2, error_score="raise").fit(texts, labels)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    for model in models.values():
        assert 0 < read_log(model)[1] <= 2 * len(texts)  # at most once for each of two workers
    GridSearchCV(pipe, grid, cv=2).fit(texts, labels)
    assert [read_log(model) for model in models.values()] == [(0, 0), (0, 0)]


def test_blocks_go_from_the_union_into_the_fusion(pipe):
    texts = tiny_texts(24)
    pipe = clone(pipe).set_params(fuse__operator="hadamard", fuse__residual="concat")
    X = pipe[:-1].fit_transform(texts)
    width = tiny.WIDTH
    assert pipe["fuse"].output_indices_ == {
        "minilm": slice(0, width),
        "smol": slice(width, 2 * width),
        "hadamard": slice(2 * width, 2 * width + 4),
    }
    assert X.shape == (24, 2 * width + 4) and X.dtype == np.float32
    names = pipe[:-1].get_feature_names_out()
    assert names[0] == "minilm__layer3_mean_0" and names[-1] == "hadamard3"


def test_boundaries_lost_on_the_way_are_an_error(pipe):
    steps = [("embed", pipe["embed"]), ("scale", StandardScaler()), ("fuse", FusionTransformer())]
    with pytest.raises(ValueError, match="StandardScaler"):
        Pipeline(steps).fit(tiny_texts(6))


def test_a_frame_keeps_the_boundaries_too(pipe):
    texts = tiny_texts(24)
    X = pipe[:-1].fit_transform(texts)
    pipe["embed"].set_output(transform="pandas")
    np.testing.assert_allclose(pipe[:-1].fit_transform(texts), X, rtol=1e-5)
