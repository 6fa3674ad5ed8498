"""Saved models name public names, and survive that classes move."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import types
import zipfile

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import skfusion
from skfusion import FusionTransformer, LLMLayerEmbedder, _files, _public, load, save


@pytest.fixture
def saved(folder, texts, tmp_path):
    fusion = FusionTransformer("hadamard", n_components=4, block_sizes=[16, 16])
    embedder = LLMLayerEmbedder(folder(), layer=[1, 2])
    pipe = make_pipeline(embedder, fusion, LogisticRegression())
    save(pipe.fit(texts, [0, 1] * 7), tmp_path / "model")
    return pipe


@pytest.mark.filterwarnings("ignore::skfusion.ProjectionWarning")
def test_a_saved_model_names_no_module_of_skfusion(saved, tmp_path):
    names = {name for name in sys.modules if name.startswith("skfusion.")}
    for file in (tmp_path / "model").iterdir():
        assert not [name for name in names if name.encode() in file.read_bytes()]
    with zipfile.ZipFile(tmp_path / "model" / "model.skops") as file:
        schema = file.read("schema.json").decode()
    for name in ("FusionTransformer", "LLMLayerEmbedder", "LinearProjection", "Scaler", "Spec"):
        assert f"skfusion.{name}" in schema


@pytest.mark.filterwarnings("ignore::skfusion.ProjectionWarning")
@pytest.mark.parametrize("name", ["FusionTransformer", "LinearProjection", "Scaler", "Spec"])
def test_a_class_that_moves_is_found(name, saved, texts, tmp_path, monkeypatch):
    expected = saved.predict_proba(texts)
    table = _public.PARTS if name in _public.PARTS else _public.PUBLIC
    old = sys.modules[f"skfusion{table[name]}"]
    new = types.ModuleType("skfusion.elsewhere")
    cls = getattr(old, name)
    setattr(new, name, cls)
    monkeypatch.setitem(sys.modules, "skfusion.elsewhere", new)
    monkeypatch.setattr(cls, "__module__", "skfusion.elsewhere")
    monkeypatch.delattr(old, name)
    monkeypatch.setitem(table, name, ".elsewhere")
    if name == "Spec":  # the embedder checks it
        monkeypatch.setattr("skfusion.embed.embedder.Spec", cls)
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(texts), expected)


def test_every_name_is_where_it_is_said_to_be():
    for name in _public.PARTS:
        assert _files.find(f"skfusion.{name}").__name__ == name
    assert {*_public.PUBLIC, "__version__"} == set(skfusion.__all__) <= set(dir(skfusion))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        skfusion.nothing  # noqa: B018


def test_public_classes_keep_their_true_module():
    for name in skfusion.__all__:
        thing = getattr(skfusion, name)
        if isinstance(thing, type):
            assert thing.__module__ == f"skfusion{_public.PUBLIC[name]}"
            assert f"class {name}" in inspect.getsource(thing)


def test_the_import_loads_neither_torch_nor_estimators():
    code = "import sys, json, skfusion; print(json.dumps([*sys.modules]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    modules = set(json.loads(run.stdout))
    assert not {"torch", "scipy.sparse", "sklearn", "numpy", "skops", "transformers"} & modules
