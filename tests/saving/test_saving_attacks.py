"""Folders that were made up or changed are refused, and nothing in them runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import tracemalloc
import zipfile
from pathlib import Path

import joblib
import numpy as np
import pytest
import skops.io
import torch
from scipy import sparse
from sklearn.cluster import FeatureAgglomeration
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skfusion import (
    EmbeddingBlocks,
    FusionMLPClassifier,
    FusionTransformer,
    LLMLayerEmbedder,
    OptunaSearchCV,
    VectorStore,
    load,
    save,
)
from skfusion.fusion.registry import OPERATORS


@pytest.fixture
def model(tmp_path, rng):
    """A saved model with arrays and compiled objects."""
    matrix = sparse.csr_array(np.eye(2))
    kw_args = {"array": rng.normal(size=3), "rng": np.random.RandomState(0), "matrix": matrix}
    save(FunctionTransformer(kw_args=kw_args), tmp_path / "model")
    return tmp_path / "model"


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


# --- forging ---------------------------------------------------------------------------------


def entries(content):
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(parts, compression=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        for name, part in parts.items():
            file.writestr(name, part)
    return content.getvalue()


def change_schema(folder, edit):
    file = folder / "model.skops"
    parts = entries(file.read_bytes())
    schema = json.loads(parts["schema.json"])
    file.write_bytes(zipped(parts | {"schema.json": json.dumps(edit(schema) or schema)}))


def without_ids(part):
    if isinstance(part, dict):
        kept = {k: without_ids(v) for k, v in part.items() if k != "__id__" or isinstance(v, dict)}
        return kept
    return [without_ids(v) for v in part] if isinstance(part, list) else part


def write_tree(folder, tree):
    """Write what skops shall read, in the place of what was saved."""
    (folder / "model.skops").write_bytes(skops.io.dumps(tree))
    change_schema(folder, without_ids)


def change(folder, edit):
    """Change the state of the estimator, of plain values and others."""
    kind, (text, parts) = skops.io.load(folder / "model.skops")
    head = json.loads(text)
    edit(head["state"], parts)
    write_tree(folder, (kind, [json.dumps(head), parts]))


def plant(folder, node):
    """Put an encoded value in the place of a parameter."""

    def edit(plain, parts):
        plain.pop("func", None)
        parts["func"] = node

    change(folder, edit)


def made(name, state=None, parts=None):
    """Encode an object."""
    return (
        "object",
        [json.dumps({"class": name, "operators": [], "state": state or {}}), parts or {}],
    )


def test_the_model_loads_unchanged(model):
    assert load(model).kw_args["array"].shape == (3,)
    plant(model, ("name", "numpy.exp"))
    assert load(model).func is np.exp


@pytest.mark.parametrize("name", ["skfusion.json", "model.skops"])
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
    planted = io.BytesIO()
    np.save(planted, np.array([Bomb(tmp_path / "exploded")]), allow_pickle=True)
    file = model / "model.skops"
    parts = entries(file.read_bytes())
    assert len(parts) > 4
    for name in parts.keys() - {"schema.json"}:
        file.write_bytes(zipped(parts | {name: planted.getvalue()}))
        with pytest.raises(ValueError, match="damaged, or was changed"):
            load(model)
        file.write_bytes(zipped(parts | {name: pickle.dumps(Bomb(tmp_path / "exploded"))}))
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
        ([StandardScaler().fit], "compiled objects hold"),
        ([sparse.csr_array((2, 2))], "compiled objects hold.*csr_array"),
        ([bytearray(b"a")], "compiled objects hold.*bytearray"),
        ([np.void(b"abc")], "compiled objects hold.*void"),
    ],
    ids=[
        "function",
        "estimator",
        "array of estimators",
        "method",
        "sparse",
        "bytearray",
        "void",
    ],
)
def test_other_objects_in_the_skops_file(model, planted, message):
    write_tree(model, planted)
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
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "sklearn.utils.os",
        "sklearn.utils.os.system",
        "sklearn.base.clone",  # no class
        "sklearn.base.np.ndarray",
        "sklearn.pipeline.Pipeline.fit",
        "sklearn.pipeline.BaseEstimator",  # a class of another module
        "sklearn.datasets._base.Path",
        "sklearn.no_such_module.Thing",
        "skfusion.embed.backbone.Backbone",
        "skfusion.Backbone",
        "skfusion.load",
        "skfusion.MODULES",
        "skfusion.embed.store.joblib",
        "../evil.Thing",
        "",
    ],
)
def test_unknown_classes(model, name):
    plant(model, made(name))
    with pytest.raises(ValueError, match=r"no class that may be restored.*trusted="):
        load(model)
    plant(model, ("name", name))
    with pytest.raises(ValueError, match=r"no class that may be restored.*trusted="):
        load(model)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "numpy.load",
        "numpy.fromfile",
        "numpy.__doc__",
        "sklearn.datasets.load_files",
        "sklearn.metrics.np.load",
        "sklearn.preprocessing.StandardScaler",
        "sklearn.set_config",
        "joblib.load",
    ],
)
def test_unknown_functions(model, name):
    plant(model, ("name", name))
    with pytest.raises(ValueError, match=r"names the function .*trusted="):
        load(model)


@pytest.mark.parametrize(
    "node",
    [
        ("scalar", 1),
        ("objects", [[10**9], [1]]),
        ("csr_array", [[1.0], [7], [0, 1, 1], [2, 2]]),  # a column out of range
        ("skops", 5),
        ("same", 77),
        ("object", [json.dumps({"class": "sklearn.pipeline.Pipeline"})]),
        ("object", [json.dumps({"class": "sklearn.pipeline.Pipeline", "state": {}}), {}]),
        ("object", [json.dumps({"class": "sklearn.pipeline.Pipeline"}), {}]),
        made("builtins.dict"),
        made("numpy.float64"),
        made("numpy.exp"),
        ("torch_dtype", "load"),
        ("pickle", "gASVAAAA"),
        ("json", "[" * 100_000),
        ("tuple", [], "dict"),
        (),
    ],
    ids=lambda node: str(node)[:60],
)
def test_made_up_nodes(model, node):
    plant(model, node)
    with pytest.raises(ValueError, match=r"is not loaded"):
        load(model)


@pytest.mark.parametrize("depth", [2_000, 50_000])
def test_a_tree_that_is_too_deep(model, depth):
    node = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode"}
    text = json.dumps(node)[:-1] + ', "content": ['
    schema = text * depth + "]}" * depth
    (model / "model.skops").write_bytes(zipped({"schema.json": schema}))
    with pytest.raises(ValueError, match="damaged"):
        load(model)


def test_a_link_out_of_the_folder(model, tmp_path):
    outside = tmp_path / "outside.skops"
    (model / "model.skops").rename(outside)
    (model / "model.skops").symlink_to(outside)
    with pytest.raises(ValueError, match=r"model.skops is a link"):
        load(model)


def test_a_missing_file(model):
    (model / "model.skops").unlink()
    with pytest.raises(ValueError, match="damaged"):
        load(model)


# --- code that honest classes would run ------------------------------------------------------


def test_remote_code_needs_trust(folder, texts, tmp_path):
    save(LLMLayerEmbedder(folder()).fit(texts), tmp_path / "model")
    change(tmp_path / "model", lambda plain, parts: plain.update(trust_remote_code=True))
    with pytest.raises(ValueError, match=r"runs code.*trusted=\[LLMLayerEmbedder\]"):
        load(tmp_path / "model")
    assert load(tmp_path / "model", trusted=[LLMLayerEmbedder]).trust_remote_code


def test_remote_code_of_the_fitted_model_needs_trust_too(folder, texts, tmp_path):
    save(LLMLayerEmbedder(folder()).fit(texts), tmp_path / "model")

    def edit(plain, parts):
        _, (text, others) = parts["_spec"]
        spec = json.loads(text)
        assert spec["state"]["trust_remote_code"] is False
        spec["state"]["trust_remote_code"] = True
        parts["_spec"] = ("object", [json.dumps(spec), others])

    change(tmp_path / "model", edit)
    with pytest.raises(ValueError, match=r"runs code.*trusted=\[LLMLayerEmbedder\]"):
        load(tmp_path / "model")


def test_no_state_reaches_what_reads_pickles(model, tmp_path):
    # skorch's __setstate__ gives these bytes to torch.load, which may read a pickle.
    bomb = np.frombuffer(pickle.dumps(Bomb(tmp_path / "exploded")), np.uint8)
    state = {"__cuda_dependent_attributes__": ("bytes", bomb)}
    plant(model, made("skfusion.HeadNet", parts=state))
    with pytest.raises(ValueError, match="is not loaded"):
        load(model)
    assert not (tmp_path / "exploded").exists()


def test_a_cache_of_pickles_needs_trust(tmp_path):
    save(make_pipeline(LogisticRegression(), memory="caches"), tmp_path / "model")
    with pytest.raises(ValueError, match=r"memory='caches'.*pickles.*trusted=\[Pipeline\]"):
        load(tmp_path / "model")
    assert load(tmp_path / "model", trusted=[Pipeline]).memory == "caches"


CODE = {"llmlayerembedder__trust_remote_code": [False, True]}
SEARCHED = [
    CODE,
    [{"logisticregression__C": [1.0]}, CODE],
    {"llmlayerembedder__trust_remote_code": (True,)},
    {"llmlayerembedder__trust_remote_code": np.array([True])},
    {"llmlayerembedder__trust_remote_code": np.array([None, True], dtype=object)},
    {"llmlayerembedder__trust_remote_code": ["yes"]},
    {"llmlayerembedder": [LLMLayerEmbedder("hub/model", trust_remote_code=True)]},
    {"logisticregression": [make_pipeline(LogisticRegression(), memory="caches")]},
    {"memory": ["caches"]},
    {"memory": [None, Path("caches")]},
    {"memory": [joblib.Memory("caches", verbose=0)]},
    {"llmlayerembedder__memory": [joblib.Memory("caches", verbose=0)]},
    {"logisticregression__steps": [[("a", FeatureAgglomeration(memory="caches"))]]},
    {"llmlayerembedder__attn_implementation": ["sdpa", "someone/kernel"]},
    {"llmlayerembedder__model_kwargs": [{"weights_only": False}]},
    {"llmlayerembedder__model_kwargs": [{"attn_implementation": "someone/kernel"}]},
    {"search__storage": ["sqlite:///study.db"]},
]


@pytest.mark.parametrize("searched", SEARCHED, ids=lambda grid: str(grid)[:70])
def test_a_search_that_would_run_code_needs_trust(searched, tmp_path):
    pipe = make_pipeline(LLMLayerEmbedder("hub/model"), LogisticRegression())
    grids = searched if isinstance(searched, list) else [searched]
    plain = {key: values[-1] for grid in grids for key, values in grid.items()}
    searches = [
        GridSearchCV(pipe, searched),
        RandomizedSearchCV(pipe, searched),
        FeatureUnion([("a", GridSearchCV(pipe, searched))]),
        FunctionTransformer(kw_args={"deep": [{"er": (plain,)}]}),
    ]
    fitted = GridSearchCV(pipe, {"logisticregression__C": [1.0]})
    fitted.best_params_, fitted.cv_results_ = plain, {"params": [plain]}
    for search in [*searches, fitted]:
        save(search, tmp_path / "model")
        with pytest.raises(ValueError, match=r"you trust who saved it.*trusted="):
            load(tmp_path / "model", trusted=[np.mean])
    trusted = [LLMLayerEmbedder, joblib.Memory, Pipeline, OptunaSearchCV]
    trusted += [FeatureAgglomeration, np.mean]
    load(tmp_path / "model", trusted=trusted)


def test_a_fitted_search_shows_what_it_tried(tmp_path):
    search = GridSearchCV(FusionTransformer(), {"operator": ["sum"]})
    tried = np.ma.MaskedArray([None, True], [True, False], dtype=object)
    search.cv_results_ = {"param_embed__trust_remote_code": tried}
    save(search, tmp_path / "model")
    with pytest.raises(ValueError, match=r"runs code.*trusted=\[LLMLayerEmbedder\]"):
        load(tmp_path / "model")


def test_what_needs_no_trust_in_a_search(tmp_path):
    grid = {
        "llmlayerembedder__trust_remote_code": [False],
        "llmlayerembedder__attn_implementation": ["sdpa", None],
        "llmlayerembedder__memory": [VectorStore("vectors"), None],
        "memory": [None],
        "logisticregression__C": [1.0],
    }
    pipe = make_pipeline(LLMLayerEmbedder("hub/model", memory="vectors"), LogisticRegression())
    save(GridSearchCV(pipe, grid), tmp_path / "model")
    assert repr(load(tmp_path / "model").param_grid) == repr(grid)


@pytest.mark.parametrize("storage", ["sqlite:///study.db", Path("study.log")])
def test_a_storage_of_studies_needs_trust(storage, tmp_path):
    save(OptunaSearchCV(LogisticRegression(), {}, storage=storage), tmp_path / "model")
    with pytest.raises(ValueError, match=r"write a study.*trusted=\[OptunaSearchCV\]"):
        load(tmp_path / "model")
    assert load(tmp_path / "model", trusted=[OptunaSearchCV]).storage == storage


# --- folders that a saved embedder would clear -----------------------------------------------


@pytest.mark.parametrize("where", ["absolute", "relative"])
@pytest.mark.parametrize("place", ["store_", "memory", "memory and scoped"])
def test_a_made_up_store_removes_no_files(where, place, folder, texts, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    files = {"weights.safetensors", "notes.tmp"}
    for name in files:
        (mine / name).write_text("mine")
    store = VectorStore(tmp_path / "store", size_limit=1)
    embedder = LLMLayerEmbedder(folder(), memory=store).fit(texts)
    save(embedder, tmp_path / "model")
    outside = str(mine) if where == "absolute" else "../" * 3 + "mine"
    state = {"location": str(tmp_path / "store"), "size_limit": 1}
    planted = state if place == "memory" else state | {"_fingerprint": outside, "_about": {}}

    def edit(plain, parts):
        parts["store_" if place == "store_" else "memory"] = made("skfusion.VectorStore", planted)
        if place == "memory":
            parts["store_"] = made("skfusion.Spec", {"_fingerprint": outside})

    change(tmp_path / "model", edit)
    try:
        loaded = load(tmp_path / "model")
    except ValueError:
        assert place != "memory"
    else:
        loaded.transform(texts)
        loaded.store_.clear()
        assert loaded.store_._fingerprint == embedder.store_._fingerprint
    assert {file.name for file in mine.iterdir()} == files


@pytest.mark.parametrize(
    "spec",
    [
        made("sklearn.utils._bunch.Bunch", {"fingerprint": "../../mine"}),
        ("Bunch", {"fingerprint": ("name", "numpy.exp"), "about": ("name", "numpy.exp")}),
        made("skfusion.VectorStore", {"location": "a"}),
        made("skfusion.Spec", {"identity": "folder:0"}),
    ],
    ids=["unknown", "bunch", "store", "unfinished"],
)
def test_a_made_up_spec_is_refused(spec, folder, texts, tmp_path):
    save(LLMLayerEmbedder(folder()).fit(texts), tmp_path / "model")
    change(tmp_path / "model", lambda plain, parts: parts.update(_spec=spec))
    with pytest.raises(ValueError, match="is not loaded"):
        load(tmp_path / "model")


# --- what a load may change ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "own"])
def test_a_load_registers_no_operator(name, tmp_path):
    save(FusionTransformer("sum", block_sizes=[1, 1]), tmp_path / "model")
    before = dict(OPERATORS)
    exp, valid = ("name", "numpy.exp"), ("name", "numpy.isfinite")
    operators = {name: ("tuple", [10.0**30, exp, valid, "any"])}
    change(tmp_path / "model", lambda plain, parts: parts.update(_own_operators=operators))
    with pytest.raises(ValueError, match="operators, which you alone register"):
        load(tmp_path / "model")
    # The refusal may come after it, from a part that is read later.
    save(make_pipeline(FusionTransformer("sum"), StandardScaler()), tmp_path / "later")
    tree = made(
        "sklearn.pipeline.Pipeline",
        parts={
            "a": made("skfusion.FusionTransformer", parts={"_own_operators": operators}),
            "b": ("name", "os.system"),
        },
    )
    write_tree(tmp_path / "later", tree)
    with pytest.raises(ValueError, match="is not loaded"):
        load(tmp_path / "later")
    assert before == OPERATORS


def test_a_load_changes_nothing_else(tmp_path, rng):
    X = EmbeddingBlocks({"a": rng.normal(size=(20, 3)), "b": rng.normal(size=(20, 2))})
    head = FusionMLPClassifier("gated", n_components=4, max_epochs=1, random_state=0)
    save(head.fit(X, np.arange(20) % 2), tmp_path / "model")
    load(tmp_path / "model")  # imports what it needs

    def world():
        states = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # noqa: NPY002
        return dict(OPERATORS), set(sys.modules), dict(os.environ), os.getcwd(), states

    before = world()
    load(tmp_path / "model")
    assert world() == before


@pytest.mark.parametrize(
    "loader",
    ["Function", "Type", "Object", "Loss", "Tree", "Dict", "List", "Method", "Partial", "NdArray"],
)
def test_a_load_imports_nothing_for_a_name(loader, model, tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    node = {"__class__": "thing", "__module__": "evil_module", "__loader__": f"{loader}Node"}
    empty = {"__class__": "tuple", "__module__": "builtins", "__loader__": "TupleNode"}
    empty["content"] = []
    reduced = {"__reduce__": {"args": empty}, "attrs": empty, "key_types": empty}
    change_schema(model, lambda schema: node | reduced | {"content": empty, "type": "numpy"})
    with pytest.raises(ValueError, match="is not loaded"):
        load(model)
    write_tree(model, ("name", "evil_module.thing"))
    with pytest.raises(ValueError, match="is not loaded"):
        load(model)
    assert "evil_module" not in sys.modules


# --- what a load may allocate ----------------------------------------------------------------

LARGE = 10**9


def header(descr, shape):
    content = io.BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, fields)
    return content.getvalue()


def assert_refused_within(model, limit=2**26):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is not loaded"):
            load(model)
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "array",
    [
        header("|O", (3,)) + bytes(24),  # addresses
        header("<f8", (400,)) + bytes(24),
        header("<f8", (LARGE,)),
        header("<f8", (2**31, 2**33)),  # wraps around to 0
        header("<U0", (LARGE,)),
        header([("a", "<f8", (LARGE,))], (1,)),
        b"PK\x03\x04",
        b"",
    ],
    ids=["objects", "short", "large", "overflow", "no width", "structured", "zip", "empty"],
)
def test_arrays_that_are_not_there(model, array):
    file = model / "model.skops"
    parts = entries(file.read_bytes())
    for name in parts.keys() - {"schema.json"}:
        file.write_bytes(zipped(parts | {name: array}))
        assert_refused_within(model)


def test_a_file_that_grows(model):
    file = model / "model.skops"
    zeros = io.BytesIO()
    np.save(zeros, np.zeros(LARGE // 100, np.uint8))
    parts = entries(file.read_bytes())
    large = {max(parts): zeros.getvalue()}, {"schema.json": b" " * (LARGE // 100)}
    for part in large:
        file.write_bytes(zipped(parts | part, zipfile.ZIP_DEFLATED))
        assert_refused_within(model)


def test_one_array_in_many_places(model):
    write_tree(model, np.zeros(10**6))
    change_schema(
        model,
        lambda array: {
            "__class__": "list",
            "__module__": "builtins",
            "__loader__": "ListNode",
            "content": [array] * 100,
        },
    )
    assert_refused_within(model)


def test_a_list_of_itself_many_times(model):
    write_tree(model, [1])

    def edit(schema):
        node = schema["content"][0]
        for i in range(1, 60):
            node = schema | {"content": [node | {"__id__": i}, {"__id__": i}], "__id__": i + 100}
        return node

    change_schema(model, edit)
    assert_refused_within(model)


def test_a_random_generator_with_a_large_pool(model):
    save(FunctionTransformer(kw_args={"a": np.random.default_rng(0)}), model)
    load(model)
    file = model / "model.skops"
    parts = entries(file.read_bytes())
    schema = parts["schema.json"].decode()
    at = schema.index('"pool_size"')
    planted = schema[:at] + schema[at:].replace('"content": "4"', f'"content": "{LARGE}"', 1)
    assert planted != schema
    file.write_bytes(zipped(parts | {"schema.json": planted}))
    assert_refused_within(model)


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["concat", "sum", "gated"])
@pytest.mark.parametrize(
    "size",
    [
        ("n_components", LARGE),
        ("n_outputs", LARGE),
        ("hidden_layer_sizes", [LARGE]),
        ("widths", [LARGE, LARGE]),
        ("groups", [[i % 2] for i in range(3_000)]),
    ],
    ids=lambda size: size[0],
)
def test_a_network_that_is_larger_than_its_weights(size, operator, tmp_path, rng):
    X = EmbeddingBlocks({"a": rng.normal(size=(20, 3)), "b": rng.normal(size=(20, 2))})
    head = FusionMLPClassifier(operator, n_components=4, max_epochs=1, random_state=0)
    head.set_params(hidden_layer_sizes=[5], dropout=0.0)
    save(head.fit(X, np.arange(20) % 2), tmp_path / "model")

    def edit(plain, parts):
        net = parts["net_"][1][1]
        text, others = net["architecture"][1]
        head = json.loads(text)
        name, value = size
        head["state"].pop(name, None)
        if isinstance(value, list):
            value = ("tuple", [("tuple", v) if isinstance(v, list) else v for v in value])
        others[name] = value
        net["architecture"] = ("object", [json.dumps(head), others])

    change(tmp_path / "model", edit)
    if operator == "concat" and "n_components" in size:
        load(tmp_path / "model")  # has no use for it
    else:
        assert_refused_within(tmp_path / "model")
