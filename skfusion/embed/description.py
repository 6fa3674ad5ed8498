"""Any value as nested tuples of plain values, the same in every process where the value is.

What cannot be read, and what a user hangs on a model, is told apart within this process alone.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import itertools
import os
import sysconfig
import types
import uuid
import weakref
from collections.abc import Iterator, Mapping, MutableMapping, Set
from operator import itemgetter
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
#: What is kept on modules and decides no result: by torch (among it the flag of train mode), by
#: accelerate, by peft (each layer says itself which adapter is active), and by transformers.
_NOTED = frozenset(
    {
        *vars(torch.nn.Module()),
        *("_hf_hook", "active_adapter", "peft_config", "_hf_peft_config_loaded"),
        *("config_class", "dtype_plan", "generation_config", "gradient_checkpointing"),
        *("all_tied_weights_keys", "hf_device_map", "hf_quantizer", "is_parallelizable"),
        *("is_quantized", "model_parallel", "name_or_path", "quantization_method"),
        *("supports_gradient_checkpointing", "warnings_issued", "_compiled_call"),
        *("_gradient_checkpointing_func", "_is_hf_initialized", "_last_compile_config"),
        *("_loss_function", "_output_capturing_hooks_installed", "_require_grads_hook"),
        *("_require_grads_hooks", "_use_kernels", "_weight_conversions"),
    }
)
_HOLDERS = (Tensor, np.ndarray, list, dict, set)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
#: Values, and levels of nesting, that are read before the rest is left out: a hook may hold on to
#: anything.
_MOST_VALUES = 100_000
_DEEPEST = 40

_PROCESS = uuid.uuid4().hex
_NUMBERS = itertools.count()
_NUMBERED: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
_KEPT_ALIVE: dict[int, tuple[Any, tuple[int, int]]] = {}


def root(module: str | None) -> str:
    """Return the package of a dotted name."""
    return (module or "").partition(".")[0]


def home(function: Any) -> str:
    """Return the package where a function, or the class of another callable, is written."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    # A decorator copies the name of the module, not the globals.
    name = getattr(function, "__globals__", {}).get("__name__")
    if name is None:
        named = isinstance(function, types.BuiltinFunctionType | type)
        name = (function if named else type(function)).__module__
    return root(name)


def is_known(function: Any) -> bool:
    """Whether a function, or the class of another callable, belongs to a known package."""
    return home(function) in KNOWN


def here_alone(thing: Any) -> tuple[Any, ...]:
    """Return what tells one object from all others, in this process and in any other."""
    try:
        number = _NUMBERED.get(thing)
        if number is None:  # the process counts, as one that is forked off goes on counting
            number = _NUMBERED[thing] = os.getpid(), next(_NUMBERS)
    except Exception:  # it cannot be hashed or held weakly: it is kept alive, as ids come again
        new = thing, (os.getpid(), next(_NUMBERS))
        number = _KEPT_ALIVE.setdefault(id(thing), new)[1]
    return "here alone", _PROCESS, number


def module_tensors(module: Any) -> dict[str, Tensor]:
    """Return the parameters, the buffers and the tensors among the attributes of one module."""
    state = getattr(module, "__dict__", {})
    if isinstance(module, torch.jit.ScriptModule):
        both = module.named_parameters(recurse=False), module.named_buffers(recurse=False)
        return {key: tensor for named in both for key, tensor in named}
    found = {
        key: value
        for there in (state, state.get("_parameters"), state.get("_buffers"))
        if there
        for key, value in there.items()
        if type(value) not in PLAIN and isinstance(value, Tensor) and not is_lazy(value)
    }
    if "long" in str(state.get("rope_type", "")):
        # Computed in each forward, out of the config and the original frequencies.
        return {k: t for k, t in found.items() if not k.endswith("inv_freq") or "original" in k}
    return found


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
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


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

    def __init__(self, names: Mapping[int, str], chosen: Set[str] = frozenset()) -> None:
        self._names, self._chosen = names, chosen  # the latter of registries, by configs
        self._left, self._depth = _MOST_VALUES, 0
        self._noted: dict[type, Set[str]] = {}  # attributes of each class that are left out
        self._met: dict[int, tuple[Any, Any]] = {}  # with the object, so that ids stay its own

    def __call__(self, value: Any) -> Any:
        """Return a value as nested tuples."""
        kind = type(value)
        if kind in PLAIN:
            return kind.__name__, value
        if id(value) in self._met:
            return self._met[id(value)][1]
        self._left -= 1
        if self._left < 0 or self._depth > _DEEPEST:
            return "more", kind.__qualname__
        self._met[id(value)] = value, ("within", kind.__qualname__)
        self._depth += 1
        try:
            said = self._read(value)
        except Exception:  # whatever an unknown object does when it is looked at
            said = here_alone(value)
        finally:
            self._depth -= 1
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
        if isinstance(value, np.ndarray | np.generic | int | float | complex | str | bytes):
            return kind.__qualname__, joblib.hash(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, torch.device | torch.Generator | weakref.ref):
            return (kind.__qualname__,)  # where it computes is no part of what it is
        if isinstance(value, dict):
            items = ((self(key), self(entry)) for key, entry in value.items())
            return kind.__qualname__, *sorted(items, key=repr)
        if isinstance(value, set | frozenset):
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
        if isinstance(value, torch.ScriptFunction):
            return here_alone(value)
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
        return self(kind), joblib.hash(value) if state is None else self(state)

    def _class(self, kind: type) -> Any:
        """Return a known class by its name and what was put into it, any other by its code."""
        known = root(kind.__module__) in KNOWN
        said: list[Any] = [
            f"{kind.__module__}.{kind.__qualname__}" if known else kind.__qualname__
        ]
        for base in kind.__mro__:
            known = root(base.__module__) in KNOWN
            if base in (object, torch.nn.Module) or root(base.__module__) == "builtins":
                continue
            for key, entry in vars(base).items():
                function = getattr(entry, "__func__", getattr(entry, "fget", entry))
                if isinstance(function, types.FunctionType):
                    if not (is_known(function) if known else _is_installed(function)):
                        said.append((key, self._content(function)))
                    elif key == "forward":
                        said += [(n, self(own)) for n, own in _put_into(function, self._chosen)]
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
        held = {n: used[n] for n in names if isinstance(used.get(n), _HOLDERS)}
        owner = getattr(hook, "__self__", None)
        return here_alone(function), self(owner), self(hook), self(held)

    def module(self, module: Any) -> Any:
        """Return the class and the attributes of one module, without tensors and children."""
        kind = type(module)
        if kind not in self._noted:
            self._noted[kind] = _NOTED.union(
                key
                for base in kind.__mro__
                if root(base.__module__) == "transformers"
                for key in vars(base)
                if key[0] == "_"  # plans and lists of names
            )
        noted = self._noted[kind]
        said: list[tuple[Any, ...]] = []
        for key, value in getattr(module, "__dict__", {}).items():
            if value is None or (key in noted and not is_own_function(value)):
                continue
            if type(value) in PLAIN:
                said.append((key, type(value).__name__, value))
                continue
            if isinstance(value, Tensor):
                continue
            if key in ("forward", "_old_forward"):  # accelerate puts its own before the class's
                own = getattr(value, "__func__", None) is getattr(kind, "forward", None)
                if own or is_known(value):
                    continue
            said.append((key, self(value)))
        if isinstance(module, torch.jit.ScriptModule):
            said.append(("code", module.code))
        return self(kind), *sorted(said, key=itemgetter(0))


def is_own_function(value: Any) -> bool:
    """Whether a value is a user's function."""
    functions = (types.FunctionType, types.MethodType, functools.partial)
    return isinstance(value, functions) and not is_known(value)


def _put_into(function: Any, chosen: Set[str]) -> Iterator[tuple[str, Any]]:
    """Yield a user's functions among those that a forward finds by name or in a registry."""
    function = inspect.unwrap(function)
    for name in function.__code__.co_names:
        used = function.__globals__.get(name)
        if isinstance(used, MutableMapping) and root(type(used).__module__) in KNOWN:
            found = ((key, used[key]) for key in chosen if key in used)
            yield from ((key, entry) for key, entry in found if is_own_function(entry))
        elif isinstance(used, types.FunctionType) and not (is_known(used) or _is_installed(used)):
            yield name, used


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
