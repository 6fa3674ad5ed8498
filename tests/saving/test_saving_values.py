"""Every plain value and array comes back with its type, bits and memory order."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import Bunch

from skfusion.saving import load, save

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(), max_size=5)
    | st.binary(max_size=5)
    | st.builds(slice, st.integers() | st.none(), st.integers() | st.none())
)
KEYS = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.tuples(st.integers())
DTYPES = hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.byte_string_dtypes()
ARRAYS = hnp.arrays(DTYPES | hnp.nested_dtypes(), hnp.array_shapes(min_dims=0, min_side=0))


def containers(part):
    return (
        st.lists(part, max_size=3)
        | st.tuples(part, part)
        | st.dictionaries(KEYS, part, max_size=3)
        | st.sets(KEYS, max_size=3)
        | st.frozensets(KEYS, max_size=3)
        | st.dictionaries(st.text(max_size=3), part, max_size=2).map(lambda d: Bunch(**d))
    )


def saved_and_loaded(value, **options):
    with tempfile.TemporaryDirectory() as folder:
        save(FunctionTransformer(kw_args={"value": value}), Path(folder) / "model")
        return load(Path(folder) / "model", **options).kw_args["value"]


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(theirs, dict):
        assert_same(list(ours.items()), list(theirs.items()))
    elif isinstance(theirs, float):
        assert ours == theirs or (math.isnan(ours) and math.isnan(theirs))
        assert math.copysign(1, ours) == math.copysign(1, theirs) or math.isnan(ours)
    elif isinstance(theirs, complex):
        assert_same([ours.real, ours.imag], [theirs.real, theirs.imag])
    elif isinstance(theirs, np.ndarray) and theirs.dtype.kind == "O":
        assert ours.shape == theirs.shape
        assert_same(ours.ravel().tolist(), theirs.ravel().tolist())
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
        assert ours.flags.f_contiguous == theirs.flags.f_contiguous or not theirs.size
        assert ours.flags.writeable
    else:
        assert ours == theirs


@settings(max_examples=100, deadline=None)
@given(st.recursive(SCALARS, containers, max_leaves=8))
def test_plain_values(value):
    assert_same(saved_and_loaded(value), value)


@settings(max_examples=100, deadline=None)
@given(ARRAYS, st.booleans())
def test_arrays(array, fortran):
    array = np.asfortranarray(array) if fortran and array.ndim else array
    assert_same(saved_and_loaded(array), array)


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(DTYPES, ()))
def test_numpy_scalars(array):
    ours, theirs = saved_and_loaded(array[()]), array[()]
    assert type(ours) is type(theirs)
    assert np.asarray(ours).dtype == np.asarray(theirs).dtype
    assert np.array_equal(ours, theirs) or theirs != theirs


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", None, 1.5, (2, "b")], dtype=object),
        np.array([["a", "b"], ["c", "d"]], dtype=object),
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.array([1, 2], dtype=">i4"),
        np.zeros(2, dtype="U0"),
    ],
    ids=["objects", "2-D objects", "strided", "big-endian", "empty text"],
)
def test_unusual_arrays(array):
    ours = saved_and_loaded(array)
    assert (ours.dtype, ours.tolist()) == (array.dtype, array.tolist())


def test_masked_arrays():
    array = np.ma.MaskedArray([1.0, 2.0], [True, False], fill_value=7.0)
    ours = saved_and_loaded(array)
    assert (ours.tolist(), ours.fill_value) == ([None, 2.0], 7.0)


@pytest.mark.parametrize(
    "value",
    [
        np.dtype("float32"),
        np.dtype([("a", "<i4"), ("b", "<U3", (2,))]),
        np.float64,
        str,
        np.log1p,
        FunctionTransformer,
        Path("models") / "tiny",
        torch.float16,
        torch.device("cpu"),
    ],
    ids=repr,
)
def test_values_that_parameters_take(value):
    ours = saved_and_loaded(value)
    assert type(ours) is type(value) and ours == value


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"seconds": [0.5, 0.25], "n": [1, 2]}, index=pd.Index(["a", "b"], name="m")),
        pd.DataFrame({"word": ["x", None], 3: [True, False]}),
        pd.DataFrame(),
    ],
)
def test_data_frames(frame):
    loaded, twice = saved_and_loaded([frame, np.ones(2), frame.copy()])[::2]
    pd.testing.assert_frame_equal(loaded, frame, check_index_type=False, check_column_type=False)
    pd.testing.assert_frame_equal(loaded, twice)


def test_joblib_memory_needs_trust(tmp_path):
    memory = joblib.Memory(tmp_path, verbose=0)
    with pytest.raises(ValueError, match=r"trusted=\[joblib.Memory\]"):
        saved_and_loaded(memory)
    assert saved_and_loaded(memory, trusted=[joblib.Memory]).location == tmp_path


def test_the_file_is_the_same_each_time(tmp_path):
    for name in "ab":
        save(FunctionTransformer(kw_args={"s": {"x", "y", "z", 1, 2.5}}), tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
