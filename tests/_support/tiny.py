"""Tiny random models and tokenizers, built from configs: one for every kind the rules speak of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    MambaConfig,
    MambaModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

# fmt: off
WORDS = [
    "the", "a", "good", "bad", "film", "plot", "was", "is", "not", "very", "funny", "dull",
    "bright", "dark", "slow", "fast", "actor", "scene", "music", "ending", "story", "long",
    "short", "clear", "vague", "warm", "cold", "one", "two", "three", *"0123456789.,-+e",
]
# fmt: on
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
WIDTH = 16
DEPTH = 3
POSITIONS = 64


def make_tokenizer(
    *, side: str = "right", ends: bool = True, pad: bool = True, limit: float = 1e30
) -> PreTrainedTokenizerFast:
    """A word tokenizer that splits what it does not know into characters.

    `ends` puts <s> and </s> around a text, as encoders have it; without it "" has no token.
    """
    letters = [chr(i) for i in range(33, 127)]
    vocabulary = {
        word: i for i, word in enumerate(dict.fromkeys([*SPECIAL, *letters, *WORDS, "##"]))
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.Digits(True),
        ]
    )
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
        )
    options: dict[str, Any] = {"pad_token": "<pad>"} if pad else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        padding_side=side,
        model_max_length=limit,
        **options,
    )


def sizes(**more: Any) -> dict[str, Any]:
    """Arguments that every config takes."""
    return {"vocab_size": 160, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, **more}


def usual(**more: Any) -> dict[str, Any]:
    """Arguments that most configs take, under the names they share."""
    shared = {
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": POSITIONS,
    }
    return sizes(**shared | more)


def _llama() -> Any:
    return LlamaModel(LlamaConfig(**usual(num_key_value_heads=1)))


def _bert() -> Any:
    return BertModel(BertConfig(**usual()))


def _gpt2() -> Any:
    return GPT2Model(
        GPT2Config(**sizes(n_embd=WIDTH, n_layer=DEPTH, n_head=2, n_positions=POSITIONS))
    )


def _gemma3() -> Any:
    # One full layer among sliding ones, with a window shorter than the texts.
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3TextModel(
        Gemma3TextConfig(
            **usual(num_key_value_heads=1, head_dim=8, sliding_window=4, layer_types=kinds)
        )
    )


def _mpnet() -> Any:
    return MPNetModel(MPNetConfig(**usual(relative_attention_num_buckets=32)))


def _t5() -> Any:
    return T5EncoderModel(
        T5Config(**sizes(d_model=WIDTH, num_layers=DEPTH, num_heads=2, d_kv=8, d_ff=24))
    )


def _albert() -> Any:
    return AlbertModel(AlbertConfig(**usual(embedding_size=8)))


def _mamba() -> Any:
    return MambaModel(
        MambaConfig(**sizes(hidden_size=WIDTH, num_hidden_layers=DEPTH, state_size=4))
    )


MODELS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "bert": _bert,
    "gpt2": _gpt2,
    "gemma3": _gemma3,
    "mpnet": _mpnet,
    "t5": _t5,
    "albert": _albert,
    "mamba": _mamba,
}
HOOKED = ["llama", "bert", "gpt2", "gemma3", "mpnet", "t5"]


def make_model(kind: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model with random weights, large enough that a wrong mask shows, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MODELS[kind]()
        randomise(model)
    return model.to(dtype).eval()


def skip_without_states(model: Any) -> None:
    """Skip where this transformers gives no hidden states of a part that is called alone."""
    output = model(input_ids=torch.tensor([[2, 3]]), output_hidden_states=True)
    if not output.hidden_states:
        pytest.skip("transformers 5.0 gives no hidden states of CLIP's text part alone")


def randomise(model: Any) -> None:
    """Draw weights that are large enough for a wrong mask to show."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3 if "embed" not in name else 1.0)


def save_folder(
    folder: Path,
    kind: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **tok: Any,
) -> Path:
    """Write a tiny model and its tokenizer as ``save_pretrained`` does."""
    make_model(kind, seed=seed, dtype=dtype).save_pretrained(folder)
    make_tokenizer(**tok).save_pretrained(folder)
    return folder


def tiny_texts(n: int, seed: int = 0) -> list[str]:
    """Make `n` different texts of at most eleven words, the first of them empty."""
    rng = np.random.default_rng(seed)
    made: dict[str, None] = {"": None}
    while len(made) < n:
        made[" ".join(rng.choice(WORDS[:26], size=rng.integers(1, 12)))] = None
    return list(made)


def letters(n: int) -> tuple[list[str], np.ndarray]:
    """Texts of like letters, of the alphabet's first half or of its second; all different."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    draw = [rng.choice(list("abcdefgh" if label else "opqrstuv"), size=6) for label in y]
    return ["".join(row) for row in draw], y
