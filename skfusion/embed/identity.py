"""What a model computes now: its state kept the same over its passes, and a digest of it.

A vector is stored under the digest, so all that decides a result is part of it, and what a pass
itself changes on the model is put back after it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_PLAIN = frozenset({bool, int, float, str, type(None), tuple, torch.Size, torch.dtype})
#: Buffers of at most so many bytes are copied before a pass, so that they can be written back.
_SMALL = 2**16
#: Modules of other packages are a user's own, whose counters are left as they are.
_LIBRARIES = frozenset(
    {"accelerate", "peft", "sentence_transformers", "torch", "transformers"}
    | {"transformers_modules"}
)
#: Says that transformers' own hooks hang; without it they would be hung again at each call.
_STAYS = "_output_capturing_hooks_installed"
_ABSENT = object()


def modules_of(body: Any) -> list[Any]:
    """Return a body's modules; where it is none itself, the body and those in its attributes."""
    if hasattr(body, "modules"):
        return list(body.modules())
    held = getattr(body, "__dict__", {}).values()
    return [body, *(m for t in held if isinstance(t, torch.nn.Module) for m in t.modules())]


@contextlib.contextmanager
def computing(body: Any) -> Iterator[Kept]:
    """Keep a body in evaluation mode; what is yielded puts back what a forward has changed.

    The flags are set one by one, not by ``eval()``, which a model may have made do more. To be
    entered by one thread at a time.
    """
    modules = modules_of(body)
    trained = [module for module in modules if getattr(module, "training", False) is True]
    try:
        for module in trained:
            module.training = False
        yield Kept(modules)
    finally:
        for module in trained:
            module.training = True


class Kept:
    """The plain attributes, buffers and children that modules have before a pass.

    Objects of other kinds are left as they are: caches, and what transformers hangs on a module.
    """

    def __init__(self, modules: list[Any]) -> None:
        # Each with the state of its module and the dict where it lies.
        self._values: list[tuple[dict[str, Any], dict[str, Any], str, Any]] = []
        self._names: list[tuple[dict[str, Any], frozenset[str]]] = []
        self._copies: list[tuple[Tensor, int | None, Tensor]] = []
        self._own: set[int] = set()
        for module in modules:
            state: dict[str, Any] = getattr(module, "__dict__", {})
            buffers, children = state.get("_buffers") or {}, state.get("_modules") or {}
            if type(module).__module__.partition(".")[0] not in _LIBRARIES:
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
                for name in there.keys() - names - {_STAYS}:
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

    def _is_counted(self, i: int) -> bool:
        _, there, name, value = self._values[i]
        now = there.get(name)
        return type(value) is int and type(now) is int and now > value


def _can_be_kept(value: Any) -> bool:
    return type(value) in _PLAIN or isinstance(value, Tensor)


def _is_small(tensor: Tensor) -> bool:
    written = not isinstance(tensor, torch.nn.Parameter) and not tensor.is_meta
    return written and tensor.nbytes <= _SMALL


def _version(tensor: Tensor) -> int | None:
    """Return how often a tensor was written; of an inference tensor nobody counts."""
    return None if tensor.is_inference() else tensor._version
