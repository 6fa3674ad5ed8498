"""Python's own values as JSON. What JSON has no form for is an object with its kind for key."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sklearn.utils import Bunch

if TYPE_CHECKING:
    from .tree import Reader, Writer

Encode = Callable[["Writer", Any, str], Any]
Decode = Callable[["Reader", Any], Any]


def _as_it_is(writer: Writer, value: Any, where: str) -> Any:
    return value


def _float(writer: Writer, value: float, where: str) -> Any:
    return value if math.isfinite(value) else {"float": repr(value)}


def _complex(writer: Writer, value: complex, where: str) -> Any:
    return {"complex": writer.encode([value.real, value.imag], where)}


def _bytes(writer: Writer, value: bytes, where: str) -> Any:
    return {"bytes": base64.b64encode(value).decode("ascii")}


def _path(writer: Writer, value: Path, where: str) -> Any:
    return {"path": str(value)}


def _slice(writer: Writer, value: slice, where: str) -> Any:
    return {"slice": writer.encode([value.start, value.stop, value.step], where)}


def encode_items(writer: Writer, values: Any, where: str) -> list[Any]:
    """Encode the items of a sequence.

    Parameters
    ----------
    writer : Writer
        Encodes each.
    values : sequence
        The items.
    where : str
        What they are part of, for messages.

    Returns
    -------
    list
        In JSON's form.
    """
    return [writer.encode(value, f"{where}[{i}]") for i, value in enumerate(values)]


def _tuple(writer: Writer, value: tuple[Any, ...], where: str) -> Any:
    return {"tuple": encode_items(writer, value, where)}


def _set(writer: Writer, value: Any, where: str) -> Any:
    # The order of a set of str changes from one process to the next; a file should not.
    return {type(value).__name__: encode_items(writer, sorted(value, key=repr), where)}


def _mapping(writer: Writer, value: dict[Any, Any], where: str) -> Any:
    if all(type(key) is str for key in value):
        content = {k: writer.encode(v, f"{where}[{k!r}]") for k, v in value.items()}
        return {type(value).__name__: content}
    return {"items": encode_items(writer, map(list, value.items()), where)}


ENCODERS: dict[type, Encode] = {
    type(None): _as_it_is,
    bool: _as_it_is,
    int: _as_it_is,
    str: _as_it_is,
    float: _float,
    complex: _complex,
    bytes: _bytes,
    type(Path()): _path,
    slice: _slice,
    list: encode_items,
    tuple: _tuple,
    set: _set,
    frozenset: _set,
    dict: _mapping,
    Bunch: _mapping,
}


def _decode_dict(reader: Reader, content: dict[str, Any]) -> dict[str, Any]:
    return {key: reader.decode(value) for key, value in content.items()}


DECODERS: dict[str, Decode] = {
    "float": lambda reader, content: float(content),
    "complex": lambda reader, content: complex(*reader.decode(content)),
    "bytes": lambda reader, content: base64.b64decode(content, validate=True),
    "path": lambda reader, content: Path(content),
    "slice": lambda reader, content: slice(*reader.decode(content)),
    "tuple": lambda reader, content: tuple(reader.decode(content)),
    "set": lambda reader, content: set(reader.decode(content)),
    "frozenset": lambda reader, content: frozenset(reader.decode(content)),
    "dict": _decode_dict,
    "Bunch": lambda reader, content: Bunch(**_decode_dict(reader, content)),
    "items": lambda reader, content: dict(reader.decode(content)),
}
