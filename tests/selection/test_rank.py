"""`rank_models`: its scores against scikit-learn, its intervals, and who comes first."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from _support import tiny
from _support.doubles import CountingEmbedder, read_log, stub
from _support.tiny import tiny_texts
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, r2_score
from sklearn.preprocessing import FunctionTransformer

from skfusion import LLMLayerEmbedder, rank_models
from skfusion.selection import rank
from skfusion.selection.names import name_models

TEXTS = tiny_texts(60)
LABELS = np.array(["neg", "pos"])[[len(text) % 2 for text in TEXTS]]


def ranked(models, texts=TEXTS, y=LABELS, **options) -> pd.DataFrame:
    if "costs" not in options:
        options["costs"] = costs_of(name_models(models))
    return rank_models(models, texts, y, **{"random_state": 0, **options})


def costs_of(names, seconds=0.0, stored=0.0) -> pd.DataFrame:
    """Return what `measure_costs` would."""
    columns = {"seconds_per_text": seconds, "bytes_per_text": stored}
    return pd.DataFrame(columns, index=list(names))


def columns(array: np.ndarray) -> FunctionTransformer:
    """Return a transformer of texts that are row numbers."""
    return FunctionTransformer(lambda texts: array[[int(text) for text in texts]])


def numbered(n: int) -> list[str]:
    return [str(i) for i in range(n)]


# --- scores ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f1_macro", "accuracy", "balanced_accuracy"])
def test_scores_of_classes_are_scikit_learns(name, rng):
    peers = {
        "f1_macro": lambda y, p, w: f1_score(y, p, average="macro", sample_weight=w),
        "accuracy": lambda y, p, w: accuracy_score(y, p, sample_weight=w),
        "balanced_accuracy": lambda y, p, w: balanced_accuracy_score(y, p, sample_weight=w),
    }
    y, p = rng.integers(3, size=(2, 50))
    counts = rng.integers(1, 4, size=(4, 50)).astype(float)
    found = rank.SCORES[name](np.eye(3)[y], np.eye(3)[p], counts)
    np.testing.assert_allclose(found, [peers[name](y, p, w) for w in counts])


def test_scores_of_labels_and_numbers_are_scikit_learns(rng):
    y, p = rng.integers(2, size=(2, 40, 3))
    counts = rng.integers(1, 4, size=(4, 40)).astype(float)
    expected = [f1_score(y, p, average="macro", sample_weight=w) for w in counts]
    np.testing.assert_allclose(rank.f1_macro(y, p, counts), expected)
    expected = [accuracy_score(y, p, sample_weight=w) for w in counts]
    np.testing.assert_allclose(rank.accuracy(y, p, counts), expected)
    y, p = rng.normal(size=(2, 40, 2))
    expected = [r2_score(y, p, sample_weight=w) for w in counts]
    np.testing.assert_allclose(rank.r2(y, p, counts), expected)


def test_the_estimate_is_that_of_rows_left_out(rng):
    y = np.repeat([0, 1, 2], [20, 8, 4])
    X = rng.normal(size=(32, 5)) + rng.normal(size=(3, 5))[y]
    found = ranked({"x": columns(X)}, numbered(32), y).iloc[0]
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    weights = np.sqrt(1 / np.bincount(y))[y]
    weights /= weights.mean()
    scores = []
    for penalty in np.logspace(-3, 3, 13) * (weights @ (scaled**2).sum(axis=1) / 32):
        predicted = np.empty((32, 3))
        for i in range(32):
            rest = np.arange(32) != i
            ridge = Ridge(alpha=penalty).fit(scaled[rest], np.eye(3)[y[rest]], weights[rest])
            predicted[i] = ridge.predict(scaled[[i]])[0]
        error = weights @ ((predicted - np.eye(3)[y]) ** 2).sum(axis=1)
        everyone = np.average(np.eye(3)[y], axis=0, weights=weights)
        for i in range(32):  # the intercept is that of all rows
            rest = np.arange(32) != i
            left = np.average(np.eye(3)[y[rest]], axis=0, weights=weights[rest])
            predicted[i] += everyone - left
        scores.append((error, f1_score(y, predicted.argmax(axis=1), average="macro")))
    assert found["score"] == pytest.approx(min(scores)[1])
    assert found["low"] <= found["score"] <= found["high"]


def test_intervals_hold_what_more_rows_show():
    """Of many small samples, the intervals of about 19 in 20 hold the score of all rows."""
    rng = np.random.default_rng(0)
    predicted = rng.integers(2, size=4000)
    y = np.where(rng.random(4000) < 0.8, predicted, 1 - predicted)
    truth = f1_score(y, predicted, average="macro")
    held = 0
    for rows in rng.permutation(4000).reshape(40, 100):
        targets = rank._read(y[rows], 100, "auto")
        counts = rank._resample(targets, np.random.RandomState(0))
        scores = rank.f1_macro(targets.matrix, np.eye(2)[predicted[rows]], counts)
        low, high = np.quantile(scores, [0.025, 0.975])
        held += low <= truth <= high
    assert 34 <= held <= 40


def test_noise_has_no_score(rng):
    noise = columns(rng.normal(size=(80, 40)))
    found = ranked([noise], numbered(80), rng.permutation(np.arange(80) % 2)).iloc[0]
    assert found["low"] < 0.5 and found["log_loss"] == pytest.approx(np.log(2), abs=0.05)
    numbers = ranked([noise], numbered(80), rng.normal(size=80))
    assert numbers["score"][0] < 0.2 and numbers.attrs["scoring"] == "r2"


# --- the table ------------------------------------------------------------------------------


def test_the_model_that_knows_comes_first():
    y = np.arange(60) % 2
    texts = [f"{'good' if i % 2 else 'bad'} {text}" for i, text in enumerate(TEXTS)]
    models = {"length": FunctionTransformer(lengths), "words": TfidfVectorizer()}
    table = ranked(models, texts, y, costs=costs_of(models, [0, 0.002], [0, 4]))
    assert table["model"].tolist() == ["words", "length"]
    assert table["score"].is_monotonic_decreasing
    assert table.loc[0, ["seconds_per_1000_texts", "bytes_per_text"]].tolist() == [2, 4]
    assert table.attrs == {"scoring": "f1_macro", "n_rows": 60}


def lengths(texts) -> np.ndarray:
    return np.array([[len(text)] for text in texts], dtype=float)


def test_a_language_model_has_a_row_for_its_blend_and_runs_once(tmp_path):
    folder = str(tiny.save_folder(tmp_path / "model"))
    embedder = CountingEmbedder(folder, layer=1, pooling=["mean", "last"])
    table = ranked([("tiny", embedder)])
    assert set(zip(table["model"], table["layer"], strict=True)) == {
        ("tiny", "1"),
        ("tiny", "blend"),
    }
    assert read_log(folder) == (1, len(TEXTS))
    assert not hasattr(embedder, "layers_")
    pd.testing.assert_frame_equal(table, ranked({"tiny": clone(embedder)}))
    again = ranked([folder, stub(planted)], memory=tmp_path / "store")
    assert set(again["model"]) == {"model", "backbone"} and len(again) == 4


def planted(k, state, mask):
    return state


def test_one_that_is_a_blend_already_has_one_row(folder):
    assert ranked([LLMLayerEmbedder(folder(), layer="blend")])["layer"].tolist() == ["blend"]


@pytest.mark.parametrize("kind", ["labels", "numbers", "task"])
def test_other_targets(folder, kind, rng):
    y = {"labels": rng.integers(2, size=(60, 3)), "numbers": rng.normal(size=60)}
    counts = np.arange(60) // 6
    table = ranked(
        [folder(), TfidfVectorizer()],
        y=y.get(kind, counts),
        task="regression" if kind == "task" else "auto",
    )
    assert (
        len(table) == 3
        and np.isfinite(table[["score", "low", "high", "log_loss"]].to_numpy()).all()
    )
    assert table.attrs["scoring"] == ("f1_macro" if kind == "labels" else "r2")


def test_many_texts_are_drawn_by_class(rng):
    y = np.array(["common"] * 1500 + ["rare"] * 2)
    table = ranked([FunctionTransformer(lengths)], numbered(1502), y)
    assert table.attrs["n_rows"] == 500


def test_costs_are_measured_once_a_model(folder, monkeypatch):
    asked = []

    def measure(union, texts, y):
        asked.append((union, texts, y))
        names = [name for name, _ in union.embedders]
        return costs_of(names, np.arange(1.0, len(names) + 1), 5.0)

    monkeypatch.setattr(rank, "measure_costs", measure)
    models = {"tiny": LLMLayerEmbedder(folder(), layer="auto"), "words": TfidfVectorizer()}
    table = ranked(models, costs=None).set_index("model")
    ((union, texts, y),) = asked
    assert [type(model) for _, model in union.embedders] == [LLMLayerEmbedder, TfidfVectorizer]
    assert len(texts) == len(y) == 32
    assert (table.loc["tiny", "seconds_per_1000_texts"] == 1000).all()
    assert table.loc["words", "seconds_per_1000_texts"] == 2000


def test_the_same_seed_gives_the_same_table_and_no_other_number_is_drawn(rng):
    models = [columns(rng.normal(size=(40, 3)))]
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - the global one
    first = ranked(models, numbered(40), np.arange(40) % 2)
    pd.testing.assert_frame_equal(first, ranked(models, numbered(40), np.arange(40) % 2))
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


WRONG = [
    ({"models": []}, ValueError, "no models"),
    ({"models": "org/model"}, TypeError, "Put it in a list"),
    ({"models": [3]}, TypeError, "transformer of texts, got int: 3"),
    ({"models": [("a", TfidfVectorizer()), ("a", TfidfVectorizer())]}, ValueError, "name 'a'"),
    ({"y": None}, ValueError, "requires y"),
    ({"y": ["a"] * 60}, ValueError, "1 class"),
    ({"y": ["a", "b"]}, ValueError, "inconsistent"),
    ({"scoring": "r2"}, ValueError, "one of f1_macro, accuracy, .*'binary'"),
    ({"scoring": "roc_auc"}, ValueError, "scoring='roc_auc'"),
    ({"costs": pd.DataFrame()}, ValueError, "nothing of 'tfidfvectorizer'"),
    ({"costs": {}}, TypeError, "must be a data frame .* got dict"),
    ({"texts": "a text"}, TypeError, "str"),
]


@pytest.mark.parametrize(("change", "error", "words"), WRONG)
def test_errors(change, error, words):
    given = {"models": [TfidfVectorizer()], **change}
    with pytest.raises(error, match=words):
        ranked(given.pop("models"), **given)
