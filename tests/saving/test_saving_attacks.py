"""Folders that were made up or changed are refused, and nothing in them runs."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import skops.io
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfusion import LLMLayerEmbedder
from skfusion.saving.folder import load, save


@pytest.fixture
def model(tmp_path, rng):
    """A saved model with all three files."""
    matrix = sparse.csr_array(np.eye(2))
    kw_args = {"array": rng.normal(size=3), "rng": np.random.RandomState(0), "matrix": matrix}
    save(FunctionTransformer(kw_args=kw_args), tmp_path / "model")
    return tmp_path / "model"


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def change(folder, edit):
    file = folder / "skfusion.json"
    model = json.loads(file.read_text())
    edit(model)
    file.write_text(json.dumps(model))


def plant(folder, node):
    """Put an encoded value in the place of a parameter."""
    change(folder, lambda model: model["model"]["object"]["state"].update(func=node))


def test_the_model_loads_unchanged(model):
    assert load(model).kw_args["array"].shape == (3,)


@pytest.mark.parametrize("name", ["skfusion.json", "arrays.safetensors", "objects.skops"])
def test_a_pickle_in_the_place_of_a_file(model, name, tmp_path):
    (model / name).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(ValueError, match="damaged, or was changed"):
        load(model)
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_beside_the_files(model, tmp_path):
    (model / "model.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(ValueError, match=r"holds 'model.pkl', which skfusion.save does not"):
        load(model)
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_inside_the_skops_file(model, tmp_path):
    plan = skops.io.dumps([np.random.RandomState(0)])
    content = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(plan)) as old, zipfile.ZipFile(content, "w") as new:
        for name in old.namelist():
            planted = io.BytesIO()
            np.save(planted, np.array([Bomb(tmp_path / "exploded")]), allow_pickle=True)
            new.writestr(name, planted.getvalue() if name.endswith("npy") else old.read(name))
    assert any(name.endswith("npy") for name in zipfile.ZipFile(content).namelist())
    (model / "objects.skops").write_bytes(content.getvalue())
    with pytest.raises(ValueError, match="damaged, or was changed"):
        load(model)
    assert not (tmp_path / "exploded").exists()


def system(*args):
    raise AssertionError("it ran")


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ([system], r"holds .*system.*not checked.*trusted=\[system\]"),
        (
            [make_pipeline(LogisticRegression(), memory="caches")],
            "compiled objects hold.*Pipeline",
        ),
        ([np.array([make_pipeline(LogisticRegression())])], "compiled objects hold.*ndarray"),
    ],
    ids=["function", "estimator", "array of estimators"],
)
def test_other_objects_in_the_skops_file(model, planted, message):
    (model / "objects.skops").write_bytes(skops.io.dumps(planted))
    with pytest.raises(ValueError, match=message):
        load(model)


def test_trees_are_loaded_only_when_trusted(tmp_path, rng):
    X = rng.normal(size=(20, 2))
    save(RandomForestClassifier(2).fit(X, X[:, 0] > 0), tmp_path / "model")
    with pytest.raises(ValueError, match=r"from sklearn.tree._tree import Tree.*trusted=\[Tree\]"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:eval",
        "sklearn.utils:os",
        "sklearn.utils.os:system",
        "sklearn.base:clone",  # no class
        "sklearn.base:np.ndarray",
        "sklearn.pipeline:Pipeline.fit",
        "sklearn.pipeline:BaseEstimator",  # a class of another module
        "sklearn.datasets._base:Path",
        "sklearn.no_such_module:Thing",
        "skfusion.embed.backbone:Backbone",
        "skfusion.embed.store:joblib",
        "../evil:Thing",
        "",
    ],
)
def test_unknown_classes(model, name):
    plant(model, {"object": {"class": name, "number": 9, "state": {}}})
    with pytest.raises(ValueError, match=r"no class that may be restored.*trusted="):
        load(model)
    plant(model, {"type": name})
    with pytest.raises(ValueError, match=r"no class that may be restored.*trusted="):
        load(model)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:eval",
        "numpy:load",
        "numpy:fromfile",
        "numpy:__doc__",
        "sklearn.datasets:load_files",
        "sklearn.metrics:np.load",
        "sklearn.preprocessing:StandardScaler",
        "joblib:load",
    ],
)
def test_unknown_functions(model, name):
    plant(model, {"function": name})
    with pytest.raises(ValueError, match=r"names the function .*trusted="):
        load(model)


@pytest.mark.parametrize(
    "node",
    [
        {"array": {"tensor": "0", "dtype": {"dtype": "|O"}, "shape": [3]}},  # addresses
        {"array": {"tensor": "0", "dtype": {"dtype": "<f8"}, "shape": [400]}},
        {"array": {"tensor": "../../etc/passwd"}},
        {"scalar": ["|O", 1]},
        {"csr_array": [[1.0], [7], [0, 1, 1], [2, 2]]},  # a column out of range
        {"skops": 5},
        {"same": 77},
        {"object": {"class": "sklearn.pipeline:Pipeline", "number": 9}},
        {"torch_dtype": "load"},
        {"pickle": "gASVAAAA"},
        {"tuple": [], "dict": {}},
        {},
    ],
    ids=str,
)
def test_made_up_nodes(model, node):
    plant(model, node)
    with pytest.raises(ValueError, match=r"is not loaded"):
        load(model)


def test_a_tree_that_is_too_deep(model):
    file = model / "skfusion.json"
    model_text = file.read_text().replace('"func": null', '"func": ' + "[" * 50_000)
    file.write_text(model_text)
    with pytest.raises(ValueError, match="damaged"):
        load(model)


def test_a_link_out_of_the_folder(model, tmp_path):
    outside = tmp_path / "outside.safetensors"
    (model / "arrays.safetensors").rename(outside)
    (model / "arrays.safetensors").symlink_to(outside)
    with pytest.raises(ValueError, match=r"arrays.safetensors is a link"):
        load(model)


def test_a_missing_file(model):
    (model / "arrays.safetensors").unlink()
    with pytest.raises(ValueError, match="damaged"):
        load(model)


def test_remote_code_needs_trust(folder, texts, tmp_path):
    save(LLMLayerEmbedder(folder()).fit(texts), tmp_path / "model")
    change(
        tmp_path / "model",
        lambda model: model["model"]["object"]["state"].update(trust_remote_code=True),
    )
    with pytest.raises(ValueError, match=r"runs code.*trusted=\[LLMLayerEmbedder\]"):
        load(tmp_path / "model")
    assert load(tmp_path / "model", trusted=[LLMLayerEmbedder]).trust_remote_code


def test_remote_code_of_the_fitted_model_needs_trust_too(folder, texts, tmp_path):
    save(LLMLayerEmbedder(folder()).fit(texts), tmp_path / "model")

    def edit(model):
        spec = model["model"]["object"]["state"]["_spec"]["object"]["state"]
        spec["source"]["object"]["state"]["trust_remote_code"] = True

    change(tmp_path / "model", edit)
    with pytest.raises(ValueError, match=r"runs code.*trusted=\[LLMLayerEmbedder\]"):
        load(tmp_path / "model")


def test_a_cache_of_pickles_needs_trust(tmp_path):
    save(make_pipeline(LogisticRegression(), memory="caches"), tmp_path / "model")
    with pytest.raises(ValueError, match=r"memory='caches'.*pickles.*trusted=\[Pipeline\]"):
        load(tmp_path / "model")
    assert load(tmp_path / "model", trusted=[Pipeline]).memory == "caches"
