"""Arrays as tensors of a safetensors file, and numpy's other values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from .names import LoadError
from .plain import Decode, Encode, encode_items

if TYPE_CHECKING:
    from .tree import Reader, Writer

#: What safetensors has a dtype for; other arrays are written as their bytes.
_NATIVE = frozenset("?bBhHiIlLqQefd")
_INLINE = frozenset("biufU")


def _array(writer: Writer, array: NDArray[Any], where: str) -> Any:
    """Encode an array, in the memory order that it has: products round differently in another."""
    if array.dtype.kind == "O":
        values = encode_items(writer, array.ravel().tolist(), where)
        return {"objects": {"shape": list(array.shape), "values": values}}
    if array.dtype.hasobject or array.dtype.kind not in "biufcSUmMV":
        raise TypeError(f"{where} is an array of dtype {array.dtype}, which cannot be saved.")
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    node: dict[str, Any] = {"order": "F"} if fortran else {}
    plain = np.asarray(array.T if fortran else array, order="C")
    if array.dtype.char not in _NATIVE or not array.dtype.isnative:
        node |= {"dtype": writer.encode(array.dtype, where), "shape": list(plain.shape)}
        plain = np.frombuffer(plain.tobytes(), np.uint8)
    return {"array": {"tensor": writer.add_tensor(array, plain), **node}}


def _decode_array(reader: Reader, node: dict[str, Any]) -> NDArray[Any]:
    name = node["tensor"]
    if name not in reader.arrays:
        array = reader.tensors[name]
        if "dtype" in node:
            # Bytes that were taken for references to objects would be addresses of any memory.
            dtype = _without_objects(reader.decode(node["dtype"]))
            array = np.ndarray(node["shape"], dtype, buffer=bytearray(array.tobytes()))
        reader.arrays[name] = array.T if node.get("order") == "F" else array
    return reader.arrays[name]


def _decode_objects(reader: Reader, node: dict[str, Any]) -> NDArray[np.object_]:
    array = np.empty(len(node["values"]), dtype=object)
    for i, value in enumerate(node["values"]):
        array[i] = reader.decode(value)
    return array.reshape(node["shape"])


def _masked(writer: Writer, array: np.ma.MaskedArray[Any, Any], where: str) -> Any:
    return {"masked": encode_items(writer, [array.data, array.mask, array.fill_value], where)}


def _decode_masked(reader: Reader, node: list[Any]) -> np.ma.MaskedArray[Any, Any]:
    data, mask, fill_value = map(reader.decode, node)
    return np.ma.MaskedArray(data, mask, fill_value=fill_value)


def _scalar(writer: Writer, scalar: np.generic, where: str) -> Any:
    if scalar.dtype.kind in _INLINE and scalar.dtype.char != "g":
        return {"scalar": [scalar.dtype.str, writer.encode(scalar.item(), where)]}
    return {"scalar": [None, _array(writer, np.asarray(scalar), where)]}


def _decode_scalar(reader: Reader, node: list[Any]) -> Any:
    dtype, value = node[0], reader.decode(node[1])
    return value[()] if dtype is None else _without_objects(np.dtype(dtype)).type(value)


def _dtype(writer: Writer, dtype: np.dtype[Any], where: str) -> Any:
    return {"dtype": writer.encode(np.lib.format.dtype_to_descr(dtype), where)}


def _without_objects(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject:
        raise LoadError(f"The model has an array of bytes with dtype {dtype}, which is refused.")
    return dtype


def _sparse(writer: Writer, matrix: Any, where: str) -> Any:
    parts = [matrix.data, matrix.indices, matrix.indptr, list(matrix.shape)]
    return {type(matrix).__name__: encode_items(writer, parts, where)}


def _decode_sparse(kind: type) -> Decode:
    def decode(reader: Reader, node: list[Any]) -> Any:
        *parts, shape = map(reader.decode, node)
        matrix = kind(tuple(parts), shape=shape)
        matrix.check_format(full_check=True)  # an index out of range reads any memory
        return matrix

    return decode


_SPARSE = (sparse.csr_array, sparse.csc_array, sparse.csr_matrix, sparse.csc_matrix)

ENCODERS: dict[type, Encode] = {
    np.ndarray: _array,
    np.memmap: _array,
    np.ma.MaskedArray: _masked,
    **dict.fromkeys(_SPARSE, _sparse),
}
#: For any class derived from these.
KIND_ENCODERS: dict[type, Encode] = {np.generic: _scalar, np.dtype: _dtype}

DECODERS: dict[str, Decode] = {
    "array": _decode_array,
    "objects": _decode_objects,
    "masked": _decode_masked,
    "scalar": _decode_scalar,
    "dtype": lambda reader, node: np.lib.format.descr_to_dtype(reader.decode(node)),
    **{kind.__name__: _decode_sparse(kind) for kind in _SPARSE},
}
