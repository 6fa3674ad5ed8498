"""`ModelSubsetSearchCV` on texts: what is encoded, what is learnt from which rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn
from _support import tiny
from _support.doubles import CountingEmbedder, read_log
from _support.tiny import tiny_texts
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.fixes import parse_version

from skfusion import EmbedderUnion, FusionTransformer, ModelSubsetSearchCV

N = 24


@pytest.fixture
def models(tmp_path) -> dict[str, str]:
    kinds = {"minilm": "bert", "smol": "llama"}
    return {name: str(tiny.save_folder(tmp_path / name, kind)) for name, kind in kinds.items()}


@pytest.fixture
def texts() -> list[str]:
    return tiny_texts(N)


@pytest.fixture
def labels() -> np.ndarray:
    return np.arange(N) % 2


@pytest.fixture
def pipe(models, tmp_path) -> Pipeline:
    embed = EmbedderUnion(
        [
            ("minilm", CountingEmbedder(models["minilm"], layer=[1, -1])),
            ("smol", CountingEmbedder(models["smol"])),
            ("words", TfidfVectorizer()),
        ],
        memory=tmp_path / "store",
    )
    fuse = FusionTransformer(n_components=4, random_state=0)
    return Pipeline([("embed", embed), ("fuse", fuse), ("clf", LogisticRegression())])


def test_each_text_passes_once_through_each_model(pipe, models, texts, labels):
    search = ModelSubsetSearchCV(pipe, cv=3, error_score="raise").fit(texts, labels)
    assert search.cv_results_["param_blocks"].tolist() == [
        ("minilm",),
        ("smol",),
        ("words",),
        ("minilm", "smol"),
        ("minilm", "words"),
        ("smol", "words"),
        ("minilm", "smol", "words"),
    ]
    assert [read_log(model) for model in models.values()] == [(1, N), (1, N)]
    again = ModelSubsetSearchCV(pipe, cv=3, n_jobs=2, error_score="raise").fit(texts, labels)
    assert [read_log(model) for model in models.values()] == [(0, 0), (0, 0)]
    for name, found in search.cv_results_.items():
        if name.startswith("split"):
            np.testing.assert_array_equal(again.cv_results_[name], found)


def test_workers_that_find_an_empty_store_encode_each_text_once_too(pipe, models, texts, labels):
    low = make_pipeline(FunctionTransformer(validate=False), pipe["embed"].embedders[1][1])
    pipe.set_params(embed__smol=low)  # a language model within a pipeline
    pipe["embed"].set_params(smol__functiontransformer__feature_names_out="one-to-one")
    ModelSubsetSearchCV(pipe, cv=3, n_jobs=2, error_score="raise").fit(texts, labels)
    assert [read_log(model) for model in models.values()] == [(1, N), (1, N)]


@pytest.mark.slow
def test_a_search_over_layers_poolings_operators_and_subsets_encodes_once(
    pipe, models, texts, labels
):
    pipe.set_params(embed__words="drop", embed__smol__layer="auto")
    grid = [
        {"estimator__embed__minilm__layer": [1], "estimator__fuse__operator": ["concat", "sum"]},
        {"estimator__embed__smol__pooling": ["last", "auto"]},
    ]
    outer = GridSearchCV(ModelSubsetSearchCV(pipe, cv=2), grid, cv=2, error_score="raise")
    outer.fit(texts, labels)
    assert set(outer.best_estimator_.best_subset_) <= {"minilm", "smol"}
    assert [read_log(model)[1] for model in models.values()] == [N, N]
    clone(outer.best_estimator_).fit(texts, labels)
    assert [read_log(model) for model in models.values()] == [(0, 0), (0, 0)]


def test_scores_are_those_of_the_pipeline_with_the_other_models_dropped(pipe, texts, labels):
    search = ModelSubsetSearchCV(pipe, cv=3).fit(texts, labels)
    scores = dict(
        zip(
            search.cv_results_["param_blocks"],
            search.cv_results_["mean_test_score"],
            strict=True,
        )
    )
    for drop, subset in [
        ({"embed__smol": "drop"}, ("minilm", "words")),
        ({"embed__words": "drop"}, ("minilm", "smol")),
        ({}, ("minilm", "smol", "words")),
    ]:
        alone = clone(pipe).set_params(**drop)
        assert scores[subset] == pytest.approx(cross_val_score(alone, texts, labels, cv=3).mean())


def test_models_that_were_not_chosen_are_not_run(pipe, models, texts, labels):
    cost = {"minilm": 5.0, "smol": 1.0, "words": 5.0}
    search = ModelSubsetSearchCV(
        pipe, cv=3, sizes=[1], cost=lambda names: sum(map(cost.get, names))
    )
    search.fit(texts, labels)
    (chosen,) = search.best_subset_
    assert list(search.best_estimator_["embed"].named_embedders_) == [chosen]
    for model in models.values():
        read_log(model)
    assert search.predict(["an unseen text", "another"]).shape == (2,)
    ran = {name for name, model in models.items() if read_log(model)[1]}
    assert ran == {chosen} & set(models)
    assert pipe.get_params()["embed__smol"] != "drop"  # the user's own is as before


class Rote(TransformerMixin, BaseEstimator):
    """Knows the labels of the texts it was fitted on and guesses those of others."""

    def fit(self, X: Any, y: Any) -> Rote:
        self.known_ = dict(zip(X, y, strict=True))
        return self

    def transform(self, X: Any) -> Any:
        return np.array([[float(self.known_.get(text, len(text) % 2))] for text in X])


def test_what_a_fold_tests_on_teaches_it_nothing(texts):
    labels = np.random.default_rng(1).permutation(np.arange(N) % 2)
    union = EmbedderUnion([("rote", Rote()), ("words", TfidfVectorizer())])
    search = ModelSubsetSearchCV(make_pipeline(union, LogisticRegression()), cv=4)
    search.fit(texts, labels)
    assert search.cv_results_["mean_test_score"][0] < 0.75
    everything_seen = make_pipeline(Rote(), LogisticRegression()).fit(texts, labels)
    assert everything_seen.score(texts, labels) == 1


def test_poisoned_test_rows_change_no_choice(pipe, texts, labels):
    cv = [(np.arange(16), np.arange(16, N))]
    choices = []
    for last_texts, last_labels in [
        (texts[16:], labels[16:]),
        (["poison"] * 8, 1 - labels[16:]),
    ]:
        found = cross_validate(
            ModelSubsetSearchCV(pipe, cv=2),
            [*texts[:16], *last_texts],
            np.concatenate([labels[:16], last_labels]),
            cv=cv,
            return_estimator=True,
        )
        (search,) = found["estimator"]
        choices.append((search.best_subset_, *search.cv_results_["mean_test_score"]))
    assert choices[0] == choices[1]


def test_parameters_of_fit_follow_their_rows(pipe, texts, labels, rng):
    """Rows of weight 0 are as good as absent, in heads on learnt vectors too."""
    weights = rng.integers(0, 2, N).astype(float)
    seen = []

    class Recorder(LogisticRegression):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            seen.append((np.asarray(y), sample_weight))
            return super().fit(X, y, sample_weight)

    labels = np.where(weights > 0, labels, labels + 2)  # tells by the label which weight it had
    pipe.set_params(clf=Recorder())
    groups = np.arange(N) // 4
    search = ModelSubsetSearchCV(pipe, cv=GroupKFold(3), sizes=[1])
    search.fit(texts, labels, clf__sample_weight=weights, groups=groups)
    assert seen and all(((y < 2) == (weight > 0)).all() for y, weight in seen)


@pytest.mark.skipif(
    parse_version(sklearn.__version__) < parse_version("1.8"),
    reason="GridSearchCV refuses it as well: no search asks a pipeline's head what it requests",
)
def test_routed_metadata_reach_the_head_of_every_subset(pipe, texts, labels, rng):
    weights = rng.uniform(size=N)
    with sklearn.config_context(enable_metadata_routing=True):
        pipe["clf"].set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = ModelSubsetSearchCV(pipe, cv=2).fit(texts, labels, sample_weight=weights)
        kept = {
            f"embed__{name}": "drop"
            for name in {"minilm", "smol", "words"} - set(search.best_subset_)
        }
        alone = clone(pipe).set_params(**kept).fit(texts, labels, sample_weight=weights)
    np.testing.assert_allclose(search.predict_proba(texts), alone.predict_proba(texts))


def test_late_fusion_encodes_each_text_once(models, texts, labels, tmp_path):
    single = [
        (name, make_pipeline(CountingEmbedder(model, memory=tmp_path), LogisticRegression()))
        for name, model in models.items()
    ]
    for late in (StackingClassifier(single, cv=3), VotingClassifier(single, voting="soft")):
        late.fit(np.array(texts), labels).predict_proba(np.array(texts))
    assert [read_log(model)[1] for model in models.values()] == [N, N]


def test_a_pipeline_needs_a_head_and_models(pipe, texts, labels):
    with pytest.raises(ValueError, match="neither a classifier nor a regressor"):
        ModelSubsetSearchCV(Pipeline(pipe.steps[:1])).fit(texts, labels)
    none = clone(pipe).set_params(embed__minilm="drop", embed__smol="drop", embed__words="drop")
    with pytest.raises(ValueError, match="Every embedder of the union is dropped"):
        ModelSubsetSearchCV(none).fit(texts, labels)
