"""From an object to a tree of JSON values with arrays beside it, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arrays, objects, plain
from .names import Trusted

_ENCODERS = plain.ENCODERS | arrays.ENCODERS | objects.ENCODERS
_KIND_ENCODERS = arrays.KIND_ENCODERS | objects.KIND_ENCODERS
_DECODERS = plain.DECODERS | arrays.DECODERS | objects.DECODERS


class Writer:
    """Encodes values, and collects the arrays and compiled objects in them.

    Attributes
    ----------
    tensors : dict of str to ndarray
        C-contiguous arrays of dtypes that safetensors has.
    foreign : list of object
        What skops is to keep.
    numbers : dict of int to int
        Numbers of the objects met so far, by ``id``.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, NDArray[Any]] = {}
        self.foreign: list[Any] = []
        self.numbers: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # alive, so that no other object gets the same id

    def encode(self, value: Any, where: str) -> Any:
        """Encode a value.

        Parameters
        ----------
        value : object
            The value.
        where : str
            Where in the model it was found, for messages.

        Returns
        -------
        object
            What `json.dumps` takes.

        Raises
        ------
        TypeError
            If it cannot be saved.
        """
        if type(value) in _ENCODERS:
            return _ENCODERS[type(value)](self, value, where)
        for kind, encode in _KIND_ENCODERS.items():
            if isinstance(value, kind):
                return encode(self, value, where)
        return objects.encode_object(self, value, where)

    def add_object(self, value: Any) -> int:
        """Give an object a number.

        Parameters
        ----------
        value : object
            One that was not met before.

        Returns
        -------
        int
            Its number.
        """
        self._kept.append(value)
        return self.numbers.setdefault(id(value), len(self.numbers))

    def add_tensor(self, array: NDArray[Any], content: NDArray[Any]) -> str:
        """Keep an array, once where it is met several times.

        Parameters
        ----------
        array : ndarray
            The array.
        content : ndarray
            What is written of it.

        Returns
        -------
        str
            The tensor's name.
        """
        if id(array) not in self._names:
            self._kept.append(array)
            self._names[id(array)] = name = str(len(self.tensors))
            self.tensors[name] = content
        return self._names[id(array)]


class Reader:
    """Decodes what a `Writer` has encoded.

    Parameters
    ----------
    tensors : dict of str to ndarray
        The arrays.
    foreign : list of object
        What skops kept.
    trusted : dict
        What the user trusts.
    """

    def __init__(
        self, tensors: dict[str, NDArray[np.generic]], foreign: list[Any], trusted: Trusted
    ) -> None:
        self.tensors: dict[str, NDArray[np.generic]] = tensors
        self.foreign: list[Any] = foreign
        self.trusted: Trusted = trusted
        self.arrays: dict[str, NDArray[Any]] = {}  # decoded, so that what was one is one again
        self.objects: dict[int, Any] = {}

    def decode(self, node: Any) -> Any:
        """Decode a value.

        Parameters
        ----------
        node : object
            As `json.loads` gives it.

        Returns
        -------
        object
            The value.

        Raises
        ------
        LoadError
            If it is refused.
        Exception
            Of any kind, if the node is no encoded value.
        """
        if isinstance(node, list):
            return [self.decode(part) for part in node]
        if isinstance(node, dict):
            [(kind, content)] = node.items()
            return _DECODERS[kind](self, content)
        return node
