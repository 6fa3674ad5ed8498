from __future__ import annotations

import array
import enum
from collections import UserDict, UserList, UserString, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skfusion import EmbedderUnion, LLMLayerEmbedder, ModelSubsetSearchCV, OptunaSearchCV
from skfusion.embed.texts import check_texts, text_keys

FOUR = ["plain", "näïve café", "\N{GRINNING FACE} 漢字", ""]


class Colour(enum.StrEnum):
    RED = "red"


class LazyColumn(Sequence):
    """What a column of the datasets library is: entries are read when they are asked for."""

    def __init__(self, rows: list[str]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        return list(self.rows[at]) if isinstance(at, slice) else self.rows[at]


class OldSequence:
    """The three methods of a sequence, and no base class."""

    def __init__(self, rows: list[str]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> str:
        return self.rows[at]

    def __iter__(self) -> Any:
        return iter(self.rows)


CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "numpy str": np.array,
    "numpy object": lambda x: np.array(x, dtype=object),
    "numpy StringDType": lambda x: np.array(x, dtype=np.dtypes.StringDType()),
    "numpy column": lambda x: np.array(x, dtype=object)[:, None],
    "pandas Series": pd.Series,
    "pandas object Series": lambda x: pd.Series(x, dtype=object, index=[9, 8, 7, 6]),
    "pandas pyarrow Series": lambda x: pd.Series(x, dtype="string[pyarrow]"),
    "pandas category": lambda x: pd.Series(x, dtype="category"),
    "pandas frame": lambda x: pd.DataFrame({"text": x}),
    "polars Series": pl.Series,
    "polars frame": lambda x: pl.DataFrame({"text": x}),
    "pyarrow Array": pa.array,
    "pyarrow large Array": lambda x: pa.array(x, type=pa.large_string()),
    "pyarrow dictionary Array": lambda x: pa.array(x).dictionary_encode(),
    "pyarrow ChunkedArray": lambda x: pa.chunked_array([x[:2], x[2:]]),
    "pyarrow Table": lambda x: pa.table({"text": x}),
    "pandas values": lambda x: pd.DataFrame({"text": x})["text"].values,
    "pandas unique": lambda x: pd.DataFrame({"text": x})["text"].unique(),
    "pandas array": lambda x: pd.Series(x, dtype="string").array,
    "pandas arrow array": lambda x: pd.array(x, dtype=pd.ArrowDtype(pa.string())),
    "pandas Categorical": lambda x: pd.Series(x, dtype="category").values,
    "pandas Index": pd.Index,
    "pandas CategoricalIndex": pd.CategoricalIndex,
    "polars Categorical": lambda x: pl.Series(x, dtype=pl.Categorical),
    "polars Enum": lambda x: pl.Series(x, dtype=pl.Enum(x)),
    "pyarrow view": lambda x: pa.array(x, type=pa.string_view()),
    "pyarrow scalars": lambda x: list(pa.array(x)),
    "deque": deque,
    "UserList": UserList,
    "lazy column": LazyColumn,
    "three methods": OldSequence,
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_accepted_containers(name):
    assert check_texts(CONTAINERS[name](FOUR)) == FOUR


@pytest.mark.parametrize(
    ("X", "error", "words"),
    [
        ("one text", TypeError, ["str", "Wrap it"]),
        (b"bytes", TypeError, ["bytes"]),
        ({"a": "b"}, TypeError, ["dict"]),
        ({"a", "b"}, TypeError, ["set"]),
        (3, TypeError, ["int"]),
        (None, TypeError, ["NoneType"]),
        (["ok", b"no"], TypeError, ["bytes", "position 1"]),
        (["ok", 3], TypeError, ["int", "position 1"]),
        (["ok", ["nested"]], TypeError, ["list", "position 1"]),
        ((x for x in FOUR), TypeError, ["generator", "list(X)"]),
        (iter(FOUR), TypeError, ["list_iterator", "list(X)"]),
        (dict.fromkeys(FOUR).values(), TypeError, ["dict_values", "list(X)"]),
        (UserString("one text"), TypeError, ["UserString", "Wrap it"]),
        (UserDict(a="b"), TypeError, ["UserDict", "row order"]),
        (memoryview(b"abc"), TypeError, ["memoryview"]),
        (array.array("i", [1]), TypeError, ["array"]),
        (range(3), TypeError, ["int", "position 0"]),
        (deque([b"no"]), TypeError, ["bytes", "position 0"]),
        (pd.array([1, 2]), TypeError, ["int", "position 0"]),
        (pd.MultiIndex.from_tuples([("a", "b")]), TypeError, ["tuple", "position 0"]),
        (pa.record_batch({"text": FOUR, "y": [0] * 4}), TypeError, ["RecordBatch", "X['text']"]),
        (
            pd.DataFrame([["a", "b", "c"]], columns=["text", "y", "text"]),
            ValueError,
            ["3 columns", "2 of which are named 'text'", "iloc[:, 0]"],
        ),
        (
            pd.DataFrame([["a", "b"]], columns=["text", "text"])["text"],
            ValueError,
            ["2 columns", "2 of which are named 'text'"],
        ),
        (np.array([1.0, 2.0]), TypeError, ["float64"]),
        (np.array([b"a"]), TypeError, ["S1"]),
        (np.array("scalar"), ValueError, ["()"]),
        (np.array([["a", "b"]]), ValueError, ["(1, 2)"]),
        (np.array([[["a"]]]), ValueError, ["(1, 1, 1)"]),
        (pd.DataFrame({"a": ["x"], "b": ["y"]}), ValueError, ["2 columns", "'a', 'b'"]),
        (pl.DataFrame({"a": ["x"], "b": ["y"]}), ValueError, ["2 columns"]),
        (pl.DataFrame({"a": ["x"]}).lazy(), TypeError, ["LazyFrame"]),
        (pd.Series([1, 2]), TypeError, ["int", "position 0"]),
        (pa.array([1, 2]), TypeError, ["int", "position 0"]),
    ],
)
def test_refused_with_type_and_position(X, error, words):
    with pytest.raises(error) as caught:
        check_texts(X)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "X",
    [
        ["a", None, "b", float("nan")],
        np.array(["a", None, "b", np.nan], dtype=object),
        pd.Series(["a", pd.NA, "b", None], dtype="string"),
        pd.Series(["a", pd.NaT, "b", np.float32("nan")], dtype=object),
        pl.Series(["a", None, "b", None]),
        pa.array(["a", None, "b", None]),
        np.array(["a", np.nan, "b", np.nan], dtype=np.dtypes.StringDType(na_object=np.nan)),
        pd.Series(["a", None, "b", None]).values,
        pd.Series(["a", None, "b", None], dtype="string").array,
        pd.Series(["a", None, "b", None], dtype="category").values,
        pd.Index(["a", None, "b", None]),
        deque(["a", pd.NA, "b", np.datetime64("NaT")]),
        LazyColumn(["a", None, "b", float("nan")]),
        list(pa.array(["a", None, "b", None])),
    ],
)
def test_missing_values(X):
    with pytest.raises(ValueError, match=r"2 of 4 texts are missing .* position 1, 3"):
        check_texts(X)
    assert check_texts(X, missing="empty") == ["a", "", "b", ""]


def test_many_missing_values_name_the_first_ones():
    with pytest.raises(ValueError, match=r"position 0, 1, .*9, \.\.\."):
        check_texts([None] * 20)


def test_str_subclasses_become_plain_str():
    texts = check_texts([np.str_("a"), Colour.RED])
    assert texts == ["a", "red"]
    assert {type(text) for text in texts} == {str}


def test_lone_surrogates_are_replaced():
    texts = check_texts(["a\ud800b", "\udfff"])
    assert texts == ["a\ufffdb", "\ufffd"]
    assert len(text_keys(texts)) == 2


def test_surrogate_pairs_are_the_characters_that_they_stand_for(folder):
    pair, whole = "fast \ud83d\udc4d\ud83d\ude00!", "fast \N{THUMBS UP SIGN}\N{GRINNING FACE}!"
    assert check_texts([pair]) == [whole]
    assert check_texts(["\ude00\ud83d\ud83d\udc4d"]) == ["\ufffd\ufffd\N{THUMBS UP SIGN}"]
    embedder = LLMLayerEmbedder(folder())
    one, other = embedder.fit_transform([pair, whole])
    np.testing.assert_array_equal(one, other)
    prompted = [
        LLMLayerEmbedder(folder(), prompt=p).fit_transform(["film"]) for p in (pair, whole)
    ]
    np.testing.assert_array_equal(*prompted)


@pytest.mark.parametrize("name", ["pandas values", "pandas Index", "lazy column", "deque"])
def test_a_union_takes_the_same(folder, name):
    parts = [("tiny", LLMLayerEmbedder(folder())), ("words", TfidfVectorizer())]
    union = EmbedderUnion(parts).fit(FOUR)
    expected = np.asarray(union.transform(FOUR))
    X = CONTAINERS[name](FOUR)
    np.testing.assert_array_equal(np.asarray(clone(union).fit(X).transform(X)), expected)


GRID = {"llmlayerembedder__layer": [1]}
SEARCHES = {
    "grid": lambda pipe: GridSearchCV(pipe, GRID, cv=2),
    "optuna": lambda pipe: OptunaSearchCV(pipe, GRID, n_trials=1, cv=2),
    "subset": lambda pipe: ModelSubsetSearchCV(
        make_pipeline(EmbedderUnion([("tiny", pipe[0])]), pipe[1]), cv=2
    ),
}
# scikit-learn itself cannot take rows of a pandas array that is kept in Arrow.
SPLIT = [(s, c) for s in SEARCHES for c in ("lazy column", "pyarrow Array")]
SPLIT += [(s, c) for s in ("optuna", "subset") for c in ("pandas values", "pandas Index")]


@pytest.mark.parametrize(("search", "container"), SPLIT)
def test_searches_split_them(folder, search, container):
    texts, y = ["good film", "bad plot"] * 6, np.array(["pos", "neg"] * 6)
    pipe = make_pipeline(LLMLayerEmbedder(folder()), LogisticRegression())
    found = SEARCHES[search](pipe).set_params(error_score="raise")
    labels = pd.Series(y).values if container.startswith("pandas") else y
    found.fit(CONTAINERS[container](texts), labels)
    assert found.predict(texts).tolist() == y.tolist()


def test_input_is_not_changed():
    X = np.array(["a", None, "\ud800"], dtype=object)
    before = X.copy()
    check_texts(X, missing="empty")
    assert np.array_equal(X, before)


#: With surrogates, in pairs and alone.
ANY_CHARACTER = st.one_of(st.characters(exclude_categories=()), st.sampled_from("\ud83d\ude00"))


@given(st.lists(st.text(ANY_CHARACTER)))
def test_texts_are_what_another_decoder_makes_of_their_utf16(texts):
    expected = [
        "".join(
            c if not "\ud800" <= c <= "\udfff" else "\ufffd"
            for c in text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        )
        for text in texts
    ]
    assert check_texts(texts) == expected
    assert check_texts(expected) == expected


@given(st.lists(st.text()))
def test_equal_texts_and_only_they_have_equal_keys(texts):
    texts = check_texts(texts)
    keys = text_keys(texts)
    assert keys.shape == (len(texts),)
    assert len(set(texts)) == len(set(keys.tolist()))
