"""Any value as nested tuples of plain values, the same in every process where the value is.

What cannot be read, and what a user hangs on a model, is told apart within this process alone.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import itertools
import os
import sysconfig
import types
import uuid
import weakref
from collections.abc import Iterator, Mapping, Set
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parameter import is_lazy

#: Packages whose functions and classes are known by their names, and whose hooks are no user's.
KNOWN = frozenset(
    {"accelerate", "peft", "sentence_transformers", "skfusion", "torch", "transformers"}
)
PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype})
#: Names, places and switches of a config on which no hidden state depends; saving or loading a
#: model sets some of them.
_IRRELEVANT = frozenset(
    {
        *("name_or_path", "_name_or_path", "base_model_name_or_path", "_commit_hash", "revision"),
        *("transformers_version", "peft_version", "architectures", "model_type", "auto_mapping"),
        *("dtype", "torch_dtype", "inference_mode", "problem_type", "id2label", "label2id"),
        *("return_dict", "output_hidden_states", "output_attentions", "_output_attentions"),
        *("use_cache", "_post_init_done"),
    }
)
#: What torch keeps on every module, among it the flag of train mode, and notes of accelerate and
#: peft: each layer with an adapter says itself which one is active.
_INTERNAL = frozenset({*vars(torch.nn.Module()), "_hf_hook", "active_adapter", "peft_config"})
#: What transformers notes down on a model beside private attributes.
_NOTED = frozenset(
    {
        *("all_tied_weights_keys", "config_class", "dtype_plan", "generation_config"),
        *("gradient_checkpointing", "hf_device_map", "hf_quantizer", "is_parallelizable"),
        *("is_quantized", "model_parallel", "name_or_path", "quantization_method"),
        *("supports_gradient_checkpointing", "warnings_issued"),
    }
)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
#: Values that are read before the rest is left out: a hook may hold on to anything.
_MOST_VALUES = 100_000

_PROCESS = uuid.uuid4().hex
_NUMBERS = itertools.count()
_NUMBERED: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_KEPT_ALIVE: dict[int, tuple[Any, int]] = {}


def root(module: str | None) -> str:
    """Return the package of a dotted name."""
    return (module or "").partition(".")[0]


def is_known(function: Any) -> bool:
    """Whether a function, or the class of a callable, belongs to a known package."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    # A decorator copies the name of the module, not the globals.
    home = getattr(function, "__globals__", {}).get("__name__")
    if home is None:
        named = isinstance(function, types.BuiltinFunctionType | type)
        home = (function if named else type(function)).__module__
    return root(home) in KNOWN


def here_alone(thing: Any) -> tuple[Any, ...]:
    """Return what tells one object from all others, in this process and in any other."""
    try:
        number = _NUMBERED.get(thing)
        if number is None:
            number = _NUMBERED[thing] = next(_NUMBERS)
    except TypeError:  # kept alive instead, as ids are used again
        number = _KEPT_ALIVE.setdefault(id(thing), (thing, next(_NUMBERS)))[1]
    return "here alone", _PROCESS, os.getpid(), number


def module_tensors(module: Any) -> dict[str, Tensor]:
    """Return the parameters, the buffers and the tensors among the attributes of one module."""
    places = (getattr(module, name, None) for name in ("_parameters", "_buffers", "__dict__"))
    # These frequencies are computed in each forward, out of the config and the original ones.
    passing = "long" in str(getattr(module, "rope_type", ""))
    return {
        key: value
        for there in places
        for key, value in (there or {}).items()
        if isinstance(value, Tensor)
        and not is_lazy(value)
        and not (passing and key.endswith("inv_freq") and "original" not in key)
    }


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the plain tensors that hold the data of one that may be quantised or sparse."""
    if tensor.is_quantized:
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            scale = torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64)
            return [tensor.int_repr(), scale]
        scales = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        return [tensor.int_repr(), *scales]
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in plain_tensors(getattr(tensor, name))]
    return [tensor if tensor.layout is torch.strided else tensor.to_dense()]


def raw_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a plain tensor, where it is."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


_LINE = 1024  # words of 8 bytes
_LINES = 128  # with the line, a megabyte: what is read twice lies in a cache


def checksum(tensor: Tensor, step: int = 1) -> bytes:
    """Return sums over lines and columns of the bits of a plain tensor, or of each step-th line.

    As fast as memory. A changed bit changes two sums, and so do rows or columns that swap places.
    """
    raw = raw_bytes(tensor)
    digest = hashlib.blake2b(digest_size=16)
    whole = raw.numel() // (8 * _LINE) * 8 * _LINE
    if raw.device.type != "cpu":
        if whole:
            words = raw[:whole].view(torch.int64).view(-1, _LINE)
            digest.update(torch.cat([words.sum(1), words.sum(0)]).cpu().numpy().data)
        raw = raw[whole:].cpu()
        whole = 0
    array: NDArray[np.uint8] = raw.numpy()
    lines = array[:whole].view(np.int64).reshape(-1, _LINE)[::step]
    for start in range(0, len(lines), _LINES):
        block = lines[start : start + _LINES]
        digest.update(np.add.reduce(block, axis=1).data)
        digest.update(np.add.reduce(block, axis=0).data)
    digest.update(array[whole:].data)
    return digest.digest()


class Description:
    """Describes values; modules that have a name by that name, and what is met again once."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names, self._left = names, _MOST_VALUES
        self._met: dict[int, tuple[Any, Any]] = {}  # with the object, so that ids stay its own

    def __call__(self, value: Any) -> Any:
        """Return a value as nested tuples."""
        kind = type(value)
        if kind in PLAIN:
            return kind.__name__, value
        if id(value) in self._met:
            return self._met[id(value)][1]
        self._left -= 1
        if self._left < 0:
            return "more"
        self._met[id(value)] = value, ("within", kind.__qualname__)
        said = self._read(value)
        self._met[id(value)] = value, said
        return said

    def _read(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, torch.nn.Module):
            name = self._names.get(id(value))
            return tuple(self._foreign(value)) if name is None else ("module", name)
        if isinstance(value, enum.Enum):
            return kind.__qualname__, value.name
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, torch.device | torch.Generator | weakref.ref):
            return (kind.__qualname__,)  # where it computes is no part of what it is
        if isinstance(value, Mapping):
            items = ((self(key), self(entry)) for key, entry in value.items())
            return kind.__qualname__, *sorted(items, key=repr)
        if isinstance(value, Set):
            return kind.__qualname__, *sorted(map(self, value), key=repr)
        if isinstance(value, list | tuple):
            return "list", *map(self, value)
        if isinstance(value, functools.partial):
            return "partial", self(value.func), self(value.args), self(value.keywords)
        if isinstance(value, types.MethodType):
            return "method", self(value.__func__), self(value.__self__)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CodeType):
            return value.co_code, value.co_names, self(value.co_consts)
        if isinstance(value, types.BuiltinFunctionType | types.ModuleType):
            return getattr(value, "__module__", None), value.__name__
        return self._object(value)

    def _tensor(self, tensor: Tensor) -> Any:
        said = "tensor", str(tensor.dtype), tuple(tensor.shape)
        if tensor.is_meta:
            return said
        return *said, *(checksum(part) for part in plain_tensors(tensor))

    def _foreign(self, module: torch.nn.Module) -> Iterator[Any]:
        """Yield all of a module that is no part of the model, as a hook may hold one."""
        for name, part in module.named_modules():
            yield name, self.module(part), self(module_tensors(part))

    def _object(self, value: Any) -> Any:
        kind = type(value)
        state = getattr(value, "__dict__", None)
        if state is not None and hasattr(value, "to_dict"):  # a config
            state = {key: entry for key, entry in state.items() if key not in _IRRELEVANT}
            return kind.__qualname__, self(state)
        if root(kind.__module__) in KNOWN:
            return kind.__module__, kind.__qualname__
        if state is not None:
            return self(kind), self(state)
        try:
            return kind.__qualname__, joblib.hash(value)
        except Exception:  # whatever its pickling raises
            return here_alone(value)

    def _class(self, kind: type) -> Any:
        """Return a known class by its name and what was put into it, any other by its code."""
        said: list[Any] = [kind.__qualname__]
        for base in kind.__mro__:
            known = root(base.__module__) in KNOWN
            if base in (object, torch.nn.Module) or root(base.__module__) == "builtins":
                continue
            for key, entry in vars(base).items():
                function = getattr(entry, "__func__", getattr(entry, "fget", entry))
                if isinstance(function, types.FunctionType):
                    if not (is_known(function) if known else _is_installed(function)):
                        said.append((key, self._content(function)))
                elif not known and type(entry) in PLAIN and not key.startswith("__"):
                    said.append((key, type(entry).__name__, entry))
        return tuple(said)

    def _function(self, function: types.FunctionType) -> Any:
        """Return a function by its name and what it holds; a nameless one is told apart here."""
        name = function.__globals__.get("__name__"), function.__qualname__
        if is_known(function) or _is_installed(function):
            wrapped = getattr(function, "__wrapped__", None)
            return *name, wrapped and self(wrapped)
        alone = here_alone(function) if "<" in name[1] else ()
        return name[1], alone, self._content(function)

    def _content(self, function: types.FunctionType) -> Any:
        """Return a function's code and the values it has: defaults, closure, plain globals."""
        cells = function.__closure__ or ()
        held = [_cell(cell) for cell in cells]
        kept = function.__code__, function.__defaults__, function.__kwdefaults__, held
        used = {name: function.__globals__.get(name) for name in _names(function.__code__)}
        outside = {
            name: value
            for name, value in used.items()
            if value is not None and type(value) in PLAIN | {types.FunctionType}
        }
        return *map(self, kept), self(outside)

    def hook(self, hook: Any) -> Any:
        """Return what tells a user's hook from all others, with what it can be seen to hold."""
        function = getattr(hook, "__func__", hook)
        used = getattr(function, "__globals__", {})
        names = _names(function.__code__) if hasattr(function, "__code__") else ()
        held = {n: used[n] for n in names if isinstance(used.get(n), Tensor | list | dict | set)}
        owner = getattr(hook, "__self__", None)
        return here_alone(function), self(owner), self(hook), self(held)

    def module(self, module: Any) -> Any:
        """Return the class and the attributes of one module, without tensors and children."""
        kind = type(module)
        noting = any(root(base.__module__) == "transformers" for base in kind.__mro__)
        said = []
        for key, value in getattr(module, "__dict__", {}).items():
            if key in _INTERNAL or value is None or isinstance(value, Tensor):
                continue
            if noting and (key[0] == "_" or key in _NOTED) and not _is_own(value):
                continue
            if key in ("forward", "_old_forward"):  # accelerate puts its own before the class's
                own = getattr(value, "__func__", None) is getattr(kind, "forward", None)
                if own or is_known(value):
                    continue
            plain = type(value) in PLAIN
            said.append((key, type(value).__name__, value) if plain else (key, self(value)))
        return self(kind), *sorted(said, key=_first)


def _first(entry: tuple[Any, ...]) -> Any:
    return entry[0]


def _is_own(value: Any) -> bool:
    """Whether a value is a user's function."""
    functions = (types.FunctionType, types.MethodType, functools.partial)
    return isinstance(value, functions) and not is_known(value)


def _is_installed(function: types.FunctionType) -> bool:
    return function.__code__.co_filename.startswith(_INSTALLED)


def _names(code: types.CodeType) -> set[str]:
    nested = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, nested))


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
