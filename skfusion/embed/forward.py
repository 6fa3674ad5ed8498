"""One pass through a model, in batches; every wanted layer is pooled as its block returns it.

Imported when a model runs, for it imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .backbone import Backbone, Tokens
from .batching import AUTO_BATCH_TOKENS, plan_batches
from .pooling import POOLINGS
from .shards import Column

_FLOAT16_MAX = 6e4
_FLOAT16_ERROR = 1e-3


class _LastNeeded(Exception):
    """Ends a pass that has all it needs; no error."""


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
        self._handles: list[Any] = []
        self._held = ExitStack()
        self._mask: Tensor | None = None
        self._seen: dict[int, Tensor] | None = None
        self._pooled: dict[Column, Tensor] = {}

    def __enter__(self) -> ForwardPass:
        self._held.enter_context(self._backbone._computing())
        try:
            blocks, certain = self._backbone._blocks()
            if self._backbone._hooks_agree is None and (certain or not blocks):
                self._backbone._hooks_agree = certain
            if self._backbone._hooks_agree is not False:
                self._hook(blocks)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._unhook()
        self._held.close()

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, blocks: Sequence[Any]) -> None:
        def before_first(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._see(0, args[0] if args else kwargs["hidden_states"])

        self._handles.append(blocks[0].register_forward_pre_hook(before_first, with_kwargs=True))
        # The last layer is read behind the final norm, from the model's own output.
        for k, block in enumerate(blocks[:-1], start=1):

            def after(module: Any, args: Any, output: Any, k: int = k) -> None:
                self._see(k, output[0] if isinstance(output, tuple) else output)

            self._handles.append(block.register_forward_hook(after))

    def _see(self, layer: int, hidden: Tensor) -> None:
        if self._seen is not None:  # comparing
            self._seen[layer] = hidden
            return
        assert self._mask is not None
        mask = self._mask.to(hidden.device)
        for column in self._columns:
            if column[0] == layer:
                self._pooled[column] = POOLINGS[column[1]](hidden, mask)
        if layer == self._deepest < self._depth:
            raise _LastNeeded

    def __call__(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """Return float32 vectors (batch, len(columns) * width), on the device of the output."""
        if self._backbone._hooks_agree is None:
            return self._first_batch(ids, mask, types)
        with torch.inference_mode():
            if not self._backbone._hooks_agree:
                self._pool_states(self._all_states(ids, mask, types), mask)
                return self._collect()
            self._mask, self._pooled = mask, {}
            try:
                output = self._backbone._run(ids, mask, types)
                self._see(self._depth, output.last_hidden_state)
            except _LastNeeded:
                pass
            finally:
                self._mask = None
            return self._collect()

    def _all_states(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> list[Tensor]:
        output = self._backbone._run(ids, mask, types, all_states=True)
        states = list(getattr(output, "hidden_states", None) or [])
        if not states:
            raise ValueError(
                f"{self._backbone!r} returns no hidden_states when asked for them with "
                f"output_hidden_states=True, and its blocks could not be used instead."
            )
        if len(states) != self._depth + 1:
            raise ValueError(
                f"{self._backbone!r} returns {len(states)} hidden states, but its config says "
                f"{self._depth} layers (hence {self._depth + 1} states)."
            )
        states[-1] = output.last_hidden_state
        return states

    def _pool_states(self, states: Sequence[Tensor], mask: Tensor) -> None:
        self._pooled = {
            (layer, pooling): POOLINGS[pooling](states[layer], mask.to(states[layer].device))
            for layer, pooling in self._columns
        }

    def _collect(self) -> Tensor:
        vectors = [self._pooled[column] for column in self._columns]
        self._pooled = {}
        for (layer, _), vector in zip(self._columns, vectors, strict=True):
            if vector.shape[1] != self._backbone.width:
                raise ValueError(
                    f"Layer {layer} of {self._backbone!r} has vectors of {vector.shape[1]} "
                    f"values, the others of {self._backbone.width}. Leave it out with "
                    f"memory=VectorStore(..., layers='requested') or a list of layers."
                )
        return torch.cat([vector.to(vectors[-1].device) for vector in vectors], dim=1)

    def _first_batch(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        """Compare hooks with the model's own hidden states on the shortest text, then go on.

        That text's vectors are used, so that no text passes through the model twice.
        """
        lengths = mask.sum(dim=1)
        row = int(lengths.argmin())
        short = slice(0, int(lengths[row]))
        others = [i for i in range(len(ids)) if i != row]
        with torch.inference_mode():
            self._compare(ids[[row], short], mask[[row], short], _part(types, [row], short))
            first = self._collect()
        if not others:
            return first
        rest = self(ids[others], mask[others], _part(types, others, slice(None)))
        order = torch.tensor([row, *others], device=rest.device).argsort()
        return torch.cat([first.to(rest.device), rest])[order]

    def _compare(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> None:
        seen = self._seen = {}
        try:
            states = self._all_states(ids, mask, types)
        finally:
            self._seen = None
        self._backbone._hooks_agree = sorted(seen) == list(range(self._depth)) and all(
            torch.equal(hidden, states[k]) for k, hidden in seen.items()
        )
        if not self._backbone._hooks_agree:
            self._unhook()
        self._pool_states(states, mask)


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


def _part(types: Tensor | None, rows: list[int], tokens: slice) -> Tensor | None:
    return None if types is None else types[rows, tokens]


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
    lengths = tokens.lengths()
    queue = plan_batches(lengths, budget.tokens, budget.rows)
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
            if len(batch) == 1 or not _is_out_of_memory(error):
                raise
        # Outside of the except block, whose traceback would keep the failed batch's tensors alive.
        if vectors is None:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            elif torch.backends.mps.is_available():
                torch.mps.empty_cache()
            budget.tokens = max(1, len(batch) * int(lengths[batch].max()) // 2)
            budget.rows = max(1, len(batch) // 2)
            rest = np.concatenate([batch, *queue])
            queue = [rest[b] for b in plan_batches(lengths[rest], budget.tokens, budget.rows)]
        else:
            yield batch, vectors


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    signs = ("out of memory", "can't allocate memory", "not enough memory")
    return any(words in str(error).lower() for words in signs)
