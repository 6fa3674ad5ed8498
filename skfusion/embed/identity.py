"""What a model computes now: its state kept the same over its passes, and a digest of it.

A vector is stored under the digest, so all that decides a result is part of it, and what a pass
itself changes on the model is put back after it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import joblib
import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

from .description import (
    KNOWN,
    PLAIN,
    Description,
    checksum,
    here_alone,
    home,
    is_known,
    is_own_function,
    module_tensors,
    plain_tensors,
    raw_bytes,
    root,
)

#: Buffers of at most so many bytes are copied before a pass, so that they can be written back.
_SMALL = 2**16
#: Modules of other packages are a user's own, whose counters are left as they are.
_LIBRARIES = KNOWN | {"transformers_modules"}
#: Says that transformers' own hooks hang: without it they would be hung again at each call. They
#: stay for a pass, not longer, for a model with them cannot be pickled.
_HUNG = "_output_capturing_hooks_installed"
_ABSENT = object()


def modules_of(body: Any) -> dict[str, Any]:
    """Return a body's modules by name; where it is none itself, it and those in its attributes."""
    if hasattr(body, "named_modules"):
        return dict(body.named_modules())
    found = {"": body}
    for key, value in getattr(body, "__dict__", {}).items():
        if isinstance(value, torch.nn.Module):
            found.update(value.named_modules(prefix=key))
    return found


@contextlib.contextmanager
def computing(body: Any, kept: Kept | None = None) -> Iterator[Kept]:
    """Keep a body in evaluation mode; what is yielded puts back what a forward has changed.

    The flags are set one by one, not by ``eval()``, which a model may have made do more. To be
    entered by one thread at a time. `kept` is what an earlier pass has yielded, where nobody else
    can have touched the body since: nothing of it is looked at again.
    """
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if kept is not None:
            yield kept
            return
        modules = list(modules_of(body).values())
        for module in [m for m in modules if getattr(m, "training", False) is True]:
            module.training = False
            stack.callback(setattr, module, "training", True)
        kept = Kept(modules)
        stack.callback(kept.take_off)
        yield kept


class Kept:
    """The plain attributes, buffers and children that modules have before a pass.

    Objects of other kinds are left as they are: caches, and what transformers hangs on a module.
    """

    def __init__(self, modules: list[Any]) -> None:
        # Each with the state of its module and the dict where it lies.
        self._values: list[tuple[dict[str, Any], dict[str, Any], str, Any]] = []
        self._names: list[tuple[dict[str, Any], frozenset[str]]] = []
        self._copies: list[tuple[Tensor, int | None, Tensor]] = []
        self._hooks: list[tuple[dict[str, Any], dict[int, Any], int]] = []
        self._own: set[int] = set()
        for module in modules:
            state: dict[str, Any] = getattr(module, "__dict__", {})
            hooks = state.get("_forward_hooks", {})
            self._hooks.append((state, hooks, len(hooks) if _HUNG not in state else -1))
            buffers, children = state.get("_buffers", {}), state.get("_modules", {})
            if root(type(module).__module__) not in _LIBRARIES:
                self._own.add(id(state))
            values = [(state, state, n, v) for n, v in state.items() if _can_be_kept(v)]
            values += [(state, buffers, n, v) for n, v in buffers.items()]
            # BigBird puts others in their place for a short text.
            self._values += values + [(state, children, n, v) for n, v in children.items()]
            self._names += [(state, frozenset(state)), (buffers, frozenset(buffers))]
            tensors = (value for *_, value in values if isinstance(value, Tensor))
            self._copies += [(t, _version(t), t.detach().clone()) for t in tensors if _is_small(t)]

    def restore(self) -> None:
        """Put back what a forward has changed."""
        for there, names in self._names:
            if len(there) != len(names):
                for name in there.keys() - names - {_HUNG}:
                    if _can_be_kept(there[name]):
                        del there[name]
        changed = defaultdict(list)
        for i, (state, there, name, value) in enumerate(self._values):
            if there.get(name, _ABSENT) is not value:
                changed[id(state)].append(i)
        for owner, found in changed.items():
            # A user's own module that changes nothing but such numbers counts its calls.
            counts = owner in self._own and all(self._is_counted(i) for i in found)
            for i in found:
                state, there, name, value = self._values[i]
                now = there.get(name, _ABSENT)
                if counts:
                    self._values[i] = state, there, name, now
                elif now is _ABSENT or _can_be_kept(now) or isinstance(now, torch.nn.Module):
                    there[name] = value
        for i, (tensor, version, copy) in enumerate(self._copies):
            if version is None or tensor._version != version:
                with torch.inference_mode():
                    tensor.copy_(copy)
                self._copies[i] = tensor, _version(tensor), copy

    def take_off(self) -> None:
        """Take off the hooks that transformers has hung up in the pass."""
        if any(state.get(_HUNG) and count >= 0 for state, _, count in self._hooks):
            for state, hooks, count in self._hooks:
                if count >= 0:
                    state.pop(_HUNG, None)
                    for key in [key for key in list(hooks)[count:] if is_known(hooks[key])]:
                        del hooks[key]

    def _is_counted(self, i: int) -> bool:
        _, there, name, value = self._values[i]
        now = there.get(name)
        return type(value) is int and type(now) is int and now > value


def _can_be_kept(value: Any) -> bool:
    return type(value) in PLAIN or isinstance(value, tuple | Tensor)


def _is_small(tensor: Tensor) -> bool:
    written = not isinstance(tensor, torch.nn.Parameter) and not tensor.is_meta
    return written and _size(tensor) <= _SMALL


def _written(tensor: Tensor) -> tuple[int, int | None]:
    """Return where the data of a tensor lies and how often it was written."""
    strided = tensor.layout is torch.strided
    return tensor.data_ptr() if strided else id(tensor), _version(tensor)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _version(tensor: Tensor) -> int | None:
    """Return how often a tensor was written; of an inference tensor nobody counts."""
    return None if tensor.is_inference() else tensor._version


# --- what a model is --------------------------------------------------------------------------

#: Bytes of weights in main memory whose every bit is looked at in each `fit`; of more, samples.
_LOOKED_AT = 2**28


class Identity:
    """What a body and its tokenizer compute now, as a digest.

    The same model has the same digest in every process; one that holds what cannot be read has
    it in this process alone. What a pass changes by itself is no change of the model.
    """

    def __init__(self, body: Any, tokenizer: Any) -> None:
        self._body, self._tokenizer = body, tokenizer
        self._changed: dict[str, tuple[Any, Any]] = {}  # by a pass: what is said now, and was
        self._digests: dict[str, tuple[Any, bytes]] = {}  # of tensors, by what they were
        self._last: tuple[Any, str] | None = None
        self._last_look: Any = None

    def digest(self) -> str:
        """Return the digest; a tensor is digested anew only if it was written."""
        modules = modules_of(self._body)
        tensors = _tensors(modules)
        step = 1 + sum(map(_size, {id(t): t for t in tensors.values()}.values())) // _LOOKED_AT
        by_id: dict[int, bytes] = {}  # tied weights have two names
        for name, tensor in tensors.items():
            if id(tensor) not in by_id:
                by_id[id(tensor)] = self._tensor_digest(name, tensor, step)
        weights = sorted((name, by_id[id(tensor)]) for name, tensor in tensors.items())
        parts = self._parts(modules)
        self._last_look = self._look(parts, tensors)
        if "/tokenizer" not in parts:
            parts = {**parts, "/tokenizer": tokenizer_state(self._tokenizer)}
        state = sorted(parts.items()), weights
        if self._last is None or self._last[0] != state:
            said = repr(state).encode("utf-8", "surrogatepass")
            self._last = state, hashlib.sha256(said).hexdigest()
        return self._last[1]

    def looks_like(self, digest: str) -> bool:
        """Whether all but the bits of weights and the tokenizer is as it was for `digest`."""
        if self._last is None or self._last[1] != digest:
            return False
        modules = modules_of(self._body)
        return bool(self._last_look == self._look(self._parts(modules), _tensors(modules)))

    @contextlib.contextmanager
    def own_changes(self) -> Iterator[None]:
        """Take what changes meanwhile for no change: a pass makes it, such as a hook's records."""
        before = self._parts(modules_of(self._body))
        try:
            yield
        finally:
            after = self._read_parts(modules_of(self._body))
            for name, now in after.items():
                if now != before.get(name):
                    self._changed[name] = now, before.get(name)

    def _look(self, parts: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
        return parts, [(name, *_written(tensor)) for name, tensor in tensors.items()]

    def _tensor_digest(self, name: str, tensor: Tensor, step: int) -> bytes:
        kind = str(tensor.dtype), tuple(tensor.shape)
        try:
            parts = plain_tensors(tensor)
        except Exception:  # a tensor of an unknown kind
            return repr((kind, here_alone(tensor), _version(tensor))).encode()
        now = (
            kind,
            _written(tensor),
            [checksum(part, step if _size(part) > _SMALL else 1) for part in parts],
        )
        if name not in self._digests or self._digests[name][0] != now:
            total = hashlib.sha256(repr(kind).encode())
            for part in parts:
                total.update(raw_bytes(part).cpu().numpy().data)
            self._digests[name] = now, total.digest()
        return self._digests[name][1]

    def _parts(self, modules: dict[str, Any]) -> dict[str, Any]:
        """Return what is said of all but the weights, as if no pass had changed it."""
        parts = self._read_parts(modules)
        for name, (now, before) in self._changed.items():
            if name in parts and parts[name] == now:
                del parts[name]
                if before is not None:
                    parts[name] = before
        return parts

    def _read_parts(self, modules: dict[str, Any]) -> dict[str, Any]:
        names = {id(module): name for name, module in modules.items()}
        describe = Description(names, _chosen(modules))
        parts: dict[str, Any] = {}
        for name, module in modules.items():
            if isinstance(module, torch.nn.Module):
                parts[name] = describe.module(module), *_saved_otherwise(module, describe)
            else:
                parts[name] = describe(module)
            for place in ("_forward_pre_hooks", "_forward_hooks"):
                if hooks := getattr(module, "__dict__", {}).get(place):
                    parts[f"{name}/{place}"] = _users(hooks, describe)
        for place in ("_global_forward_pre_hooks", "_global_forward_hooks"):
            parts[f"/{place}"] = _users(getattr(torch_module, place), describe)
        if root(type(self._tokenizer).__module__) not in KNOWN:  # it may count, too
            parts["/tokenizer"] = tokenizer_state(self._tokenizer)
        return {name: said for name, said in parts.items() if said != ()}


def _chosen(modules: dict[str, Any]) -> set[str]:
    """Return which attention and other parts the configs of modules choose from registries."""
    states = (getattr(module, "__dict__", {}) for module in modules.values())
    configs = {id(state["config"]): state["config"] for state in states if "config" in state}
    named = (item for c in configs.values() for item in getattr(c, "__dict__", {}).items())
    return {v for key, v in named if isinstance(v, str) and "implementation" in key}


def _users(hooks: dict[int, Any], describe: Description) -> tuple[Any, ...]:
    """Describe the hooks that are a user's; those of libraries do what the libraries do."""
    return tuple(describe.hook(hook) for hook in hooks.values() if home(hook) not in _LIBRARIES)


def _saved_otherwise(module: torch.nn.Module, describe: Description) -> Iterator[Any]:
    """Yield what a module keeps elsewhere than in tensors: packed int8 weights, extra states."""
    kind, usual = type(module), torch.nn.Module
    if kind._save_to_state_dict is not usual._save_to_state_dict:
        saved: dict[str, Any] = {}
        module._save_to_state_dict(saved, "", False)
        yield describe({key: saved[key] for key in saved.keys() - module_tensors(module).keys()})
    if kind.get_extra_state is not usual.get_extra_state:
        yield describe(module.get_extra_state())


def _tensors(modules: dict[str, Any]) -> dict[str, Tensor]:
    """Return all tensors of modules by name."""
    found = {
        f"{name}.{key}": tensor
        for name, module in modules.items()
        for key, tensor in module_tensors(module).items()
    }
    empty = [name for name, tensor in found.items() if tensor.is_meta]
    if empty:
        raise ValueError(
            f"{len(empty)} tensors of the model have no data, for example {empty[0]!r}: they are "
            f"on the meta device. Load the model whole, with from_pretrained or "
            f"load_state_dict(..., assign=True)."
        )
    return found


def tokenizer_state(tokenizer: Any) -> Any:
    """Return all of a tokenizer that can change its ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    attributes = getattr(tokenizer, "__dict__", {})
    if backend is None:
        # Slow tokenizers keep the words that they have seen.
        read = {key: entry for key, entry in attributes.items() if key != "cache"} or tokenizer
        try:
            return type(tokenizer).__qualname__, joblib.hash(read)
        except Exception:  # whatever its pickling raises: it is known in this process alone
            return here_alone(tokenizer)
    # What stands before are truncation and padding, which each call sets anew.
    _, _, settings = backend.to_str().partition('"added_tokens"')
    names = ("model_max_length", "truncation_side", "pad_token_id", "bos_token_id", "eos_token_id")
    named = [getattr(tokenizer, name, None) for name in (*names, "split_special_tokens")]
    describe = Description({})
    own = {key: entry for key, entry in attributes.items() if is_own_function(entry)}
    code = describe(type(tokenizer)), describe(own)
    return hashlib.sha256(settings.encode("utf-8", "surrogatepass")).digest(), named, code
