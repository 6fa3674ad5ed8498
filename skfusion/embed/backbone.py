"""A language model and its tokenizer in memory: tokenise, run, find the blocks, fingerprint.

Nothing here names transformers (`loading` does), so that any module with a forward will do.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .batching import pad

if TYPE_CHECKING:
    import torch

    from .identity import Identity, Kept

_NO_LIMIT = 10**9  # tokenizers without a limit say 1e30

# Their position ids start behind the padding id, so that the table's first rows are never used.
# fmt: off
_OFFSET_POSITIONS = frozenset({
    "bridgetower", "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt",
    "longformer", "luke", "markuplm", "mluke", "mpnet", "roberta", "roberta-prelayernorm",
    "xlm-roberta", "xlm-roberta-xl", "xmod",
})
# fmt: on


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
        A transformers model (a task head is left out, of an encoder-decoder the encoder is
        taken), or anything whose ``forward(input_ids, attention_mask)`` returns an object with
        ``last_hidden_state`` and, asked with ``output_hidden_states=True``, ``hidden_states``.
    tokenizer : callable
        A transformers tokenizer, or anything that maps a list of texts to a dict with
        ``"input_ids"``.

    Attributes
    ----------
    n_layers : int
        Number of blocks L; layers are 0 (the embedding output) to L.
    width : int
        Length of a hidden state.

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
        self.model = model
        self.tokenizer = tokenizer
        self._body = _body(model)
        # Hooks and the padding state of a fast tokenizer belong to one pass at a time.
        self._lock = threading.RLock()
        self._kept: Kept | None = None  # what a forward may not change, while a pass goes on
        self._hooks_agree: bool | None = None  # set by the first pass, see forward.py
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
            config = getattr(self._body, "config", None)
            try:
                self._shape = shape(config)
            except ValueError:
                # A stub without a config: one token tells.
                with self._computing():
                    output = self._run(*self._batch([[self._pad_id]]), all_states=True)
                states = output.hidden_states
                self._shape = len(states) - 1, int(states[-1].shape[-1])
        return self._shape

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

        tensor = next(iter(getattr(self._body, "parameters", list)()), None)
        return torch.device("cpu") if tensor is None else tensor.device

    @property
    def _pad_id(self) -> int:
        """Id written at padding, where the mask hides it. The vocabulary is never resized."""
        return self._first_id("pad_token_id", "eos_token_id")

    def _first_id(self, *names: str) -> int:
        ids = (getattr(self.tokenizer, name, None) for name in names)
        return next((int(i) for i in ids if i is not None), 0)

    def _source(self) -> Source:
        """Return what `resolve` returns for a model that is not loaded."""
        positions, fixed = position_limit(getattr(self._body, "config", None))
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
            limits = getattr(self.tokenizer, "model_max_length", None), max_positions
            limit = min((int(n) for n in limits if n is not None and n < _NO_LIMIT), default=None)
        options: dict[str, Any] = {"truncation": limit is not None, "max_length": limit}
        encoded = self.tokenizer(list(texts), padding=False, **options)
        ids: list[list[int]] = [list(row) for row in encoded["input_ids"]]
        types = encoded.get("token_type_ids")
        if types is not None and not any(map(any, types)):
            types = None  # all zero is what every model assumes
        fast = getattr(encoded, "encodings", None)
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

        wanted = {"token_type_ids": types, "use_cache": False, "return_dict": True}
        if all_states:
            wanted["output_hidden_states"] = True
        accepted = inspect.signature(self._body.forward).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        options = {
            name: value
            for name, value in wanted.items()
            if value is not None and (takes_any or name in accepted)
        }
        try:
            with torch.inference_mode():
                return self._body(input_ids=ids, attention_mask=mask.long(), **options)
        finally:
            if self._kept is not None:
                self._kept.restore()

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Hold the lock, and keep the model in evaluation mode and as it is over each forward."""
        from .identity import computing

        with self._lock, self._state().own_changes(), computing(self._body) as kept:
            before, self._kept = self._kept, kept
            try:
                yield
            finally:
                self._kept = before

    def _blocks(self) -> tuple[list[Any], bool]:
        """Return the modules whose outputs are the hidden states 1 to L, none if not found.

        And whether the model itself declares them to be; if not, the first pass must compare.
        """
        declared = _declared_blocks(self._body)
        found: list[list[Any]] = []
        for module in getattr(self._body, "modules", list)():
            if type(module).__name__ != "ModuleList" or len(module) != self.n_layers:
                continue
            blocks = list(module)
            if len(set(map(id, blocks))) == len(blocks):
                if declared and isinstance(blocks[0], declared):
                    return blocks, all(isinstance(block, declared) for block in blocks)
                found.append(blocks)
        return (found[0] if found else []), False


@dataclass(frozen=True)
class Tokens:
    """Token ids of some texts, not padded."""

    ids: list[list[int]]
    types: list[list[int]] | None
    truncated: NDArray[np.bool_]

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.fromiter(map(len, self.ids), dtype=np.int64, count=len(self.ids))


def _body(model: Any) -> Any:
    """Leave out task heads and decoders: only hidden states are wanted."""
    body = getattr(model, "base_model", None)  # a transformers model has one, a stub has not
    if body is None or not hasattr(body, "config"):
        return model
    if getattr(body.config, "is_encoder_decoder", False) and hasattr(body, "get_encoder"):
        return body.get_encoder() or body
    return body


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


def shape(config: Any) -> tuple[int, int]:
    """Return depth and width of the text part."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    depth = getattr(text, "num_hidden_layers", None)
    width = getattr(text, "hidden_size", None)
    if not isinstance(depth, int) or not isinstance(width, int):
        raise ValueError(
            "its config names no num_hidden_layers and hidden_size, so it is not known to be a "
            "language model."
        )
    return depth, width


def position_limit(config: Any) -> tuple[int | None, bool]:
    """Return the most tokens that the model takes, and whether a table of positions ends there."""
    if config is None:
        return None, False
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None, False
    if getattr(text, "model_type", "") in _OFFSET_POSITIONS:
        # MPNet's padding id is 1 whatever its config says.
        positions -= max(getattr(text, "pad_token_id", None) or 0, 1) + 1
    rotary = any(getattr(text, name, None) for name in ("rope_parameters", "rope_theta"))
    return positions, not rotary
