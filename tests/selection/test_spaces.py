"""Spaces hold valid combinations only, and a search over them encodes each text once."""

from __future__ import annotations

import pickle

import numpy as np
import optuna
import pytest
from _support import tiny
from _support.doubles import CountingEmbedder, read_log
from _support.tiny import tiny_texts
from optuna.trial import FixedTrial
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, ParameterGrid
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from skfusion import (
    PAPER_OPERATORS,
    EmbedderUnion,
    FusionTransformer,
    LLMLayerEmbedder,
    OptunaSearchCV,
    fusion_grid,
    fusion_space,
    layer_space,
)


@pytest.fixture
def models(tmp_path) -> dict[str, str]:
    kinds = {"minilm": "bert", "smol": "llama"}
    return {name: str(tiny.save_folder(tmp_path / name, kind)) for name, kind in kinds.items()}


@pytest.fixture
def union(models, tmp_path) -> EmbedderUnion:
    embedders = [(name, CountingEmbedder(model)) for name, model in models.items()]
    return EmbedderUnion(embedders, memory=tmp_path / "store")


def alone(union: EmbedderUnion) -> EmbedderUnion:
    return EmbedderUnion([union.embedders[0], ("smol", "drop")])


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", [0, 1, 2, 3]),
        ("thirds", [1, 2, 3]),
        (1, [3]),
        (2, [2, 3]),
        (30, [0, 1, 2, 3]),
        ([-1, 0, 0.4], [3, 0, 1]),
    ],
)
def test_layers_are_those_of_the_model(models, layers, expected):
    assert layer_space(CountingEmbedder(models["smol"]), layers) == expected
    assert read_log(models["smol"]) == (0, 0)  # its config was enough


@pytest.mark.parametrize("layers", ["fifths", 0, -1, True, [4], [], [1.5]])
def test_other_layers_are_errors(models, layers):
    with pytest.raises(ValueError, match="layers"):
        layer_space(LLMLayerEmbedder(models["smol"]), layers)


def test_what_is_no_embedder_or_union_is_an_error(union):
    with pytest.raises(TypeError, match="needs an LLMLayerEmbedder"):
        layer_space(union)
    with pytest.raises(TypeError, match="Of a single model use layer_space"):
        fusion_grid(union.embedders[0][1])


def test_the_grid_holds_the_settings_of_the_paper_and_no_other(union):
    grid = list(ParameterGrid(fusion_grid(union, layers=[1, -1], poolings=["mean", "last"])))
    settings = {(p["fuse__operator"], p["fuse__residual"]) for p in grid}
    assert settings == {(s["operator"], s["residual"]) for s in PAPER_OPERATORS}
    assert len(grid) == 9 * 4 * 4
    assert {p["embed__smol__layer"] for p in grid} == {1, 3}
    assert {p["embed__minilm__pooling"] for p in grid} == {"mean", "last"}
    assert read_log(union.embedders[0][1].model) == (0, 0)


def test_no_residual_no_width_and_no_operator_without_a_meaning(union):
    operators = [{"operator": "concat", "residual": "add"}, "weighted", "hadamard"]
    grid = fusion_grid(union, operators, layers=1, n_components=[4, 8])
    assert [g["fuse__residual"] for g in grid] == [[False]] * 3
    assert ["fuse__n_components" in g for g in grid] == [False, False, True]
    assert fusion_grid(alone(union), layers=1) == [
        {"embed__minilm__layer": [3], "fuse__operator": ["concat"], "fuse__residual": [False]}
    ]
    twice = EmbedderUnion([("two", LLMLayerEmbedder(union.embedders[0][1].model))])
    twice.set_params(two__pooling=["mean", "last"])
    assert len(fusion_grid(twice)) == 5  # two blocks of one model can be fused
    assert len(fusion_grid(twice, poolings=["mean"])) == 1


def test_widths_are_those_that_the_operator_takes(union):
    operators = ["multiplication", "quaternion", "sum", "gated"]
    grid = fusion_grid(union, operators, n_components=[6, 7, 100])
    widths = {g["fuse__operator"][0]: g["fuse__n_components"] for g in grid}
    width = tiny.WIDTH  # no block is wider
    assert widths == {
        "multiplication": [4, width],
        "quaternion": [4, width],
        "sum": [6, 7, width],
        "gated": [6, 7, width],
    }
    with pytest.raises(ValueError, match="no width up to 3 is a multiple of 4"):
        fusion_grid(union, ["quaternion"], n_components=[3])


@pytest.mark.parametrize("operators", [[], ["nonsense"]])
def test_no_or_unknown_operators_are_errors(union, operators):
    with pytest.raises(ValueError, match=r"operator"):
        fusion_grid(union, operators)


def test_models_are_found_inside_pipelines_and_others_left_alone(union):
    model = union.embedders[0][1].model
    inner = make_pipeline(LLMLayerEmbedder(model), StandardScaler())
    mixed = EmbedderUnion([("scaled", inner), ("words", TfidfVectorizer())])
    (grid,) = fusion_grid(mixed, ["concat"], layers=[2], embed="e", fuse="f")
    assert grid == {
        "e__scaled__llmlayerembedder__layer": [2],
        "f__operator": ["concat"],
        "f__residual": [False],
    }


def test_the_conditional_space_draws_only_what_matters(union):
    space = fusion_space(union, poolings=["mean", "last"], n_components=[4, 9], subsets=True)
    pipe = Pipeline([("embed", union), ("fuse", FusionTransformer()), ("clf", None)])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = set()
    for _ in range(200):
        trial = study.ask()
        params = space(trial)
        assert params.keys() <= pipe.get_params().keys()
        assert (
            space(study.get_trials(deepcopy=False)[-1]) == params
        )  # as a search that is resumed reads it
        kept = [name for name in ("minilm", "smol") if params.get(f"embed__{name}") != "drop"]
        for name in ("minilm", "smol"):
            assert (f"embed__{name}__layer" in params) == (name in kept)
        setting = (params["fuse__operator"], params["fuse__residual"])
        seen.add(("+".join(kept), setting))
        if len(kept) == 1:
            assert setting == ("concat", False)
            assert not any(name.startswith("fuse") for name in trial.params)
        if setting[0] == "multiplication":
            assert params["fuse__n_components"] in (4, 9)
    paper = {(s["operator"], s["residual"]) for s in PAPER_OPERATORS}
    assert seen == {("minilm+smol", s) for s in paper} | {
        (name, ("concat", False)) for name in ("minilm", "smol")
    }
    assert pickle.loads(pickle.dumps(space)) == space


def test_layers_in_a_row_are_drawn_as_numbers(union):
    trial = optuna.create_study().ask()
    fusion_space(union)(trial)
    assert trial.distributions["embed__smol__layer"] == optuna.distributions.IntDistribution(0, 3)
    params = fusion_space(union, ["sum"], layers=[3, 1])(
        FixedTrial({"embed__minilm__layer": 1, "embed__smol__layer": 3})
    )
    assert params == {
        "embed__minilm__layer": 1,
        "embed__smol__layer": 3,
        "fuse__operator": "sum",
        "fuse__residual": False,
    }


@pytest.mark.slow
def test_a_search_encodes_each_text_once_a_model(union, models):
    texts = tiny_texts(24)
    labels = np.arange(len(texts)) % 2
    fuse = FusionTransformer(n_components=4, random_state=0)
    pipe = Pipeline([("embed", union), ("fuse", fuse), ("clf", LogisticRegression())])
    space = fusion_space(union, poolings=["mean", "last"], subsets=True)
    search = OptunaSearchCV(pipe, space, n_trials=12, cv=2, random_state=0, error_score="raise")
    drawn = search.fit(texts, labels).cv_results_
    assert np.isfinite(drawn["mean_test_score"]).all()
    assert len({str(params) for params in drawn["params"]}) > 6
    for model in models.values():
        assert read_log(model)[1] == len(texts)
    grid = fusion_grid(union, ["hadamard"], layers=[0, 2], poolings=["first", "max"])
    GridSearchCV(pipe, grid, cv=2, error_score="raise").fit(texts, labels)
    assert [read_log(model) for model in models.values()] == [(0, 0), (0, 0)]
