"""A model is what it computes now: kept as it is over a pass, and another one once it changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from _support import tiny
from _support.doubles import LengthTokenizer, stub
from _support.tiny import tiny_texts
from transformers import (
    BigBirdConfig,
    BigBirdModel,
    LlamaConfig,
    LlamaModel,
    OPTConfig,
    OPTModel,
    Phi3Config,
    Phi3Model,
)

from skfusion import Backbone, LLMLayerEmbedder, VectorStore
from skfusion.embed.identity import computing

TEXTS = tiny_texts(7)
MIDDLE = " ".join(tiny.WORDS[:20])
LONG = " ".join(tiny.WORDS[:26] * 2)


def backbone_of(model: Any) -> Backbone:
    return Backbone(model, tiny.make_tokenizer())


def seeded(make: Any) -> Any:
    """Build a model whose weights are large enough that a change shows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=0.3)
    return model.eval()


def vectors(backbone: Backbone, texts: list[str] = TEXTS, **options: Any) -> np.ndarray:
    """Embed by a pass, whatever is stored already."""
    memory = VectorStore(dtype="float32")
    memory.clear()
    return LLMLayerEmbedder(backbone, memory=memory, **options).fit_transform(texts)


def big_bird() -> Any:
    options = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}
    usual = {**tiny.usual(), "max_position_embeddings": 128}
    return BigBirdModel(BigBirdConfig(**usual, **options))


def dynamic_rope() -> Any:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
    usual = {**tiny.usual(num_key_value_heads=1), "max_position_embeddings": 16}
    return LlamaModel(LlamaConfig(**usual, rope_parameters=rope))


def long_rope() -> Any:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 4,
        "long_factor": [8.0] * 4,
    }
    return Phi3Model(Phi3Config(**tiny.usual(num_key_value_heads=1), rope_parameters=rope))


def opt() -> Any:
    sizes = {**tiny.usual(), "ffn_dim": 24, "word_embed_proj_dim": tiny.WIDTH}
    return OPTModel(OPTConfig(**sizes, layerdrop=0.9))


ORDERED = {"big_bird": big_bird, "dynamic_rope": dynamic_rope, "long_rope": long_rope}


# --- a pass leaves the model as it was --------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: tiny.make_model("bert"), opt], ids=["bert", "opt"])
def test_a_model_in_train_mode_is_embedded_as_in_evaluation_mode(make):
    model = seeded(make)
    expected = vectors(backbone_of(model))
    model.train()
    np.testing.assert_array_equal(vectors(backbone_of(model)), expected)
    assert all(module.training for module in model.modules())


def test_every_flag_is_put_back_as_it_was():
    model = tiny.make_model("bert").train()
    model.encoder.layer[1].eval()
    model.embeddings.dropout.eval()
    flags = [module.training for module in model.modules()]
    vectors(backbone_of(model))
    assert [module.training for module in model.modules()] == flags


def test_flags_are_put_back_after_an_error():
    def fail(*args: Any) -> None:
        raise RuntimeError("stop")

    backbone = stub(fail)
    backbone.model.train()
    with pytest.raises(RuntimeError, match="stop"):
        LLMLayerEmbedder(backbone, layer=1).fit_transform(["a"])
    assert backbone.model.training


@pytest.mark.parametrize("kind", ORDERED)
def test_no_order_of_texts_changes_a_vector(kind):
    texts = [TEXTS[1], MIDDLE, LONG]
    cut = {"max_length": 60}
    alone = [vectors(backbone_of(seeded(ORDERED[kind])), [text], **cut) for text in texts]
    for order in ((0, 1, 2), (2, 1, 0)):
        backbone = backbone_of(seeded(ORDERED[kind]))
        for i in order:
            np.testing.assert_allclose(vectors(backbone, [texts[i]], **cut), alone[i], atol=1e-5)


def test_what_transformers_hangs_on_a_model_stays():
    model = tiny.make_model("llama")
    ids = torch.ones(1, 3, dtype=torch.long)
    hung = []
    with computing(model) as kept:
        for _ in range(3):
            model(input_ids=ids, output_hidden_states=True)
            kept.restore()
            hung.append(sum(len(module._forward_hooks) for module in model.modules()))
    assert len(set(hung)) == 1


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self) -> None:
        self.n += 1


class Changing(torch.nn.Module):
    """Does to itself what models do: what it returns depends on all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1), persistent=False)
        self.register_buffer("shift", torch.zeros(1))
        self.kind, self.size, self.limit, self.kept = "sparse", 1.0, 2, None
        self.calls = Counter()

    def forward(
        self, input_ids: Any, attention_mask: Any, output_hidden_states: Any = None
    ) -> Any:
        factor = self.scale * self.size * self.limit * getattr(self, "added", 1)
        factor = factor * (1 if self.kind == "sparse" else 2) * (1 if self.kept is None else 2)
        state = input_ids.float()[..., None] * factor + self.shift
        self.register_buffer("scale", self.scale * 2, persistent=False)
        self.shift += 1
        self.kind, self.size, self.limit, self.added = "full", 3.0, 7, 5
        self.kept = (factor,)
        self.calls()
        return SimpleNamespace(last_hidden_state=state, hidden_states=(state, state))


def test_plain_attributes_and_buffers_are_put_back_and_a_counter_counts():
    model = Changing()
    scale = model.scale
    ids = torch.ones(1, 2)
    with computing(model) as kept:
        made = []
        for _ in range(3):
            made.append(model(ids, ids).last_hidden_state)
            kept.restore()
    assert all(torch.equal(state, made[0]) for state in made)
    assert model.calls.n == 3
    assert model.scale is scale
    assert not hasattr(model, "added")
    backbone = Backbone(model, LengthTokenizer())
    X = vectors(backbone, ["abc"])
    np.testing.assert_array_equal(vectors(backbone, ["b", "abc"])[1:], X)


def test_a_buffer_made_in_inference_mode_is_put_back():
    with torch.inference_mode():
        model = Changing()
    ids = torch.ones(1, 2)
    with torch.inference_mode(), computing(model) as kept:
        first = model(ids, ids).last_hidden_state
        kept.restore()
        assert torch.equal(model(ids, ids).last_hidden_state, first)


def test_a_body_that_is_no_module():
    class Plain:
        def __init__(self) -> None:
            self.inner = Changing().train()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.inner(input_ids, attention_mask)

        __call__ = forward

    plain = Plain()
    ids = torch.ones(1, 2)
    with computing(plain) as kept:
        first = plain(ids, ids).last_hidden_state
        assert not plain.inner.training
        kept.restore()
        assert torch.equal(plain(ids, ids).last_hidden_state, first)
    assert plain.inner.training
    with computing(lambda: None) as kept:
        kept.restore()
