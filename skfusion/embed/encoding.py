"""From texts to vectors: look into the store, run what is missing, store it, return all."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from .backbone import Backbone, Source, Tokens
from .loading import describe_kwargs, resolve_device, resolve_dtype
from .shards import Column
from .store import VectorStore, Writer
from .texts import text_keys

if TYPE_CHECKING:
    from .forward import Budget, ForwardPass

_LOG = logging.getLogger(__name__)

#: Texts that are tokenised, sorted and encoded together: enough for batches of like length, few
#: enough that their token ids do not fill the memory.
WINDOW = 4096


@dataclass(frozen=True)
class Spec:
    """All that changes a vector, fixed by `fit`. No path: what is opened, the parameters say."""

    model: str  # as the user gave it, for messages
    identity: str
    width: int
    max_positions: int | None  # the most tokens that max_length=None leaves
    prompt: str | None
    max_length: int | None
    dtype: str
    model_kwargs: dict[str, Any] | None
    trust_remote_code: bool
    store_dtype: str
    lower_case: bool = False

    @classmethod
    def of(
        cls,
        source: Source,
        *,
        prompt: str | None,
        max_length: int | None,
        dtype: Any,
        device: Any,
        model_kwargs: Mapping[str, Any] | None,
        store_dtype: str,
    ) -> Spec:
        """Check parameters against the model, so that `set_params` cannot mix up the store."""
        if source.device is None:
            dtype = resolve_dtype(dtype, resolve_device(device), source.saved_dtype)
        else:
            _check_backbone(source, dtype, device, model_kwargs)
            dtype = source.saved_dtype
        limit = source.max_positions if source.fixed_positions else None
        if max_length is not None and limit is not None and max_length > limit:
            raise ValueError(
                f"max_length={max_length} is more than the {limit} positions that "
                f"{source.name!r} has. Use at most {limit}, or None for that."
            )
        sentence = source.sentence
        limits = [n for n in (source.max_positions, sentence.max_length) if n is not None]
        if prompt is None:
            prompt = sentence.default_prompt
        return cls(
            model=source.name,
            identity=source.identity,
            width=source.width,
            max_positions=min(limits, default=None),
            prompt=sentence.prompts.get(prompt, prompt) or None,
            max_length=max_length,
            dtype=dtype,
            model_kwargs=describe_kwargs(model_kwargs, source.trust_remote_code),
            trust_remote_code=source.trust_remote_code,
            store_dtype=store_dtype,
            lower_case=sentence.lower_case,
        )

    def tokenize(self, backbone: Backbone, texts: Sequence[str]) -> Tokens:
        """Return what the model reads of texts."""
        prompted = [(self.prompt or "") + text for text in texts]
        if self.lower_case:
            prompted = [text.lower() for text in prompted]
        return backbone._tokenize(prompted, self.max_length, self.max_positions)

    def about(self) -> dict[str, Any]:
        """Return plain values that say what the vectors were made with."""
        about = asdict(self)
        del about["width"]  # the identity covers it
        return about

    def fingerprint(self) -> str:
        """Return the name of the store's folder: equal only where vectors are equal."""
        about = self.about()
        del about["model"]  # another folder with the same content is the same model
        return str(joblib.hash(about))


def _check_backbone(
    source: Source, dtype: Any, device: Any, model_kwargs: Mapping[str, Any] | None
) -> None:
    """Refuse to move, cast or change a model that the user made."""
    if device is not None:
        there = str(source.device)
        if resolve_device(device) not in (there, there.partition(":")[0]):
            raise ValueError(
                f"device={device!r}, but the Backbone's model is on {there}. Move it yourself "
                f"with model.to(...), or leave device=None."
            )
    if dtype is not None and resolve_dtype(dtype, "cpu", source.saved_dtype) != source.saved_dtype:
        raise ValueError(
            f"dtype={dtype!r}, but the Backbone's model is in {source.saved_dtype}. Cast it "
            f"yourself with model.to(...), or leave dtype=None."
        )
    if model_kwargs:
        raise ValueError(
            f"model_kwargs={model_kwargs!r} cannot be applied to a Backbone. Load its model with "
            f"them."
        )


@dataclass(frozen=True)
class Encoded:
    """Vectors of some texts, in their order."""

    vectors: NDArray[np.float32]  # (n_texts, len(columns) * width)
    n_truncated: int
    n_different: int
    n_encoded: int  # of the different texts, those that passed through the model
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
    """Return the vectors of `columns`; what is not stored is computed, together with `stored`.

    Equal texts are encoded once, and the backbone is loaded only if a text is missing. A vector
    that is asked for and not finite is a ValueError; those of other texts are stored.
    """
    run = _ModelRun(texts, columns, stored, spec, store)
    run.read()
    n_missing = int((~run.known).sum())
    _LOG.debug("%s: %d of %d texts are stored", spec.model, len(run.texts) - n_missing, len(texts))
    if n_missing:
        backbone, started = load(), time.perf_counter()
        run.compute(backbone, batch_tokens, progress)
        run.finish(spec.model, time.perf_counter() - started)
    return run.encoded()


def encode_by(
    function: Callable[[list[str]], NDArray[np.float32]],
    texts: Sequence[str],
    *,
    column: Column,
    width: int,
    store: VectorStore,
    batch_size: int,
    label: str,
    progress: bool,
) -> Encoded:
    """Return the vectors that a function gives texts; what is stored is not computed.

    The function gets at most `batch_size` different texts and returns a vector of `width` finite
    values for each. What it raises ends the call; batches before are stored.
    """
    run = _FunctionRun(texts, [column], width, store)
    run.read()
    if not run.known.all():
        started = time.perf_counter()
        run.compute(function, batch_size, label, progress)
        run.finish(label, time.perf_counter() - started)
    return run.encoded()


class _Run:
    """The different texts of one call, and what is known of their vectors so far."""

    def __init__(
        self,
        texts: Sequence[str],
        columns: Sequence[Column],
        width: int,
        store: VectorStore,
    ) -> None:
        unique: dict[str, int] = {}
        inverse = [unique.setdefault(text, len(unique)) for text in texts]
        self.texts, self.inverse = list(unique), np.array(inverse, dtype=np.intp)
        self.columns, self.store = columns, store
        self.keys = text_keys(self.texts)
        self.out = np.empty((len(unique), len(columns) * width), dtype=np.float32)
        self.truncated = np.zeros(len(unique), dtype=bool)
        self.known = np.zeros(len(unique), dtype=bool)
        self.n_encoded = 0
        self.newly_truncated = False

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

    def take(
        self, rows: NDArray[np.intp], vectors: NDArray[np.float32], writer: Writer
    ) -> list[bool]:
        """Store the vectors of rows that are finite; return which are."""
        asked = self.out.shape[1]
        good = np.logical_and.reduce(np.isfinite(vectors[:, :asked]), axis=1)
        writer.add(self.keys[rows[good]], self.truncated[rows[good]], vectors[good])
        if good.all():
            self.out[rows] = vectors[:, :asked]
            self.known[rows] = True
            self.n_encoded += len(rows)
        return list(map(bool, good))

    def position(self, row: int) -> tuple[int, str]:
        """Return where a text stands that the user gave, and how it begins."""
        text = self.texts[row]
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        return int(np.flatnonzero(self.inverse == row)[0]), shown

    def finish(self, label: str, seconds: float) -> None:
        """Say what was done, and tidy up behind it."""
        _LOG.info("%s: computed %d texts in %.1f s", label, self.n_encoded, seconds)
        self.store._tidy()

    def encoded(self) -> Encoded:
        """Return the vectors in the order of the texts that were given."""
        whole = len(self.texts) == len(self.inverse)
        return Encoded(
            vectors=self.out if whole else self.out[self.inverse],
            n_truncated=int(self.truncated[self.inverse].sum()),
            n_different=len(self.texts),
            n_encoded=self.n_encoded,
            newly_truncated=self.newly_truncated,
        )


class _FunctionRun(_Run):
    """A call that computes by a function of texts."""

    def compute(
        self,
        function: Callable[[list[str]], NDArray[np.float32]],
        batch_size: int,
        label: str,
        progress: bool,
    ) -> None:
        """Give the missing texts to the function, batch by batch."""
        missing = np.flatnonzero(~self.known)
        with (
            tqdm(total=len(missing), desc=label, unit="text", disable=not progress) as bar,
            Writer(self.store, self.columns) as writer,
        ):
            for start in range(0, len(missing), batch_size):
                batch = missing[start : start + batch_size]
                # Another thread or process may have stored some since the last look.
                if start:
                    self.read(batch)
                rows = batch[~self.known[batch]]
                if len(rows):
                    good = self.take(rows, function([self.texts[i] for i in rows]), writer)
                    if not all(good):
                        position, shown = self.position(int(rows[good.index(False)]))
                        raise ValueError(
                            f"The vector of the text at position {position} ({shown!r}) is not "
                            f"finite. Nothing of it was stored; the other texts of its batch and "
                            f"those before were."
                        )
                bar.update(len(batch))


class _ModelRun(_Run):
    """A call that computes by a language model."""

    def __init__(
        self,
        texts: Sequence[str],
        columns: Sequence[Column],
        stored: Sequence[Column],
        spec: Spec,
        store: VectorStore,
    ) -> None:
        super().__init__(texts, columns, spec.width, store)
        self.spec = spec
        self.computed = list(dict.fromkeys([*columns, *stored]))

    def compute(self, backbone: Backbone, batch_tokens: int | str, progress: bool) -> None:
        """Run the missing texts through the model, window by window."""
        from .forward import Budget, ForwardPass
        from .probe import usable_columns

        self.computed = usable_columns(backbone, self.spec.identity, self.columns, self.computed)
        budget = Budget.choose(backbone, batch_tokens)
        missing = np.flatnonzero(~self.known)
        label = os.path.basename(self.spec.model.rstrip("/")) or "texts"
        with (
            tqdm(total=len(missing), desc=label, unit="text", disable=not progress) as bar,
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
        budget: Budget,
        writer: Writer,
    ) -> Iterator[int]:
        from .forward import run_batches

        tokens = self.spec.tokenize(backbone, [self.texts[i] for i in window])
        self.truncated[window] = tokens.truncated
        self.newly_truncated |= bool(tokens.truncated.any())
        for batch, vectors in run_batches(
            backbone, forward, tokens, budget, self.spec.store_dtype
        ):
            rows = window[batch]
            good = self.take(rows, vectors, writer)
            if not all(good):
                first = good.index(False)
                raise self._not_finite(int(rows[first]), vectors[first, : self.out.shape[1]])
            yield len(rows)

    def _not_finite(self, row: int, vector: NDArray[np.float32]) -> ValueError:
        value = int(np.flatnonzero(~np.isfinite(vector))[0])
        layer, pooling = self.columns[value // self.spec.width]
        position, shown = self.position(row)
        rounded = " stored as float16" if self.spec.store_dtype == "float16" else ""
        return ValueError(
            f"The {pooling} vector of layer {layer} is not finite for the text at position "
            f"{position} ({shown!r}), computed in dtype={self.spec.dtype!r}{rounded}. Nothing of "
            f"it was stored; the texts before it were. Use dtype='float32' and a VectorStore with "
            f"dtype='auto', or leave the text out."
        )
