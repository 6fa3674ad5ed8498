"""From texts to vectors: look into the store, run what is missing, store it, give all back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from .backbone import Backbone, Source, Tokens
from .batching import AUTO_BATCH_TOKENS, plan_batches
from .forward import ForwardPass, settle
from .shards import Column
from .store import VectorStore, Writer
from .texts import text_keys

#: Texts that are tokenised, sorted and encoded together: enough for batches of like length, few
#: enough that their token ids do not fill the memory.
WINDOW = 4096


@dataclass(frozen=True)
class Spec:
    """All that changes a vector, fixed by `fit`."""

    source: Source
    prompt: str | None
    max_length: int | None
    dtype: str
    attn_implementation: str | None
    store_dtype: str

    def about(self) -> dict[str, Any]:
        """Say in plain values what the vectors were made with."""
        about = asdict(self)
        source = about.pop("source")
        return {
            "model": source["name"],
            "identity": source["identity"],
            "trust_remote_code": source["trust_remote_code"],
            **about,
        }

    def fingerprint(self) -> str:
        """Name the store's folder: equal only where vectors are equal."""
        about = self.about()
        del about["model"]  # another folder with the same content is the same model
        return str(joblib.hash(about))


@dataclass(frozen=True)
class Encoded:
    """Vectors of some texts, in their order."""

    vectors: NDArray[np.float32]  # (n_texts, len(columns) * width)
    n_truncated: int
    newly_truncated: bool  # whether any of them was computed in this call


def encode(
    texts: Sequence[str],
    *,
    columns: Sequence[Column],
    stored: Sequence[Column],
    spec: Spec,
    store: VectorStore,
    load: Callable[[], Backbone],
    batch_tokens: int | str,
    progress: bool,
) -> Encoded:
    """Give the vectors of texts, computing those that are not stored.

    Parameters
    ----------
    texts : sequence of str
        Checked texts. Equal ones are encoded once.
    columns : sequence of (layer, pooling)
        What is asked for, in the order of the result.
    stored : sequence of (layer, pooling)
        What a pass computes and stores beside them.
    spec : Spec
        What the vectors are made with.
    store : VectorStore
        Scoped to `spec`.
    load : callable
        Gives the backbone; called only if a text is missing.
    batch_tokens : int or "auto"
        Token budget of a batch.
    progress : bool
        Whether to show a bar of the texts that are computed.

    Returns
    -------
    Encoded
        Finite float32 vectors.

    Raises
    ------
    NonFiniteError
        If a vector that is asked for is not finite. The other texts' vectors are stored.
    """
    unique: dict[str, int] = {}
    inverse = np.array([unique.setdefault(text, len(unique)) for text in texts], dtype=np.intp)
    run = _Run(list(unique), columns, stored, spec, store)
    run.read()
    if run.missing().size:
        run.compute(load(), batch_tokens, progress)
    store._tidy()
    out = run.out if len(unique) == len(texts) else run.out[inverse]
    return Encoded(out, int(run.truncated[inverse].sum()), run.newly_truncated)


class _Run:
    """The different texts of one call, and what is known of their vectors so far."""

    def __init__(
        self,
        texts: list[str],
        columns: Sequence[Column],
        stored: Sequence[Column],
        spec: Spec,
        store: VectorStore,
    ) -> None:
        self.texts, self.columns, self.spec, self.store = texts, columns, spec, store
        self.computed = list(dict.fromkeys([*columns, *stored]))
        self.keys = text_keys(texts)
        self.out = np.empty((len(texts), len(columns) * spec.source.width), dtype=np.float32)
        self.truncated = np.zeros(len(texts), dtype=bool)
        self.known = np.zeros(len(texts), dtype=bool)
        self.newly_truncated = False

    def missing(self) -> NDArray[np.intp]:
        return np.flatnonzero(~self.known)

    def read(self, rows: NDArray[np.intp] | None = None) -> None:
        """Take from the store what it has of some rows, or of all."""
        if rows is None:
            found = self.store._read(self.keys, self.columns, self.out)
            self.known, self.truncated = ~found.missing, found.truncated
        elif len(rows):
            out = np.empty((len(rows), self.out.shape[1]), dtype=np.float32)
            found = self.store._read(self.keys[rows], self.columns, out)
            there = rows[~found.missing]
            self.out[there] = out[~found.missing]
            self.truncated[there] = found.truncated[~found.missing]
            self.known[there] = True

    def compute(self, backbone: Backbone, batch_tokens: int | str, progress: bool) -> None:
        """Run the missing texts through the model, window by window."""
        budget = _Budget.choose(backbone, batch_tokens)
        missing = self.missing()
        with (
            tqdm(total=len(missing), desc=self._label(), unit="text", disable=not progress) as bar,
            Writer(self.store, self.computed) as writer,
        ):
            for start in range(0, len(missing), WINDOW):
                window = missing[start : start + WINDOW]
                with ForwardPass(backbone, self.computed) as forward:
                    # Another thread or process may have stored some since the last look.
                    self.read(window)
                    rows = window[~self.known[window]]
                    bar.update(len(window) - len(rows))
                    if len(rows):
                        for n in self._compute_window(rows, backbone, forward, budget, writer):
                            bar.update(n)
                        writer.flush()

    def _compute_window(
        self,
        window: NDArray[np.intp],
        backbone: Backbone,
        forward: ForwardPass,
        budget: _Budget,
        writer: Writer,
    ) -> Iterator[int]:
        source = self.spec.source
        prompt = self.spec.prompt or ""
        texts = [prompt + self.texts[i] for i in window]
        tokens = backbone.tokenize(texts, self.spec.max_length, source.max_positions)
        self.truncated[window] = tokens.truncated
        self.newly_truncated |= bool(tokens.truncated.any())
        asked = self.out.shape[1]
        for batch, vectors in _run_batches(backbone, forward, tokens, budget, self.spec):
            rows = window[batch]
            good = np.logical_and.reduce(np.isfinite(vectors[:, :asked]), axis=1)
            writer.add(self.keys[rows[good]], self.truncated[rows[good]], vectors[good])
            if not good.all():
                raise self._not_finite(rows, vectors[:, :asked], good)
            self.out[rows] = vectors[:, :asked]
            self.known[rows] = True
            yield len(rows)

    def _not_finite(
        self, rows: NDArray[np.intp], vectors: NDArray[np.float32], good: NDArray[np.bool_]
    ) -> NonFiniteError:
        row = int(np.flatnonzero(~good)[0])
        value = int(np.flatnonzero(~np.isfinite(vectors[row]))[0])
        layer, pooling = self.columns[value // self.spec.source.width]
        return NonFiniteError(int(rows[row]), layer, pooling)

    def _label(self) -> str:
        return os.path.basename(self.spec.source.name.rstrip("/")) or "texts"


class NonFiniteError(Exception):
    """A vector that was asked for is NaN or infinite."""

    def __init__(self, row: int, layer: int, pooling: str) -> None:
        super().__init__(row, layer, pooling)
        self.row, self.layer, self.pooling = row, layer, pooling


@dataclass
class _Budget:
    """How much fits into a batch; shrinks when memory runs out, for the rest of the call."""

    tokens: int
    rows: int | None = None

    @classmethod
    def choose(cls, backbone: Backbone, batch_tokens: int | str) -> _Budget:
        if batch_tokens != "auto":
            return cls(int(batch_tokens))
        return cls(AUTO_BATCH_TOKENS.get(backbone.device.type, AUTO_BATCH_TOKENS["cuda"]))

    def halve(self, rows: int, longest: int) -> None:
        self.tokens = max(1, rows * longest // 2)
        self.rows = max(1, rows // 2)


def _run_batches(
    backbone: Backbone, forward: ForwardPass, tokens: Tokens, budget: _Budget, spec: Spec
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """Give each batch's rows and their vectors, in smaller batches once memory has run out."""
    lengths = tokens.lengths()
    queue = plan_batches(lengths, budget.tokens, budget.rows)
    while queue:
        batch = queue.pop(0)
        vectors = None
        try:
            vectors = _run_batch(backbone, forward, tokens, batch, spec)
        except (RuntimeError, MemoryError) as error:
            if len(batch) == 1 or not _is_out_of_memory(error):
                raise
        # Outside of the except block, whose traceback would keep the failed batch's tensors alive.
        if vectors is None:
            _free_memory()
            budget.halve(len(batch), int(lengths[batch].max()))
            rest = np.concatenate([batch, *queue])
            queue = [rest[b] for b in plan_batches(lengths[rest], budget.tokens, budget.rows)]
        else:
            yield batch, vectors


def _run_batch(
    backbone: Backbone,
    forward: ForwardPass,
    tokens: Tokens,
    batch: NDArray[np.intp],
    spec: Spec,
) -> NDArray[np.float32]:
    ids = [tokens.ids[i] for i in batch]
    types = None if tokens.types is None else [tokens.types[i] for i in batch]
    pooled = settle(forward(*backbone.batch(ids, types)), spec.source.width, spec.store_dtype)
    vectors: NDArray[np.float32] = pooled.cpu().numpy()
    return vectors


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    message = str(error).lower()
    return any(
        words in message
        for words in ("out of memory", "can't allocate memory", "not enough memory")
    )


def _free_memory() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
