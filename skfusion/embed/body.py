"""Which part of a model is its body, and what its config says of it: depth, width, limit.

All by duck typing: nothing here names transformers or peft, and stubs pass through.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

# Their position ids start behind the padding id, so that the table's first rows are never used.
# fmt: off
_OFFSET_POSITIONS = frozenset({
    "altclip_text_model", "bridgetower_text_model", "camembert", "clap_text_model",
    "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm",
    "mluke", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})
# fmt: on

#: Adapters that need more than the layers that they change: an outer model routes or offsets them.
_PEFT_OUTSIDE = frozenset({"POLY", "XLORA"})

#: Types of model that cannot be used, and why.
_PICTURE = "it takes no text without a picture"
_BOXES = "it takes no text without the place of each word on a page"
_UNFIT = {
    "blt": "its layers work on patches of bytes, so that there is no state for each token",
    "bros": _BOXES,
    "canine": "its layers work on every fourth character, so that there is no state for each",
    "funnel": "its layers shorten the text on its way, so that there is no state for each token",
    "idefics": _PICTURE,
    "lxmert": _PICTURE,
    "perceiver": "its layers hold latent vectors, and no state for each token",
    "reformer": "it draws random numbers for each text, and its last layer is twice as wide",
    "udop": _BOXES,
    "vilt": _PICTURE,
    "vits": "it speaks texts, and returns sounds",
}

#: Names of modules that are tables of absolute positions.
# fmt: off
_TABLES = frozenset({
    "embed_positions", "pos_embed", "pos_emb", "position_embedding", "position_embeddings",
    "position_embeds_layer", "positions_embed", "text_position_embedding", "wpe",
})
# fmt: on


def find_body(model: Any) -> Any:
    """Return the module whose hidden states are wanted: the text part without wrappers and heads.

    Of an encoder-decoder it is the encoder, of a model of texts and images the language model.
    """
    found = [model]
    while (inner := _inside(found[-1])) is not None and all(inner is not one for one in found):
        found.append(inner)
    return found[-1]


def _inside(model: Any) -> Any:
    """Return the part of a model that stands for it, None where it is the body itself."""
    for name, wrapper in (("_orig_mod", "OptimizedModule"), ("module", "DataParallel")):
        if type(model).__name__.endswith(wrapper):
            return getattr(model, name)
    if (adapted := _without_peft(model)) is not None:
        return adapted
    config = getattr(model, "config", None)
    base = getattr(model, "base_model", None)  # a transformers model has one, a stub has not
    if base is None or config is None:
        return None
    if base is model and hasattr(model, "lm_head"):
        base = getattr(model, "model", model)  # a few heads have no name for it
    if base is not model:
        _check_head(model, base)
        return base
    if getattr(config, "is_encoder_decoder", False):
        encoder = model.get_encoder() if hasattr(model, "get_encoder") else None
        # An encoder shares the config of its model, and may call itself its encoder.
        return encoder if hasattr(encoder, "forward") else None
    text = text_config(config)
    return None if text is config else _text_part(model, text)


def _without_peft(model: Any) -> Any:
    """Return the model inside of a PEFT one, its adapters in place; None where it is none."""
    if not _is_peft(model):
        return None
    for name, adapter in (getattr(model, "peft_config", None) or {}).items():
        kind = getattr(adapter, "peft_type", None)
        kind = str(getattr(kind, "value", kind))
        if (
            kind in _PEFT_OUTSIDE
            or getattr(adapter, "is_prompt_learning", False)
            or getattr(adapter, "alora_invocation_tokens", None)
        ):
            raise ValueError(
                f"Cannot embed with this {type(model).__name__}: its adapter {name!r} ({kind}) "
                f"works from outside of the model's layers, with virtual tokens or by routing, "
                f"and their states alone are not its. Use an adapter that changes weights, such "
                f"as LoRA, or the base model."
            )
    # PeftModel holds a tuner, such as LoraModel, and that the model.
    tuner = model.base_model if _is_peft(model.base_model) else model
    return tuner.model


def _is_peft(model: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == "peft" for cls in type(model).__mro__)


def _check_head(model: Any, base: Any) -> None:
    """Refuse a head that runs its base in a way that the base alone does not."""
    ours, theirs = (inspect.signature(part.forward).parameters for part in (model, base))
    name = "is_decoder"
    if name in ours and name in theirs and ours[name].default != theirs[name].default:
        raise ValueError(
            f"Cannot embed with {type(model).__name__}: it writes texts about what another part "
            f"has seen, and its layers alone would read them in another way."
        )


def text_config(config: Any) -> Any:
    """Return the config of the text part: of an encoder-decoder that of the encoder."""
    parts = [getattr(config, name, None) for name in ("text_encoder", "encoder")]
    encoders = [part for part in parts if hasattr(part, "to_dict")]
    if encoders and hasattr(getattr(config, "decoder", None), "to_dict"):
        return text_config(encoders[0])
    if getattr(config, "is_encoder_decoder", False):
        text = getattr(config, "text_config", None)  # Florence-2's
        return text_config(text) if hasattr(text, "to_dict") else config
    if not hasattr(config, "get_text_config"):
        return config
    try:
        return config.get_text_config()
    except ValueError:  # it names several
        return getattr(config, "text_config", config)


def _text_part(model: Any, text: Any) -> Any:
    """Return the submodule that has the text part's config."""
    names = ("language_model", "text_model", "text_encoder", "text_decoder")
    parts = [getattr(model, name, None) for name in names]
    with contextlib.suppress(AttributeError, NotImplementedError):
        parts.append(model.get_decoder())
    for part in parts:
        if hasattr(part, "forward") and _same_size(getattr(part, "config", None), text):
            return part
    return None


def _same_size(config: Any, text: Any) -> bool:
    try:
        return config is not None and shape(config) == shape(text)
    except ValueError:
        return False


def check_type(config: Any) -> None:
    """Refuse the types of model whose layers have no state for each token of a text alone."""
    kind = getattr(text_config(config), "model_type", "")
    if kind in _UNFIT:
        raise ValueError(f"it is a model of type {kind!r}: {_UNFIT[kind]}.")


def shape(config: Any) -> tuple[int, int]:
    """Return depth and width of the text part."""
    text = text_config(config)
    depth = getattr(text, "decoder_layers" if _is_half(text) else "num_hidden_layers", None)
    width = getattr(text, "hidden_size", None)
    if not isinstance(depth, int) or not isinstance(width, int):
        raise ValueError(
            "its config names no num_hidden_layers and hidden_size, so it is not known to be a "
            "language model."
        )
    # These look at a picture, and are left out where there is none.
    return depth - len(getattr(text, "cross_attention_layers", None) or ()), width


def _is_half(config: Any) -> bool:
    """Whether it is a decoder alone whose config still speaks of an encoder, such as BART's."""
    both = getattr(config, "is_encoder_decoder", False) or not hasattr(config, "encoder_layers")
    return bool(getattr(config, "is_decoder", False)) and not both


def position_limit(config: Any) -> tuple[int | None, bool]:
    """Return the most tokens that the model takes, and whether a table of positions ends there."""
    if config is None:
        return None, False
    text = text_config(config)
    part = "decoder" if _is_half(text) else "encoder"
    names = (f"max_{part}_position_embeddings", "max_position_embeddings", "max_seq_len")
    limits = (getattr(text, name, None) for name in names)
    positions = next((n for n in limits if isinstance(n, int) and n > 0), None)
    if positions is None:
        return None, False
    if getattr(text, "model_type", "") in _OFFSET_POSITIONS:
        # MPNet's padding id is 1 whatever its config says.
        positions -= max(getattr(text, "pad_token_id", None) or 0, 1) + 1
    rotary = any(getattr(text, name, None) for name in ("rope_parameters", "rope_theta"))
    return positions, not rotary


def table_rows(body: Any) -> int | None:
    """Return for how many tokens the table of positions has rows; None without one."""
    rows = []
    for name, module in getattr(body, "named_modules", {}.items)():
        weight: Any = getattr(module, "weight", None)
        if name.rpartition(".")[2] in _TABLES and getattr(weight, "ndim", 0) == 2:
            padding = getattr(module, "padding_idx", None)  # the first token's row is behind it
            rows.append(len(weight) - (0 if padding is None else padding + 1))
    return max(rows, default=None)  # a picture's table is smaller
