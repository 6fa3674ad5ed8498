from __future__ import annotations

import enum

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skfusion.embed.texts import check_texts, text_keys

FOUR = ["plain", "näïve café", "\N{GRINNING FACE} 漢字", ""]


class Colour(enum.StrEnum):
    RED = "red"


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
        ((x for x in FOUR), TypeError, ["generator"]),
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


def test_input_is_not_changed():
    X = np.array(["a", None, "\ud800"], dtype=object)
    before = X.copy()
    check_texts(X, missing="empty")
    assert np.array_equal(X, before)


@given(st.lists(st.text()))
def test_equal_texts_and_only_they_have_equal_keys(texts):
    texts = check_texts(texts)
    keys = text_keys(texts)
    assert keys.shape == (len(texts),)
    assert len(set(texts)) == len(set(keys.tolist()))
