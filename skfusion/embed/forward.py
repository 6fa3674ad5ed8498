"""One pass through a model, in batches; every wanted layer is pooled as its block returns it.

Imported when a model runs, for it imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .backbone import Backbone, Tokens, is_out_of_memory
from .batching import AUTO_BATCH_TOKENS, plan_batches
from .pooling import POOLINGS
from .probe import (
    all_states,
    last_state,
    look,
    misshapen,
    real_tokens,
    seeded,
    tapped,
    unusable_layer,
)
from .shards import Column

_FLOAT16_MAX = 6e4
_FLOAT16_ERROR = 1e-3


# No `Exception`, which a model's forward may catch.
class _LastNeeded(BaseException):
    """Ends a pass that has all it needs; no error."""


class _NoState(BaseException):
    """Ends a pass in which a block did not return a hidden state; no error."""


class ForwardPass:
    """Returns the pooled vectors of batches, columns in the order asked for.

    Hooks on the blocks pool each hidden state while it is there, so that those of two blocks are
    never alive together, and the pass ends behind the last layer that is wanted. Models whose
    blocks cannot be found, or do not return the hidden states, are asked for all states. As a
    context manager it holds the backbone's lock, keeps the model in evaluation mode, and removes
    its hooks at the end.
    """

    def __init__(self, backbone: Backbone, columns: Sequence[Column]) -> None:
        self._backbone, self._columns = backbone, tuple(columns)
        self._deepest = max(layer for layer, _ in columns)
        self._depth = backbone.n_layers
        self._held, self._hooks = ExitStack(), ExitStack()
        self._mask: Tensor | None = None
        self._pooled: dict[Column, Tensor] = {}

    def __enter__(self) -> ForwardPass:
        try:
            self._held.enter_context(self._backbone._computing())
            self._probe = look(self._backbone)
            if self._probe.hooks:
                # The last layer is read from the model's own output, behind the final norm.
                blocks, n = self._backbone._blocks(), self._depth - (self._probe.last != "block")
                self._hooks.enter_context(tapped(blocks, self._see, n))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._hooks.close()
        self._held.close()

    def __call__(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """Return float32 vectors (batch, len(columns) * width), on the device of the output."""
        self._mask, self._pooled = mask, {}
        try:
            random = seeded(self._backbone) if self._probe.seeded else nullcontext()
            with torch.inference_mode(), random:
                self._run(ids, mask, types)
            vectors = [self._pooled[column] for column in self._columns]
        finally:
            self._mask, self._pooled = None, {}
        return torch.cat([vector.to(vectors[-1].device) for vector in vectors], dim=1)

    def _run(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> None:
        if self._probe.hooks:
            try:
                output = self._backbone._run(ids, mask, types)
                if self._probe.last == "output":
                    self._see(self._depth, last_state(output))
                if len(self._pooled) == len(self._columns):
                    return
            except _LastNeeded:
                return
            except _NoState:
                pass
            # Blocks that return something else for these texts: from now on, all states.
            self._hooks.close()
            self._probe = self._backbone._probe = replace(self._probe, hooks=False)
        output = self._backbone._run(ids, mask, types, all_states=True)
        states = all_states(self._backbone, output)
        if self._probe.last == "output":
            states[-1] = last_state(output)
        shape = (*mask.shape, self._backbone.width)
        for layer in {layer for layer, _ in self._columns}:
            state = real_tokens(states[layer], shape, last_state(output))
            if state is None:
                reason = misshapen(states[layer], shape)
                raise unusable_layer(self._backbone, layer, reason, self._probe.unusable)
            self._pool(layer, state)

    def _see(self, layer: int, hidden: Any) -> None:
        """Pool what a block returned, if that is wanted."""
        assert self._mask is not None
        if any(k == layer for k, _ in self._columns):
            shape = (*self._mask.shape, self._backbone.width)
            if not isinstance(hidden, Tensor) or hidden.shape != shape:
                raise _NoState
            self._pool(layer, hidden)
        if layer == self._deepest and (layer < self._depth or self._probe.last == "block"):
            raise _LastNeeded

    def _pool(self, layer: int, hidden: Tensor) -> None:
        assert self._mask is not None
        mask = self._mask.to(hidden.device)
        for column in self._columns:
            if column[0] == layer:
                self._pooled[column] = POOLINGS[column[1]](hidden, mask)


def settle(vectors: Tensor, width: int, store_dtype: str) -> Tensor:
    """Round vectors to what the store will keep, so that cold and warm calls agree bit for bit.

    "auto" rounds a vector to float16 where its largest value is under 6e4 and the error is at
    most 1e-3 of its norm; "float16" rounds all, larger values to infinity.
    """
    if store_dtype == "float32":
        return vectors
    rounded = vectors.half().float()
    if store_dtype == "float16":
        return rounded
    each = vectors.view(len(vectors), -1, width)
    error = torch.linalg.vector_norm(each - rounded.view_as(each), dim=2)
    exact = error <= _FLOAT16_ERROR * torch.linalg.vector_norm(each, dim=2)
    exact &= each.abs().amax(dim=2) < _FLOAT16_MAX
    if bool(exact.all()):
        return rounded
    return torch.where(exact[..., None], rounded.view_as(each), each).view_as(vectors)


@dataclass
class Budget:
    """How much fits into a batch; shrinks when memory runs out, for the rest of the call."""

    tokens: int
    rows: int | None = None

    @classmethod
    def choose(cls, backbone: Backbone, batch_tokens: int | str) -> Budget:
        """Return the budget that was asked for, or the device's."""
        if batch_tokens != "auto":
            return cls(int(batch_tokens))
        return cls(AUTO_BATCH_TOKENS.get(backbone._device.type, AUTO_BATCH_TOKENS["cuda"]))


def run_batches(
    backbone: Backbone, forward: ForwardPass, tokens: Tokens, budget: Budget, store_dtype: str
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """Yield each batch's rows and their vectors, in smaller batches once memory has run out."""
    lengths, way = tokens.lengths(), look(backbone).batching

    def plan(rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
        most = 1 if way == "single" else budget.rows
        batches = plan_batches(lengths[rows], budget.tokens, most, equal=way == "equal")
        return [rows[batch] for batch in batches]

    queue = plan(np.arange(len(lengths)))
    while queue:
        batch = queue.pop(0)
        ids = [tokens.ids[i] for i in batch]
        types = None if tokens.types is None else [tokens.types[i] for i in batch]
        vectors = None
        try:
            pooled = settle(forward(*backbone._batch(ids, types)), backbone.width, store_dtype)
            vectors = pooled.cpu().numpy()
            del pooled
        except (RuntimeError, MemoryError) as error:
            if len(batch) == 1 or not is_out_of_memory(error):
                raise
        # Outside of the except block, whose traceback would keep the failed batch's tensors alive.
        if vectors is None:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            elif torch.backends.mps.is_available():
                torch.mps.empty_cache()
            budget.tokens = max(1, len(batch) * int(lengths[batch].max()) // 2)
            budget.rows = max(1, len(batch) // 2)
            queue = plan(np.concatenate([batch, *queue]))
        else:
            yield batch, vectors
