"""How a model can be run so that each text's vectors are its own: found out once, by short texts.

Imported when a model runs, for it imports torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .backbone import Backbone
from .body import position_limit
from .shards import Column

#: Ways to make batches, from the fastest to the one that is always right.
_WAYS = ("padded", "equal", "single")
#: Largest change of a token's state, relative to its norm, that is rounding. On a CPU it is 3e-6
#: over 60 families, in float16 4e-3, in bfloat16 3e-2; what padding changes, it changes by 2e-1
#: and more. A GPU may compute float32 by TF32, with the error of float16.
_ROUNDING = {torch.float16: 0.02, torch.bfloat16: 0.1}
_ROUNDING_CPU, _ROUNDING_GPU = 1e-4, 0.02

_TEXT = "The quick brown fox jumps over the lazy dog, and nobody has seen where it went then."
_SHORT, _LONG = 5, 16


@dataclass(frozen=True)
class Probe:
    """What short texts showed of a model."""

    identity: str  # of the model that was looked at
    hooks: bool  # its blocks return the hidden states that it gives when asked for all
    last: str  # where layer L is read: "output", else "state" or "block", before a projection
    unusable: Mapping[int, str] = field(default_factory=dict)  # layers, and what is wrong
    batching: str = "padded"  # or of texts of "equal" length, or a "single" text at a time
    seeded: bool = False  # it draws random numbers, from the same seed for each batch then


def look(backbone: Backbone, identity: str | None = None) -> Probe:
    """Return what is known of a model, looking at it on first use and after it has changed."""
    with backbone._lock:
        known = backbone._probe
        if known is None or identity not in (None, known.identity):
            identity = identity or backbone._identity()
            with backbone._computing(), torch.inference_mode(), seeded(backbone):
                known = backbone._probe = _Look(backbone).find_out(identity)
        return known


def usable_columns(
    backbone: Backbone, identity: str, asked: Sequence[Column], computed: Sequence[Column]
) -> list[Column]:
    """Leave out the layers that cannot be pooled, unless they are asked for: a ValueError."""
    unusable = look(backbone, identity).unusable
    for layer, _ in asked:
        if layer in unusable:
            raise unusable_layer(backbone, layer, unusable[layer], unusable)
    return [column for column in computed if column[0] not in unusable]


def unusable_layer(
    backbone: Backbone, layer: int, reason: str, unusable: Mapping[int, str]
) -> ValueError:
    """Return an error that says which layers can be used instead."""
    others = [k for k in range(backbone.n_layers + 1) if k != layer and k not in unusable]
    return ValueError(
        f"Layer {layer} of {backbone!r} cannot be pooled: {reason}. Layers that can be used: "
        f"{', '.join(map(str, others)) or 'none'}. Choose among them with layer= (and, where all "
        f"layers are looked at, with memory=VectorStore(..., layers=[...]))."
    )


@contextlib.contextmanager
def seeded(backbone: Backbone) -> Iterator[None]:
    """Draw random numbers from the same seed, and leave torch's generators as they were."""
    on_gpu = backbone._device.type == "cuda"
    with torch.random.fork_rng(devices=range(torch.cuda.device_count() if on_gpu else 0)):
        torch.default_generator.manual_seed(0)
        if on_gpu:
            torch.cuda.manual_seed_all(0)
        yield


@contextlib.contextmanager
def tapped(blocks: Sequence[Any], see: Callable[[int, Any], None], n: int) -> Iterator[None]:
    """Hand on what enters the first block, as layer 0, and what the first `n` return."""

    def first(output: Any) -> Any:
        return output[0] if isinstance(output, tuple | list) and output else output

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(0, args[0] if args else kwargs.get("hidden_states"))

    with contextlib.ExitStack() as handles:
        handles.callback(blocks[0].register_forward_pre_hook(before, with_kwargs=True).remove)
        for k, block in enumerate(blocks[:n], start=1):

            def after(module: Any, args: Any, output: Any, k: int = k) -> None:
                see(k, first(output))

            handles.callback(block.register_forward_hook(after).remove)
        yield


def all_states(backbone: Backbone, output: Any) -> list[Tensor]:
    """Return the hidden states of an output; their number must be as the config says."""
    found = getattr(output, "hidden_states", None)
    states = [] if found is None else list(found)
    depth = backbone.n_layers
    if not states:
        raise ValueError(
            f"{backbone!r} returns no hidden_states when asked for them with "
            f"output_hidden_states=True. Give it a forward that does, as transformers models have."
        )
    if len(states) != depth + 1:
        raise ValueError(
            f"{backbone!r} returns {len(states)} hidden states, but its config says {depth} "
            f"layers (hence {depth + 1} states), so that it is not known which is which. Give a "
            f"Backbone whose model returns one state before and one behind each block."
        )
    return states


def last_state(output: Any) -> Any:
    """Return the state behind the last block and norm, None where there is none."""
    return getattr(output, "last_hidden_state", None)


def real_tokens(state: Any, shape: tuple[int, int, int], last: Any) -> Tensor | None:
    """Return a hidden state without what the model has padded inside, None if it is no such.

    `shape` is what a state of this batch has. A model that pads to whole blocks does so on the
    right, and leaves the padding out of its last state.
    """
    rows, n_tokens, width = shape
    if not isinstance(state, Tensor) or state.dim() != 3:
        return None
    if state.shape[0] != rows or state.shape[2] != width:
        return None
    if state.shape[1] != n_tokens:
        whole = isinstance(last, Tensor) and last.dim() == 3 and last.shape[1] == n_tokens
        if state.shape[1] < n_tokens or not whole:
            return None
    return state[:, :n_tokens]


def misshapen(state: Any, shape: tuple[int, int, int]) -> str:
    """Say what a state is that cannot be pooled, and what it should be."""
    found = f"shape {tuple(state.shape)}" if isinstance(state, Tensor) else type(state).__name__
    return (
        f"its state is of {found}, where {shape[0]} texts of {shape[1]} tokens and width "
        f"{shape[2]} need the shape {shape}"
    )


class _Look:
    """One look at a model: a short text alone, and beside others."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.text, self.mate, self.longer = _rows(backbone)
        self.shape = (1, len(self.text), backbone.width)
        self.depth = backbone.n_layers
        self.unusable: dict[int, str] = {}
        self.alone: dict[tuple[int, ...], list[Tensor]] = {}  # by ids, a text's states

    def find_out(self, identity: str) -> Probe:
        """Run the text alone, and then as often as is needed."""
        before = self._random_state()
        output, seen = self._watched()
        drew = not torch.equal(before, self._random_state())
        states, last = all_states(self.backbone, output), last_state(output)
        hooks = self._agree(seen, states)
        # Layer L is the model's own output where its width is that of the others.
        ends = {"output": last, "state": states[-1], "block": seen[-1][1] if hooks else None}
        fit = [where for where, state in ends.items() if self._fits(state, last)]
        where = fit[0] if fit else "output"
        states[-1] = ends[where]
        self.unusable = {
            k: misshapen(state, self.shape)
            for k, state in enumerate(states)
            if not self._fits(state, last)
        }
        self.alone[tuple(self.text)] = self._row(output, 0, self.text)
        batching = self._batching(drew)
        return Probe(
            identity,
            hooks=hooks and where != "state",
            last=where,
            unusable=self.unusable,
            batching=batching,
            seeded=drew or batching == "single",
        )

    def _watched(self) -> tuple[Any, list[tuple[int, Any]]]:
        """Run the text alone; what its blocks return is watched where that works."""
        seen: list[tuple[int, Any]] = []

        def see(layer: int, value: Any) -> None:
            # A copy, for a later block may write into it.
            seen.append((layer, value.clone() if isinstance(value, Tensor) else value))

        with contextlib.suppress(Exception), tapped(self.backbone._blocks(), see, self.depth):
            return self._run([self.text]), seen
        return self._run([self.text]), []  # without hooks it may work; if not, this says why

    def _agree(self, seen: list[tuple[int, Any]], states: Sequence[Any]) -> bool:
        """Whether the blocks, each called once, returned what the model itself says."""
        try:
            return [k for k, _ in seen] == list(range(len(states))) and all(
                torch.equal(value, states[k]) for k, value in seen[:-1]
            )
        except Exception:  # what cannot be compared does not agree: dicts, other devices, None
            return False

    def _batching(self, drew: bool) -> str:
        """Return how batches must be made for the texts to be as each is alone."""
        way = _by_config(self.backbone)
        if drew and not _same(torch.equal, self._text(), self.alone[tuple(self.text)]):
            way = "single"
        if way == "padded" and not self._as_alone([self.text, self.longer]):
            way = "equal"
        if way == "equal" and not self._as_alone([self.text, self.mate]):
            way = "single"
        if way == "single" and not _same(_is_close, self._seeded(), self._seeded()):
            raise ValueError(
                f"{self.backbone!r} returns other hidden states each time for the same text, so "
                f"that its vectors would mean nothing. Switch off what is random in it (dropout, "
                f"sampling, noise), or let its forward set a seed of its own."
            )
        return way

    def _run(self, rows: list[list[int]]) -> Any:
        return self.backbone._run(*self.backbone._batch(rows), all_states=True)

    def _as_alone(self, rows: list[list[int]]) -> bool:
        """Whether texts are in one batch as each is alone, up to rounding."""
        try:
            for row in rows:
                if tuple(row) not in self.alone:
                    self.alone[tuple(row)] = self._row(self._run([row]), 0, row)
            output = self._run(rows)
            return all(
                _same(_is_close, self.alone[tuple(row)], self._row(output, i, row))
                for i, row in enumerate(rows)
            )
        except (LookupError, MemoryError, RuntimeError, ValueError):  # it cannot be run
            return False

    def _text(self) -> list[Tensor]:
        return self._row(self._run([self.text]), 0, self.text)

    def _seeded(self) -> list[Tensor]:
        with seeded(self.backbone):
            return self._text()

    def _fits(self, state: Any, last: Any) -> bool:
        return real_tokens(state, self.shape, last) is not None

    def _row(self, output: Any, i: int, ids: list[int]) -> list[Tensor]:
        """Return the real tokens of one text in all states that can be used."""
        inner = all_states(self.backbone, output)[:-1]
        states = [s for k, s in enumerate(inner) if k not in self.unusable] + [last_state(output)]
        return [s[i, : len(ids)] for s in states if isinstance(s, Tensor)]

    def _random_state(self) -> Tensor:
        device = self.backbone._device
        return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _same(close: Callable[[Tensor, Tensor], bool], one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(close, one, other))


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    exact = one.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    tolerance = _ROUNDING.get(one.dtype, _ROUNDING_CPU if exact else _ROUNDING_GPU)
    one, other = one.float(), other.to(one.device).float()
    same = (one == other) | (one.isnan() & other.isnan())
    change = torch.linalg.vector_norm((one - other).masked_fill(same, 0.0), dim=-1)
    return bool((change <= tolerance * torch.linalg.vector_norm(one, dim=-1) + 1e-12).all())


def _rows(backbone: Backbone) -> tuple[list[int], list[int], list[int]]:
    """Return token ids of a short text, of another that is as long, and of a longer one."""
    valid, n = backbone._vocabulary, _SHORT + _LONG
    try:
        found = backbone._tokenize([_TEXT], None, None).ids[0]
    except Exception:  # a tokenizer of another language than ours
        found = []
    # All different, or nothing would show: it may be <unk> that a tokenizer makes of each word.
    ids = [i for i in dict.fromkeys(found) if valid is None or 0 <= i < valid]
    if len(ids) < n and valid is not None:
        special = getattr(backbone.tokenizer, "all_special_ids", ())
        spread = (i * valid // (2 * n) for i in range(2 * n))
        ids = list(dict.fromkeys([*ids, *(i for i in spread if i not in special)]))
    ids = (ids or [0, 1]) * n
    limits = position_limit(backbone._config)[0], backbone._table_rows
    limit = min((n for n in limits if n is not None), default=_LONG)
    short, long = max(1, min(_SHORT, limit - 1)), min(_LONG, limit)
    return ids[:short], ids[short : 2 * short], ids[short : short + long]


def _by_config(backbone: Backbone) -> str:
    """Return the way of batches that a model asks for, where a short text cannot show it."""
    modules: Any = getattr(backbone._body, "modules", list)()
    if any("quantized.dynamic" in type(module).__module__ for module in modules):
        return "single"  # the scale of its activations is that of the whole batch
    config: Any = backbone._config
    parts = _parts(config.to_dict() if hasattr(config, "to_dict") else {})
    return max(map(_by_part, parts), key=_WAYS.index)


def _by_part(part: Mapping[str, Any]) -> str:
    # Hashes, outliers, the scale of activations and full experts: by all tokens of a batch.
    if (
        "lsh" in (part.get("attn_layers") or ())
        or part.get("load_in_8bit")
        or (part.get("strategy") == "tensor" and part.get("dynamic"))
        or part.get("moe_eval_capacity_token_fraction", 1) != 1
    ):
        return "single"
    # Frequencies are chosen, blocks made and ties broken by the length of the longest text.
    rope = str(part.get("rope_type", part.get("type")))
    if (
        "dynamic" in rope
        or rope in ("longrope", "su")
        or part.get("use_dynamic_ntk")
        or part.get("attention_type") == "block_sparse"
        or part.get("index_topk") is not None
        or part.get("keep_window_size") is not None
    ):
        return "equal"
    return "padded"


def _parts(settings: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a config and all that is nested in it."""
    if isinstance(settings, Mapping):
        yield settings
        settings = list(settings.values())
    if isinstance(settings, list | tuple):
        for part in settings:
            yield from _parts(part)
