"""Fusion of real models on real texts, by the protocol of benchmarks/fusion.py.

Three of its data sets, cut at 64 tokens instead of 256: passes of long texts took half of the time
of all tests. What the benchmark found on five, at full length, stands in benchmarks/README.md.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from _support.realdata import data_set, fetched
from joblib.externals.loky import get_reusable_executor

from skfusion import PAPER_OPERATORS

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("users_cache"),
    pytest.mark.filterwarnings("ignore::skfusion.ProjectionWarning"),
    pytest.mark.filterwarnings("ignore::skfusion.TruncationWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

#: By data set the most tokens of a text; of rotten_tomatoes other tests store the same vectors.
DATA_SETS = {"rotten_tomatoes": 256, "r8": 64, "legalbench_overruling": 64}
SETTINGS = [
    *PAPER_OPERATORS,
    {"operator": "mean"},
    {"operator": "weighted"},
    {"operator": "bilinear"},
    *(
        {"operator": operator, "projection": "supervised"}
        for operator in ("sum", "hadamard", "quaternion", "multiplication")
    ),
]


@pytest.fixture(scope="module")
def protocol():
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    patch.setenv("HF_HUB_OFFLINE", "1")
    get_reusable_executor().shutdown()  # workers that started before do not find the module
    yield importlib.import_module("fusion")
    patch.undo()


@pytest.fixture(scope="module", params=DATA_SETS)
def vectors(request, protocol, real_store):
    data_set(request.param)
    models = ["minilm-l6", "smollm2-135m"]
    for model in models:
        fetched(model)
    return protocol.embed(request.param, 400, models, real_store, DATA_SETS[request.param])


def test_concat_holds_what_the_better_model_reaches(vectors, protocol):
    scores = protocol.evaluate(vectors, 5, [{"operator": "concat"}])
    assert protocol.concat_minus_best_single(scores) >= -0.005


def test_every_operator_beats_chance(vectors, protocol):
    scores = protocol.evaluate(vectors, 1, SETTINGS, n_jobs=2)
    for setting in SETTINGS:
        label = protocol.label_of(setting)
        assert scores[label] > scores["chance"] + 0.05, label
