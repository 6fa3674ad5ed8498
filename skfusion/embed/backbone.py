"""A language model and its tokenizer in memory: tokenise, run, find the blocks, fingerprint.

Nothing here names transformers (`loading` does), so that any module with a forward will do.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .batching import pad
from .body import check_type, find_body, position_limit, shape, table_rows
from .folders import NO_SETTINGS, SentenceSettings

if TYPE_CHECKING:
    import torch

    from .identity import Identity, Kept
    from .probe import Probe

# What code that was written for other inputs raises, without a word of what is wrong.
_BARE = (AttributeError, LookupError, NotImplementedError, OverflowError, TypeError)

_NO_LIMIT = 10**9  # tokenizers without a limit say 1e30


@dataclass(frozen=True)
class Source:
    """A model as far as it is known without its weights."""

    name: str  # as the user gave it, for messages
    location: str  # what from_pretrained takes
    identity: str  # says which weights and tokenizer these are; equal means equal vectors
    n_layers: int
    width: int
    revision: str | None = None
    gguf: str | None = None  # a GGUF file's path; `location` is where its conversion goes
    max_positions: int | None = None
    fixed_positions: bool = False  # a table of positions: a longer text cannot be run at all
    saved_dtype: str = "float32"
    trust_remote_code: bool = False
    device: str | None = None  # of a model that is in memory already
    subfolder: str = ""  # of a hub repository, where the model lies in it
    sentence: SentenceSettings = NO_SETTINGS


class Backbone:
    """A language model and its tokenizer, already in memory.

    Pass one to `LLMLayerEmbedder` to embed with a model that you have loaded, quantised or
    changed yourself. It is shared by `sklearn.base.clone` and ``copy.deepcopy``, never copied,
    and neither moved nor cast. Its pickle holds the weights, as nothing else could bring them
    back; an embedder made from a hub id, folder or GGUF file pickles without them.

    Vectors are stored for the model as it computes now: weights, config, attributes, active
    adapters and their scales, forward hooks. Once one of them has changed, `fit` has to be called
    again; what was stored for a model as it was is found again when it is so again. A model with
    hooks or functions of your own is known in this process alone. Weights written past torch, such
    as through ``weight.data``, are seen at `fit` as well; of more than 256 MB, samples are looked
    at for that. The model computes in evaluation mode; its flags are put back afterwards, and what
    a forward changes on its modules is put back after each.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model, or anything whose ``forward(input_ids, attention_mask)`` returns an
        object with ``last_hidden_state`` and, asked with ``output_hidden_states=True``,
        ``hidden_states``. A task head is left out, adapters that change weights (PEFT) stay in;
        of an encoder-decoder the encoder is taken, of a model of texts and pictures or sounds
        the language model, of CLIP and its like the text part.
    tokenizer : callable
        A transformers tokenizer or processor, or anything that maps a list of texts to a dict
        with ``"input_ids"``.

    Attributes
    ----------
    n_layers : int
        Number of blocks L; layers are 0 (the embedding output) to L.
    width : int
        Length of a hidden state.

    Notes
    -----
    A vector depends on its text, on the model as it computes now and on the settings, whatever
    other texts are in the batch or were before it. What a batch may change is the order in which
    numbers are added: on a CPU a vector moves by about 5e-7 of its norm in float32 (3e-6 at most
    in 30 layers), 3e-3 in float16 and 4e-2 in bfloat16. Storing as float16, which
    ``VectorStore(dtype="auto")`` does where it is exact enough, adds at most 1e-3.

    On first use, and after the model has changed, a few short texts of our own tell whether
    padding or neighbours change a text by more. Such models (FNet, ConvBERT, rotary frequencies
    by the longest text, dynamic int8, ...) run in batches of equal length or one text at a time,
    which is slower. Random numbers are drawn from a fixed seed.

    A text is never padded for its own sake. SigLIP's text part has learnt from texts that look at
    their padding up to 64 tokens, so that its vectors here are not those of ``get_text_features``.

    Examples
    --------
    >>> from transformers import AutoModel, AutoTokenizer
    >>> from skfusion import Backbone, LLMLayerEmbedder
    >>> model = AutoModel.from_pretrained(tiny_model)
    >>> backbone = Backbone(model, AutoTokenizer.from_pretrained(tiny_model))
    >>> backbone.n_layers, backbone.width
    (3, 16)
    >>> LLMLayerEmbedder(backbone, layer=2).fit_transform(["a good film"]).shape
    (1, 16)
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        if not callable(getattr(model, "forward", None)):
            raise TypeError(
                f"Backbone(model, tokenizer): model must be a torch module with a forward; got "
                f"{model!r}. A hub id or folder is given to LLMLayerEmbedder itself."
            )
        if type(tokenizer).__name__.endswith("Processor"):  # of texts and pictures
            tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if not callable(tokenizer):
            raise TypeError(
                f"Backbone(model, tokenizer): tokenizer must be callable with a list of texts; "
                f"got {tokenizer!r}. Use transformers.AutoTokenizer.from_pretrained(...), or "
                f"PreTrainedTokenizerFast(tokenizer_object=...) around one of tokenizers."
            )
        self.model = model
        self.tokenizer = tokenizer
        self._body = find_body(model)
        # A few encoders have none of their own.
        self._config = getattr(self._body, "config", None) or getattr(model, "config", None)
        # Hooks and the padding state of a fast tokenizer belong to one pass at a time.
        self._lock = threading.RLock()
        self._kept: Kept | None = None  # what a forward may not change, while a pass goes on
        self._probe: Probe | None = None  # set by the first pass
        # Whether `load` made the model, so that nobody else can change it, and what it then has.
        self._private = False
        self._known_blocks: list[Any] | None = None
        self._snapshot: Kept | None = None
        self._accepted: tuple[Any, Mapping[str, inspect.Parameter]] | None = None
        self._known: Identity | None = None
        self._shape: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"Backbone({type(self.model).__name__}, {type(self.tokenizer).__name__})"

    def __copy__(self) -> Backbone:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Backbone:
        return self

    def __sklearn_clone__(self) -> Backbone:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "tokenizer": self.tokenizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return self._depth_and_width()[0]

    @property
    def width(self) -> int:
        """Length of a hidden state."""
        return self._depth_and_width()[1]

    def _depth_and_width(self) -> tuple[int, int]:
        if self._shape is None:
            try:
                self._shape = shape(self._config)
            except ValueError:
                self._shape = self._shape_of_a_token()
        return self._shape

    def _shape_of_a_token(self) -> tuple[int, int]:
        """Run a stub without a config, to see what it returns."""
        from .probe import seeded

        with self._computing(), seeded(self):
            output = self._run(*self._batch([[self._pad_id]]), all_states=True)
        try:
            return len(output.hidden_states) - 1, int(output.hidden_states[-1].shape[-1])
        except (AttributeError, LookupError, TypeError):
            raise ValueError(
                f"{self!r} has no config that tells its layers, and its forward returned no "
                f"hidden_states when asked for them with output_hidden_states=True."
            ) from None

    @property
    def _dtype(self) -> str:
        """Name of the dtype in which the model computes."""
        parameters: Any = getattr(self._body, "parameters", list)()
        dtypes = (str(t.dtype) for t in parameters if t.is_floating_point())
        return next(dtypes, "float32").removeprefix("torch.")

    @property
    def _device(self) -> torch.device:
        """Where the input goes; the blocks of a dispatched model may be elsewhere."""
        import torch

        tensors: Any = getattr(self._body, "parameters", list)()
        devices = (t.device for t in tensors if not t.is_meta)  # those are offloaded
        return next(devices, torch.device("cpu"))

    @property
    def _pad_id(self) -> int:
        """Id written at padding, where the mask hides it. The vocabulary is never resized."""
        return self._first_id("pad_token_id", "eos_token_id")

    def _first_id(self, *names: str) -> int:
        ids = (getattr(self.tokenizer, name, None) for name in names)
        known = self._vocabulary or np.inf  # the tokenizer alone may have got a pad token
        return next((int(i) for i in ids if i is not None and 0 <= i < known), 0)

    @property
    def _vocabulary(self) -> int | None:
        """Number of token ids that the model has rows for, None where it has no table."""
        try:
            weight = self._body.get_input_embeddings().weight
        except (AttributeError, NotImplementedError):  # a stub, or a module without the method
            return None
        return len(weight) if getattr(weight, "ndim", 0) == 2 else None

    @cached_property
    def _table_rows(self) -> int | None:
        return table_rows(self._body)

    def _check(self) -> None:
        """Refuse a model that reads no texts, or whose weights cannot be used where they are."""
        read = getattr(self._body, "main_input_name", "input_ids")
        if read != "input_ids":
            raise ValueError(
                f"Cannot embed with {self!r}: its {type(self._body).__name__} reads {read}, and "
                f"not the tokens of texts. Use a language model, or the text part of this one."
            )
        try:
            check_type(self._config)
        except ValueError as error:
            raise ValueError(f"Cannot embed with {self!r}: {error}") from None
        modules = list(getattr(self._body, "modules", list)())
        devices = {str(t.device) for t in getattr(self._body, "parameters", list)()}
        dispatched = any(hasattr(module, "_hf_hook") for module in modules)
        if "meta" in devices:
            offloaded = "offloaded to the CPU or the disk" if dispatched else "on the meta device"
            raise ValueError(
                f"Cannot embed with {self!r}: some of its weights are {offloaded}, where their "
                f"values cannot be told. Load it whole, or give LLMLayerEmbedder its hub id or "
                f"folder and device='auto'."
            )
        if len(devices) > 1 and not dispatched:
            raise ValueError(
                f"Cannot embed with {self!r}: its weights are on {', '.join(sorted(devices))}. "
                f"Move all to one device with model.to(...), or load it with device_map='auto'."
            )

    def _source(self) -> Source:
        """Return what `resolve` returns for a model that is not loaded."""
        self._check()
        positions, fixed = position_limit(self._config)
        if self._table_rows is not None:
            positions, fixed = min(positions or self._table_rows, self._table_rows), True
        return Source(
            name=repr(self),
            location="",
            identity=self._identity(),
            n_layers=self.n_layers,
            width=self.width,
            max_positions=positions,
            fixed_positions=fixed,
            saved_dtype=self._dtype,
            device=str(self._device),
        )

    def _identity(self) -> str:
        """Return a digest of all that decides what the model computes now."""
        with self._lock:
            self._settle()
            return f"memory:{self._state().digest()}"

    def _looks_like(self, identity: str) -> bool:
        """Whether the model has that identity, as far as can be seen in a few milliseconds."""
        if not self._lock.acquire(blocking=False):
            return True  # another thread computes, and has looked
        try:
            return self._state().looks_like(identity.removeprefix("memory:"))
        finally:
            self._lock.release()

    def _state(self) -> Identity:
        from .identity import Identity

        if self._known is None:
            self._known = Identity(self._body, self.tokenizer)
        return self._known

    def _tokenize(
        self, texts: Sequence[str], max_length: int | None, max_positions: int | None
    ) -> Tokens:
        """Turn texts into token ids, cut to `max_length` or the tokenizer's and model's limit."""
        limit = max_length
        if limit is None:
            own = getattr(self.tokenizer, "model_max_length", None)
            if not isinstance(own, Real | None):
                raise TypeError(f"The tokenizer's model_max_length is no number, but {own!r}.")
            limits: list[Any] = [own, max_positions, self._table_rows]
            limit = min((int(n) for n in limits if n is not None and n < _NO_LIMIT), default=None)
        elif self._table_rows is not None and limit > self._table_rows:
            raise ValueError(
                f"max_length={limit} is more than the {self._table_rows} positions that "
                f"{self!r} has. Use at most {self._table_rows}, or None for that."
            )
        ids, types, fast = self._encode(texts, limit)
        cut = np.zeros(len(ids), dtype=bool)
        for i, row in enumerate(ids):
            if limit is not None and len(row) >= limit:
                if fast is None:
                    whole = self.tokenizer([texts[i]], truncation=False, verbose=False)
                    cut[i] = len(whole["input_ids"][0]) > limit
                else:
                    cut[i] = bool(fast[i].overflowing)
            if not row:  # no token at all: SmolLM2 and GPT-2 turn "" into nothing
                ids[i] = [self._first_id("bos_token_id", "eos_token_id", "pad_token_id")]
                if types is not None:
                    types[i] = [0]
        return Tokens(ids, types, cut)

    def _encode(
        self, texts: Sequence[str], limit: int | None
    ) -> tuple[list[list[int]], list[list[int]] | None, Any]:
        """Return ids, types and encodings of texts, once they are known to fit the model."""
        options: dict[str, Any] = {"truncation": limit is not None, "max_length": limit}
        try:
            special = int(getattr(self.tokenizer, "num_special_tokens_to_add", int)())
            if limit is not None and limit <= special:
                raise ValueError(
                    f"max_length={limit} leaves no room for a text beside the {special} special "
                    f"tokens of {type(self.tokenizer).__name__}. Use at least {special + 1}."
                )
            encoded = self.tokenizer(list(texts), padding=False, **options)
            ids: list[list[int]] = [list(row) for row in encoded["input_ids"]]
            highest = index(max((max(row) for row in ids if row), default=0))
            lowest = index(min((min(row) for row in ids if row), default=0))
            if len(ids) != len(texts) or (limit is not None and max(map(len, ids)) > limit):
                longest = max(map(len, ids), default=0)
                raise IndexError(f"{len(ids)} lists of up to {longest} ids for {len(texts)} texts")
        except _BARE as error:
            raise TypeError(
                f"{type(self.tokenizer).__name__} cannot be used as a tokenizer: called with a "
                f"list of texts, padding=False, truncation={limit is not None} and "
                f"max_length={limit}, it must return a mapping whose 'input_ids' are a list of "
                f"whole numbers for each text, of at most that length. Use one of "
                f"transformers.AutoTokenizer. ({type(error).__name__}: {error})"
            ) from error
        self._check_ids(texts, ids, lowest, highest)
        types = encoded.get("token_type_ids")
        if types is not None and not any(map(any, types)):
            types = None  # all zero is what every model assumes
        if types is not None:
            self._check_types(max(map(max, filter(None, types))))
        return ids, types, getattr(encoded, "encodings", None)

    def _check_ids(
        self, texts: Sequence[str], ids: list[list[int]], lowest: int, highest: int
    ) -> None:
        """Refuse token ids that the embedding table has no row for."""
        rows = self._vocabulary
        if lowest >= 0 and (rows is None or highest < rows):
            return
        wrong = lowest if lowest < 0 else highest
        text = texts[next(i for i, row in enumerate(ids) if wrong in row)]
        raise ValueError(
            f"The tokenizer turns {text[:60]!r} into the token id {wrong}, but the model's "
            f"embedding table has {rows} rows. Use the model's own tokenizer, or, where tokens "
            f"were added to it, model.resize_token_embeddings(len(tokenizer))."
        )

    def _check_types(self, highest: int) -> None:
        """Refuse token types that the model has no row for."""
        rows = getattr(self._config, "type_vocab_size", None)
        takes = "token_type_ids" in inspect.signature(self._body.forward).parameters
        if takes and isinstance(rows, int) and 0 < rows <= highest:
            raise ValueError(
                f"The tokenizer gives the token type {highest}, but the model knows {rows} "
                f"(type_vocab_size). Use the model's own tokenizer."
            )

    def _batch(
        self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Pad token rows on the right, whatever side the tokenizer likes, and move them."""
        import torch

        ids, mask = pad(rows, self._pad_id)
        padded = None if types is None else torch.from_numpy(pad(types, 0)[0]).to(self._device)
        return (
            torch.from_numpy(ids).to(self._device),
            torch.from_numpy(mask).to(self._device),
            padded,
        )

    def _run(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        types: torch.Tensor | None = None,
        *,
        all_states: bool = False,
    ) -> Any:
        """Run the model's forward; default positions are right, as padding stands on the right."""
        import torch

        wanted = {
            "attention_mask": mask.long(),
            "token_type_ids": types,
            "use_cache": False,
            "return_dict": True,
            "output_hidden_states": all_states or None,
        }
        forward = self._body.forward
        if self._accepted is None or self._accepted[0] != forward:
            self._accepted = forward, inspect.signature(forward).parameters
        accepted = self._accepted[1]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        options = {
            name: value
            for name, value in wanted.items()
            if value is not None and (takes_any or name in accepted)
        }
        try:
            with torch.inference_mode():
                return self._body(input_ids=ids, **options)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise RuntimeError(
                f"The forward of {self!r} failed with {type(error).__name__}: {error}. It was "
                f"given {ids.shape[0]} texts of up to {ids.shape[1]} tokens. Check that the "
                f"tokenizer is the model's own, that the texts are not longer than it can take "
                f"(max_length=), and that the model runs by itself: "
                f"model(**tokenizer(['text'], return_tensors='pt'))."
            ) from error
        finally:
            if self._kept is not None:
                self._kept.restore()

    def _settle(self) -> None:
        """Let a model that rescales its weights in its first pass, RWKV's, do so before it."""
        from .identity import computing

        if callable(rescale := getattr(self._body, "_rescale_layers", None)):
            with computing(self._body):
                rescale()

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Hold the lock, and keep the model in evaluation mode and as it is over each forward."""
        from .identity import computing

        with contextlib.ExitStack() as stack:
            stack.enter_context(self._lock)
            if not self._private:
                stack.enter_context(self._state().own_changes())
            self._settle()
            kept = stack.enter_context(computing(self._body, self._snapshot))
            if self._private:
                self._snapshot = kept
            before, self._kept = self._kept, kept
            try:
                yield
            finally:
                self._kept = before

    def _blocks(self) -> list[Any]:
        """Return the modules whose outputs should be the hidden states 1 to L, none if not found.

        Those that the model itself declares to be, if it does.
        """
        if self._private and self._known_blocks is not None:
            return self._known_blocks
        self._known_blocks = self._find_blocks()
        return self._known_blocks

    def _find_blocks(self) -> list[Any]:
        declared = _declared_blocks(self._body)
        found: list[list[Any]] = []
        for module in getattr(self._body, "modules", list)():
            if type(module).__name__ != "ModuleList" or len(module) != self.n_layers:
                continue
            blocks = list(module)
            if len(set(map(id, blocks))) == len(blocks):
                if declared and isinstance(blocks[0], declared):
                    return blocks
                found.append(blocks)
        return found[0] if found else []


@dataclass(frozen=True)
class Tokens:
    """Token ids of some texts, not padded."""

    ids: list[list[int]]
    types: list[list[int]] | None
    truncated: NDArray[np.bool_]

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.fromiter(map(len, self.ids), dtype=np.int64, count=len(self.ids))


def _declared_blocks(model: Any) -> tuple[type, ...]:
    """Classes whose first output transformers itself records as a hidden state."""
    classes: list[type] = []
    for module in getattr(model, "modules", list)():
        recorded = (getattr(module, "_can_record_outputs", None) or {}).get("hidden_states")
        for entry in recorded if isinstance(recorded, list) else [recorded]:
            kind = getattr(entry, "target_class", entry)
            if isinstance(kind, type) and getattr(entry, "index", 0) == 0:
                classes.append(kind)
    return tuple(classes)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may help."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    signs = ("out of memory", "can't allocate memory", "not enough memory")
    return any(words in str(error).lower() for words in signs)
