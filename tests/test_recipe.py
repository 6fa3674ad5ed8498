"""`FusionClassifier` and `FusionRegressor`: what they build, choose, report and never look at."""

from __future__ import annotations

import pickle
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
from _support.doubles import NumberReader
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import skfusion
from skfusion import (
    EmbedderUnion,
    FusionClassifier,
    FusionRegressor,
    FusionTransformer,
    LLMLayerEmbedder,
)

QUICK: dict[str, Any] = {"cv": 2, "random_state": 0}


class Noise(NumberReader):
    """A model that knows nothing of its texts but their length."""

    def transform(self, X: Any) -> Any:
        rows = [np.random.default_rng(crc32(text.encode())).normal(size=5) for text in X]
        return np.array(rows)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        return np.array([f"noise{i}" for i in range(5)], dtype=object)


def number_texts(n: int = 80, gap: float = 3.0, seed: int = 0) -> tuple[list[str], Any]:
    """Texts of numbers, of two classes of which one has a fifth of the rows."""
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % 5 == 0, "rare", "often")
    X = rng.normal(size=(n, 4)) + gap * (y == "rare")[:, None] * [1, 0, 0, 0]
    return [" ".join(f"{v:.4f}" for v in row) for row in X], y


def film_texts(n: int = 24) -> tuple[list[str], Any]:
    subjects = ["film", "plot", "actor", "scene", "music", "ending", "story", "one"]
    words = ["good", "bad"]
    texts = [
        f"the {subjects[i // 2 % 8]} was {words[i % 2]} {'very ' * (i // 16)}" for i in range(n)
    ]
    return texts, np.array(["pos", "neg"])[np.arange(n) % 2]


@pytest.fixture(scope="module")
def fitted() -> tuple[FusionClassifier, list[str], Any]:
    texts, y = number_texts()
    clf = FusionClassifier([("numbers", NumberReader()), ("noise", Noise())], **QUICK)
    return clf.fit(texts, y), texts, y


def test_it_builds_an_ordinary_pipeline_that_predicts_alone(fitted):
    clf, texts, _ = fitted
    assert type(clf.pipeline_) is Pipeline
    assert [name for name, _ in clf.pipeline_.steps] == ["embed", "fuse", "clf"]
    assert isinstance(clf.pipeline_["embed"], EmbedderUnion)
    assert isinstance(clf.pipeline_["fuse"], FusionTransformer)
    assert np.array_equal(clf.pipeline_.predict(texts), clf.predict(texts))
    assert np.array_equal(clf.pipeline_.predict_proba(texts), clf.predict_proba(texts))
    again = clone(clf.pipeline_).fit(texts, clf.predict(texts))
    assert again.score(texts, clf.predict(texts)) > 0.9


def test_language_models_by_folder_are_blended(folder):
    texts, y = film_texts()
    clf = FusionClassifier([folder("llama"), folder("bert")], subset="all", **QUICK)
    clf.fit(texts, y)
    embedders = dict(clf.pipeline_["embed"].embedders)
    models = [e for e in embedders.values() if isinstance(e, LLMLayerEmbedder)]
    assert models and all(model.layer == "blend" for model in models)
    assert set(clf.predict(texts)) <= {"pos", "neg"}
    assert len(clf.model_weights_) == 3
    assert sum(clf.model_weights_.values()) == pytest.approx(1)
    assert "layer" in clf.summary()


def test_a_model_that_knows_nothing_is_left_out(fitted):
    clf, _, _ = fitted
    assert [name for name, _ in clf.pipeline_["embed"].embedders] == ["numbers"]
    assert clf.model_weights_ == {"numbers": 1.0, "noise": 0.0, "tfidf": 0.0}
    assert "left out: noise, tfidf" in clf.summary()


def test_all_models_stay_where_that_is_asked_for():
    texts, y = number_texts()
    models = [("numbers", NumberReader()), ("noise", Noise())]
    clf = FusionClassifier(models, subset="all", tfidf=False, **QUICK).fit(texts, y)
    assert [name for name, _ in clf.pipeline_["embed"].embedders] == ["numbers", "noise"]


def test_tfidf_is_kept_where_it_pays_or_is_asked_for():
    texts, y = film_texts()
    paying = FusionClassifier([("noise", Noise())], **QUICK).fit(texts, y)
    assert [name for name, _ in paying.pipeline_["embed"].embedders] == ["tfidf"]
    numbers, labels = number_texts()
    asked = FusionClassifier([("numbers", NumberReader())], tfidf=True, **QUICK)
    assert asked.fit(numbers, labels).model_weights_.keys() == {"numbers", "tfidf"}
    assert "tfidf" in dict(asked.pipeline_["embed"].embedders)


def test_texts_without_a_word_do_without_tfidf():
    texts = ["1 2", "2 1", "3 9", "9 3"] * 3
    clf = FusionClassifier([NumberReader()], **QUICK).fit(texts, [0, 1, 0, 1] * 3)
    assert "tfidf" not in clf.model_weights_


def test_the_score_is_that_of_rows_that_nothing_was_chosen_by(fitted):
    """Repeating `fit` on the training rows of a fold gives the score of that fold."""
    clf, texts, y = fitted
    from sklearn.metrics import f1_score

    from skfusion._targets import CLASSES, read_targets
    from skfusion.selection.recipe_plan import splits

    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    folds = splits(read_targets(y, CLASSES, ""), 2, seed)
    for found, (train, test) in zip(clf.scores_, folds, strict=True):
        assert not set(train) & set(test)
        alone = clone(clf).set_params(time_budget=None)
        alone.fit([texts[i] for i in train], y[train])
        predicted = alone.predict([texts[i] for i in test])
        assert f1_score(y[test], predicted, average="macro") == pytest.approx(found, abs=0.15)


def test_poisoned_test_rows_change_nothing(fitted):
    clf, texts, _ = fitted
    before = clf.predict_proba(texts)
    clf.predict(["9e9 -9e9 9e9 1"])
    assert np.array_equal(clf.predict_proba(texts), before)
    batch = clf.predict_proba([*texts, "9e9 -9e9 9e9 1"])[: len(texts)]
    assert np.allclose(batch, before, atol=1e-6)


def test_shuffled_labels_score_as_chance():
    texts, y = number_texts(n=150)
    scores = []
    for seed in range(3):
        shuffled = np.random.default_rng(seed).permutation(y)
        clf = FusionClassifier(NumberReader(), tfidf=False, scoring="balanced_accuracy", **QUICK)
        scores += clf.set_params(random_state=seed).fit(texts, shuffled).scores_.tolist()
    assert np.mean(scores) == pytest.approx(0.5, abs=0.1)


def test_what_it_should_be_good_at_does_not_change_probabilities():
    texts, y = number_texts(gap=1.0)
    chances, rare = [], []
    for class_weight in (None, "sqrt", "balanced", {"rare": 100.0}):
        clf = FusionClassifier(NumberReader(), class_weight=class_weight, **QUICK)
        clf.set_params(tfidf=False, time_budget=0).fit(texts, y)
        chances.append(clf.predict_proba(texts))
        rare.append(int((clf.predict(texts) == "rare").sum()))
    assert all(np.array_equal(one, chances[0]) for one in chances)
    assert rare == sorted(rare) and rare[0] < rare[2] < rare[3]
    assert chances[0].mean(axis=0)[1] == pytest.approx(0.2, abs=0.02)


def test_no_time_is_no_search():
    texts, y = number_texts()
    models = [("numbers", NumberReader()), ("noise", Noise())]
    clf = FusionClassifier(models, time_budget=0, **QUICK).fit(texts, y)
    assert not len(clf.scores_)
    assert len(clf.pipeline_["embed"].embedders) == 3
    assert "not estimated" in clf.summary()


def test_summary_has_what_was_promised(fitted):
    clf, _, _ = fitted
    lines = clf.summary().splitlines()
    assert 10 <= len(lines) <= 20
    for start in ("head: ", "class weights of decisions: ", "weights of models", "left out: ",
                  "score: f1_macro", "TF-IDF + logistic regression: f1_macro", "difference: ",
                  "seconds: ", "bytes of stored vectors: "):  # fmt: skip
        assert sum(line.startswith(start) for line in lines) == 1, start
    assert "95 % interval" in clf.summary()


def test_it_is_pickled_and_saved(fitted, tmp_path):
    clf, texts, _ = fitted
    expected = clf.predict_proba(texts)
    copied = pickle.loads(pickle.dumps(clf))
    assert np.array_equal(copied.predict_proba(texts), expected)
    assert copied.summary() == clf.summary()
    skfusion.save(clf, tmp_path / "model")
    loaded = skfusion.load(tmp_path / "model", trusted=[NumberReader, Noise])
    assert np.array_equal(loaded.predict_proba(texts), expected)
    assert loaded.summary() == clf.summary()


def test_a_recipe_of_language_models_is_saved(folder, tmp_path):
    texts, y = film_texts(12)
    # A folder of vectors, which is no cache of pickles.
    clf = FusionClassifier(folder("llama"), time_budget=0, memory=str(tmp_path / "store"), **QUICK)
    skfusion.save(clf.fit(texts, y), tmp_path / "model")
    loaded = skfusion.load(tmp_path / "model")
    assert np.allclose(loaded.predict_proba(texts), clf.predict_proba(texts))


def test_it_is_searched_and_cross_validated():
    texts, y = number_texts(40)
    clf = FusionClassifier(NumberReader(), time_budget=0, tfidf=False, **QUICK)
    assert cross_val_score(clf, texts, y, cv=2).mean() > 0.7
    search = GridSearchCV(clf, {"head": ["logistic", "ridge", LogisticRegression()]}, cv=2)
    assert search.fit(texts, y).predict(texts).shape == (40,)


def test_tables_take_part(folder):
    texts, y = film_texts()
    table = pd.DataFrame({"text": texts, "stars": np.where(y == "pos", 4.0, 2.0)})
    parts = [("words", TfidfVectorizer(), "text"), ("numbers", StandardScaler(), ["stars"])]
    model = ColumnTransformer(parts, sparse_threshold=0)
    clf = FusionClassifier([("table", model)], **QUICK).fit(table, y)
    assert clf.n_features_in_ == 2
    assert list(clf.feature_names_in_) == ["text", "stars"]
    assert (clf.predict(table) == y).all()
    assert clf.baseline_name_ == "most frequent class"
    with pytest.raises(ValueError, match="tfidf=True needs texts"):
        FusionClassifier([("table", model)], tfidf=True).fit(table, y)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_few_rows_are_enough(n):
    texts, _ = number_texts(n)
    y = np.arange(n) % 3 % 2
    clf = FusionClassifier(NumberReader(), random_state=0).fit(texts, y)
    assert np.isfinite(clf.predict_proba(texts)).all()
    assert clf.summary()


def test_classes_of_one_row_are_learnt():
    texts, y = number_texts(30)
    y = np.array([*y[:-1], "once"])
    clf = FusionClassifier(NumberReader(), **QUICK).fit(texts, y)
    assert list(clf.classes_) == ["often", "once", "rare"]
    assert np.allclose(clf.predict_proba(texts).sum(axis=1), 1)


def test_numbers_are_predicted():
    texts, _ = number_texts(60)
    y = np.array([float(text.split()[0]) for text in texts])
    reg = FusionRegressor([("numbers", NumberReader()), ("noise", Noise())], **QUICK)
    assert reg.fit(texts, y).score(texts, y) > 0.95
    assert [name for name, _ in reg.pipeline_.steps] == ["embed", "fuse", "reg"]
    assert "TF-IDF + ridge regression: r2" in reg.summary()


@pytest.mark.parametrize(
    ("change", "y", "error", "match"),
    [
        ({}, ["a"] * 10, ValueError, "two classes"),
        ({}, [[0, 1], [1, 0]] * 5, ValueError, "MultiOutputClassifier"),
        ({}, np.linspace(0, 1, 10), ValueError, "Unknown label type"),
        ({"models": []}, [0, 1] * 5, ValueError, "Give one at least"),
        ({"models": [3]}, [0, 1] * 5, TypeError, "A model must be"),
        ({"models": [("a", Noise()), ("a", Noise())]}, [0, 1] * 5, ValueError, "name 'a'"),
        ({"head": Ridge()}, [0, 1] * 5, ValueError, "head="),
        ({"subset": "some"}, [0, 1] * 5, ValueError, "subset"),
    ],
)
def test_what_cannot_work_is_refused(change, y, error, match):
    clf = FusionClassifier(NumberReader(), **QUICK).set_params(**change)
    with pytest.raises(error, match=match):
        clf.fit(number_texts(10)[0], y)


def test_models_get_names_of_their_own(folder):
    path = folder("llama")
    from skfusion.selection.names import name_models

    names = list(name_models([path, path, "org/some__model", Noise()]))
    last = path.rsplit("/", 1)[-1]
    assert names == [last, f"{last}-2", "some_model", "noise"]


def test_the_union_gives_a_part_of_itself(fitted):
    texts, y = number_texts(10)
    union = EmbedderUnion([("a", NumberReader()), ("b", Noise())])
    whole = union.fit_transform(texts, y)
    part = union.select(["b"])
    assert np.array_equal(part.transform(texts), np.asarray(whole)[:, union.output_indices_["b"]])
    assert list(part.get_feature_names_out()) == list(union.get_feature_names_out()[-5:])
    with pytest.raises(ValueError, match="fitted embedders: a, b"):
        union.select(["c"])
