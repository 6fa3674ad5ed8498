"""What is saved comes back: the same predictions, structure, parameters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sklearn
import torch
from _support.doubles import stub
from scipy import sparse
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV, SGDClassifier
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree._tree import Tree
from sklearn.utils.fixes import parse_version

import skfusion
from skfusion import (
    EmbedderUnion,
    FusionTransformer,
    LLMLayerEmbedder,
    VectorStore,
    register_operator,
)
from skfusion.embed.loading import release
from skfusion.fusion.registry import OPERATORS
from skfusion.saving import load, save

V1_9 = parse_version("1.9")


def logistic(**params):
    return LogisticRegression(**params)


def search(**params):
    pipe = make_pipeline(StandardScaler(), PCA(2, svd_solver="full"), logistic())
    grid = {"pca__n_components": [1, 2], "logisticregression": [logistic(), RidgeClassifierCV()]}
    return GridSearchCV(pipe, grid, cv=StratifiedKFold(3), **params)


PLAIN = [
    make_pipeline(StandardScaler(), PCA(2), logistic()),
    make_pipeline(FunctionTransformer(np.tanh), MinMaxScaler(), LinearSVC()),
    make_pipeline(SelectKBest(f_classif, k=2), GaussianNB()),
    ColumnTransformer([("a", StandardScaler(), [0, 2]), ("b", "passthrough", slice(1, 2))]),
    SGDClassifier(loss="log_loss", random_state=0),
    SVC(),
    MLPClassifier((5,), max_iter=3, tol=1.0, n_iter_no_change=1, random_state=0),
    KNeighborsClassifier(algorithm="brute"),
    CalibratedClassifierCV(LinearSVC(), cv=2),
    OneVsRestClassifier(logistic()),
    VotingClassifier([("a", logistic()), ("b", GaussianNB())], voting="soft"),
    StackingClassifier([("a", logistic()), ("b", GaussianNB())], cv=2),
    search(scoring=make_scorer(f1_score, average="macro", pos_label=None)),
    search(scoring={"f1": "f1_macro", "accuracy": "accuracy"}, refit="f1"),
    search(),
]
TREES = [
    RandomForestClassifier(3, random_state=0),
    GradientBoostingClassifier(n_estimators=2, random_state=0),
    HistGradientBoostingClassifier(max_iter=2),
]


@pytest.fixture
def data(rng):
    X = rng.normal(size=(60, 3))
    return X, np.array(["no", "maybe", "yes"], dtype=object)[(X[:, :2] > 0).sum(axis=1)]


def outputs(fitted, X):
    methods = ["predict", "predict_proba", "decision_function", "transform"]
    return [getattr(fitted, method)(X) for method in methods if hasattr(fitted, method)]


def assert_same(loaded, fitted, X):
    assert type(loaded) is type(fitted)
    for ours, theirs in zip(outputs(loaded, X), outputs(fitted, X), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    assert repr(loaded.get_params()) == repr(fitted.get_params())


@pytest.mark.parametrize("estimator", [*PLAIN, *TREES], ids=lambda e: type(e).__name__)
def test_predictions_are_equal_bit_by_bit(estimator, data, tmp_path):
    X, y = data
    fitted = clone(estimator).fit(X, y)
    if isinstance(fitted, SGDClassifier) and parse_version(sklearn.__version__) < V1_9:
        pytest.skip("before scikit-learn 1.9 its compiled loss cannot be saved without pickle")
    save(fitted, tmp_path / "model")
    loaded = load(tmp_path / "model", trusted=[Tree, TreePredictor] if estimator in TREES else [])
    assert_same(loaded, fitted, X)
    clone(loaded).fit(X, y)


def text_pipelines(folder):
    llama, bert = folder("llama"), folder("bert")
    union = EmbedderUnion(
        [
            ("llama", LLMLayerEmbedder(llama, layer=[1, 0.9], prompt="a ")),
            ("bert", LLMLayerEmbedder(Path(bert), pooling="max", normalize=True)),
        ],
        memory=VectorStore(size_limit="1G"),
    )
    words = FeatureUnion([("words", TfidfVectorizer()), ("llama", LLMLayerEmbedder(llama))])
    fusions = [
        FusionTransformer("hadamard", residual="concat", n_components=4),
        FusionTransformer("weighted", scale="l2"),
        FusionTransformer("bilinear", n_components=6, random_state=0),
        FusionTransformer("sum", projection="random", random_state=0),
        FusionTransformer("quaternion", projection="supervised", n_components=4, random_state=0),
    ]
    pipes = [make_pipeline(union, fusion, logistic()) for fusion in fusions]
    grid = {"llmlayerembedder__layer": [1, 2]}
    return [
        *pipes,
        make_pipeline(words, TruncatedSVD(3, random_state=0), logistic()),
        GridSearchCV(make_pipeline(LLMLayerEmbedder(llama), logistic()), grid, cv=2),
    ]


@pytest.mark.filterwarnings("ignore::skfusion.ProjectionWarning")
@pytest.mark.parametrize("which", range(7))
def test_text_pipelines_come_back_without_weights(which, folder, texts, tmp_path):
    fitted = clone(text_pipelines(folder)[which]).fit(texts, ["pos", "neg"] * 7)
    save(fitted, tmp_path / "model")
    assert sum(file.stat().st_size for file in (tmp_path / "model").iterdir()) < 100_000
    assert_same(load(tmp_path / "model", memory="saved"), fitted, [*texts, "a new text"])


def test_no_model_in_memory_is_needed(folder, texts, tmp_path):
    fitted = make_pipeline(LLMLayerEmbedder(folder()), logistic()).fit(texts, [0, 1] * 7)
    save(fitted, tmp_path / "model")
    expected = fitted.predict_proba(texts)
    VectorStore().clear()
    release()
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(texts), expected)


@pytest.mark.slow
def test_another_process_predicts_the_same(data, tmp_path):
    fitted = make_pipeline(StandardScaler(), CalibratedClassifierCV(SVC(), cv=2)).fit(*data)
    save(fitted, tmp_path / "model")
    code = (
        "import sys, numpy as np\n"
        "from skfusion.saving import load\n"
        "np.save(sys.argv[2], load(sys.argv[1]).predict_proba(np.load(sys.argv[2])))\n"
    )
    np.save(tmp_path / "data.npy", data[0])
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model"), str(tmp_path / "data.npy")],
        env=os.environ | {"PYTHONPATH": str(Path(skfusion.__file__).parents[1])},
        check=True,
    )
    np.testing.assert_array_equal(np.load(tmp_path / "data.npy"), fitted.predict_proba(data[0]))


@pytest.mark.parametrize("estimator", [PLAIN[0], TREES[0], PLAIN[6]], ids=lambda e: repr(e)[:9])
def test_no_file_is_a_pickle(estimator, data, tmp_path):
    save(clone(estimator).fit(*data), tmp_path / "model")
    for file in (tmp_path / "model").iterdir():
        content = file.read_bytes()
        assert file.suffix in {".json", ".safetensors", ".skops"}
        assert not content.startswith(b"\x80")
        assert b".pkl" not in content and b".pickle" not in content


def test_what_was_one_object_is_one_again(tmp_path):
    array, inner = np.arange(3.0), logistic()
    outer = FunctionTransformer(kw_args={"a": [array, array], "inner": [inner, inner]})
    inner.owner_ = outer
    save(outer, tmp_path / "model")
    loaded = load(tmp_path / "model")
    arrays, inners = loaded.kw_args["a"], loaded.kw_args["inner"]
    assert arrays[0] is arrays[1] and inners[0] is inners[1] and inners[0].owner_ is loaded


def test_settings_beside_parameters_are_kept(data, tmp_path):
    scaler = StandardScaler().set_output(transform="pandas").fit(data[0])
    with config_context(enable_metadata_routing=True):
        scaler.set_fit_request(sample_weight=True)
    save(scaler, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.transform(data[0]).equals(scaler.transform(data[0]))
    routing = [s.get_metadata_routing() for s in (loaded, scaler)]
    assert repr(routing[0]) == repr(routing[1])


def test_a_random_state_goes_on_where_it_was(data, tmp_path):
    random_state = np.random.RandomState(3)
    random_state.normal()
    save(StratifiedShuffled(random_state), tmp_path / "model")
    loaded = load(tmp_path / "model", trusted=[StratifiedShuffled])
    np.testing.assert_array_equal(loaded.random_state.normal(size=5), random_state.normal(size=5))


class StratifiedShuffled(BaseEstimator):
    def __init__(self, random_state=None):
        self.random_state = random_state


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix])
def test_sparse_matrices(kind, tmp_path):
    matrix = kind(np.array([[0.0, 1.5], [2.0, 0.0], [0.0, 0.0]]))
    save(FunctionTransformer(kw_args={"matrix": matrix}), tmp_path / "model")
    loaded = load(tmp_path / "model").kw_args["matrix"]
    assert type(loaded) is kind and loaded.dtype == matrix.dtype
    np.testing.assert_array_equal(loaded.toarray(), matrix.toarray())


class Network(ClassifierMixin, BaseEstimator):
    """Holds what has no plain state, and says itself what is kept of it."""

    def __init__(self, bias=True):
        self.bias = bias

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.net_ = torch.nn.Linear(X.shape[1], len(self.classes_), self.bias)
        return self

    def predict(self, X):
        scores = self.net_(torch.as_tensor(X, dtype=torch.float32))
        return self.classes_[scores.argmax(dim=1).numpy()]

    def __skfusion_save__(self):
        weights = {name: part.numpy() for name, part in self.net_.state_dict().items()}
        return {"params": self.get_params(), "classes": self.classes_, "weights": weights}

    @classmethod
    def __skfusion_restore__(cls, value):
        loaded = cls(**value["params"])
        loaded.classes_, weights = value["classes"], value["weights"]
        loaded.net_ = torch.nn.Linear(
            weights["weight"].shape[1], len(loaded.classes_), loaded.bias
        )
        loaded.net_.load_state_dict({k: torch.as_tensor(w) for k, w in weights.items()})
        return loaded


def test_hooks_take_the_place_of_the_state(data, tmp_path):
    fitted = make_pipeline(StandardScaler(), Network()).fit(*data)
    save(fitted, tmp_path / "model")
    loaded = load(tmp_path / "model", trusted=[Network])
    assert_same(loaded, fitted, data[0])
    assert torch.equal(loaded[-1].net_.weight, fitted[-1].net_.weight)


class Doubled(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return 2 * X


def halved(X):
    return X / 2


def test_own_classes_and_functions_are_named_by_the_user(data, tmp_path):
    fitted = make_pipeline(Doubled(), FunctionTransformer(halved), logistic()).fit(*data)
    save(fitted, tmp_path / "model")
    with pytest.raises(ValueError, match=r"Doubled.*trusted=\[Doubled\]"):
        load(tmp_path / "model")
    with pytest.raises(ValueError, match=r"halved.*trusted=\[halved\]"):
        load(tmp_path / "model", trusted=[Doubled])
    assert_same(load(tmp_path / "model", trusted=[Doubled, halved]), fitted, data[0])
    with pytest.raises(TypeError, match="classes and functions"):
        load(tmp_path / "model", trusted=["Doubled"])


def test_an_own_operator_is_registered_before_load(data, tmp_path):
    register_operator("gap", lambda blocks: abs(blocks[0] - blocks[1]))
    try:
        fuse = FusionTransformer("gap", projection=None, block_sizes=[1, 1])
        fitted = make_pipeline(fuse, logistic()).fit(data[0][:, :2], data[1])
        save(fitted, tmp_path / "gap")
        save(FusionTransformer("sum", block_sizes=[1, 1]), tmp_path / "sum")
        operator = OPERATORS.pop("gap")
        with pytest.raises(ValueError, match="register_operator\\('gap', function\\) before load"):
            load(tmp_path / "gap")
        load(tmp_path / "sum")
        OPERATORS["gap"] = operator
        assert_same(load(tmp_path / "gap"), fitted, data[0][:, :2])
    finally:
        OPERATORS.pop("gap", None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda X: X, r"kw_args\['f'\].*without a name.*`def`"),
        (torch.nn.Linear(1, 1), r"kw_args\['f'\] is a torch.*Linear.*without pickle"),
        (object(), r"kw_args\['f'\] is a builtins.object"),
        (np.array(["a"], dtype=np.dtypes.StringDType()), "dtype StringDType"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(value, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        save(make_pipeline(FunctionTransformer(kw_args={"f": value})), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_weights_in_memory_are_refused(tmp_path):

    with pytest.raises(TypeError, match=r"model is a Backbone.*save_pretrained"):
        save(LLMLayerEmbedder(stub()), tmp_path / "model")


def test_only_estimators_are_saved(tmp_path):
    for thing in ({"a": 1}, LogisticRegression):
        with pytest.raises(TypeError, match="takes an estimator"):
            save(thing, tmp_path / "model")


def test_a_list_in_itself_is_refused(tmp_path):
    loop: list = []
    loop.append(loop)
    with pytest.raises(ValueError, match="holds itself"):
        save(FunctionTransformer(kw_args={"loop": loop}), tmp_path / "model")
