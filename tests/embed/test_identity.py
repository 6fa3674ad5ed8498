"""A model is what it computes now: kept as it is over a pass, and another one once it changes."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import accelerate
import numpy as np
import peft
import pytest
import torch
from _support import tiny
from _support.doubles import LengthTokenizer, stub
from _support.processes import run_python
from _support.tiny import tiny_texts
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AttentionInterface,
    BigBirdConfig,
    BigBirdModel,
    LlamaConfig,
    LlamaModel,
    MixtralConfig,
    MixtralModel,
    OPTConfig,
    OPTModel,
    Phi3Config,
    Phi3Model,
)

from skfusion import Backbone, LLMLayerEmbedder, VectorStore
from skfusion.embed import identity as identities
from skfusion.embed.description import checksum
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


def mixtral() -> Any:
    return MixtralModel(MixtralConfig(**tiny.usual(num_key_value_heads=1, num_local_experts=2)))


ORDERED = {"big_bird": big_bird, "dynamic_rope": dynamic_rope, "long_rope": long_rope}
FAST = {"bert", "gemma3", "t5", "albert", "mixtral", "long_rope"}
KINDS: dict[str, Callable[[], Any]] = {
    **{kind: functools.partial(tiny.make_model, kind) for kind in tiny.MODELS},
    **ORDERED,
    "mixtral": mixtral,
}

#: All kinds, of which the fast lane takes those that differ most.
EVERY_KIND = [
    pytest.param(kind, marks=[] if kind in FAST else [pytest.mark.slow]) for kind in KINDS
]


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


def test_a_model_embedded_under_autocast_computes_as_always():
    backbone = backbone_of(tiny.make_model("bert"))
    expected = vectors(backbone)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_array_equal(vectors(backbone), expected)


def test_a_model_can_still_be_pickled_after_a_pass():
    model = tiny.make_model("albert")
    vectors(backbone_of(model))
    pickle.dumps(model)


# --- the same model is the same ---------------------------------------------------------------


def identity_of(model: Any) -> str:
    return backbone_of(model)._identity()


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_no_pass_changes_what_a_model_is(kind):
    model = seeded(KINDS[kind])
    backbone = backbone_of(model)
    before = backbone._identity()
    for texts in (TEXTS, [LONG, "a"], TEXTS):
        vectors(backbone, texts, max_length=60)
        assert backbone._identity() == before
    model.train()
    assert backbone._identity() == before
    assert identity_of(model) == before


@pytest.mark.parametrize("kind", ["bert", "t5", "mixtral", "long_rope"])
def test_what_a_user_runs_leaves_a_model_what_it_is(kind):
    model = seeded(KINDS[kind])
    before = identity_of(model)
    for length in (3, 20):
        ids = torch.ones(1, length, dtype=torch.long)
        model(input_ids=ids, output_hidden_states=True)
        assert identity_of(model) == before


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_copy_is_the_same_model_however_it_was_made(kind, tmp_path):
    model = seeded(KINDS[kind])
    before = identity_of(model)
    vectors(backbone_of(model), [LONG, "a"], max_length=60)
    assert identity_of(copy.deepcopy(model)) == before
    assert identity_of(pickle.loads(pickle.dumps(model))) == before
    model.save_pretrained(tmp_path)
    assert identity_of(model) == before
    assert identity_of(type(model).from_pretrained(tmp_path)) == before
    assert identity_of(seeded(KINDS[kind])) == before


@pytest.mark.slow
def test_another_process_sees_the_same_model_and_no_hook_of_this_one():
    made = run_python(f"{ELSEWHERE}\nprint(*identities())", PYTHONHASHSEED="7").split()
    here: dict[str, Any] = {}
    exec(ELSEWHERE, here)
    *models, hooked = here["identities"]()
    assert made[:-1] == models
    assert made[-1] != hooked


ELSEWHERE = """
from _support import tiny
from skfusion import Backbone

def identities():
    kinds = ["bert", "gemma3", "t5"]
    backbones = [Backbone(tiny.make_model(kind), tiny.make_tokenizer()) for kind in kinds]
    made = [backbone._identity() for backbone in backbones]
    backbones[0].model.register_forward_hook(hook)
    return [*made, backbones[0]._identity()]

def hook(module, args, output):
    return output
"""


def shift(module: Any, args: Any, output: Any) -> Any:
    return output


# --- a changed model is another one -----------------------------------------------------------


def _weights(model: Any) -> torch.Tensor:
    return model.embeddings.word_embeddings.weight


def _data(model: Any) -> None:
    _weights(model).data[7, 3] += 1


def _numpy(model: Any) -> None:
    _weights(model).detach().numpy()[7, 3] += 1


def _swapped_rows(model: Any) -> None:
    rows = _weights(model).data
    rows[[5, 9]] = rows[[9, 5]]


def _signs(model: Any) -> None:
    _weights(model).data[5].neg_()


def _last_bit(model: Any) -> None:
    _weights(model).detach().numpy().view(np.int32)[-1, -1] ^= 1


def _buffer(model: Any) -> None:
    model.embeddings.position_ids[0, 2] = 3


def _no_grad(model: Any) -> None:
    with torch.no_grad():
        _weights(model).mul_(3)


def _attribute(model: Any) -> None:
    model.encoder.layer[1].attention.self.scaling *= 2


def _dropped_attribute(model: Any) -> None:
    model.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.ReLU()


def _attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def _config(model: Any) -> None:
    model.config.is_decoder = True


def _hook(model: Any) -> None:
    model.encoder.layer[1].register_forward_hook(lambda module, args, output: output * 2)


def _pre_hook(model: Any) -> None:
    model.encoder.layer[1].register_forward_pre_hook(lambda module, args: None)


def _partial(model: Any) -> None:
    model.register_forward_hook(functools.partial(shift))


def _forward(model: Any) -> None:
    layer = model.encoder.layer[1]
    forward = layer.forward
    layer.forward = lambda *args, **options: forward(*args, **options)


def _class(model: Any) -> None:
    layer = type(model.encoder.layer[1])

    class Other(layer):
        def forward(self, *args: Any, **options: Any) -> Any:
            return super().forward(*args, **options)

    model.encoder.layer[1].__class__ = Other


def _parametrized(model: Any) -> None:
    class Double(torch.nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight * 2

    torch.nn.utils.parametrize.register_parametrization(model.pooler.dense, "weight", Double())


CHANGES = [
    *(_data, _numpy, _swapped_rows, _signs, _last_bit, _buffer, _no_grad),
    *(_attribute, _dropped_attribute, _attention, _config),
    *(_hook, _pre_hook, _partial, _forward, _class, _parametrized),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_another_one(change):
    model = tiny.make_model("bert")
    backbone = backbone_of(model)
    embedder = LLMLayerEmbedder(backbone).fit(TEXTS)
    before = backbone._identity()
    change(model)
    assert backbone._identity() != before
    with pytest.raises(ValueError, match="Call fit again"):
        embedder.transform(["something new"])


@pytest.mark.parametrize("change", [_attribute, _hook, _no_grad, _forward])
def test_stored_vectors_of_what_a_model_was_are_not_served(change):
    model = tiny.make_model("bert")
    embedder = LLMLayerEmbedder(backbone_of(model))
    before = embedder.fit_transform(TEXTS)
    change(model)
    with pytest.raises(ValueError, match="Call fit again"):
        embedder.transform(TEXTS)
    changed = embedder.fit_transform(TEXTS)
    assert change is _forward or np.abs(changed - before).max() > 0.01


def test_weights_written_between_two_fits_are_seen():
    model = tiny.make_model("bert")
    embedder = LLMLayerEmbedder(backbone_of(model))
    before = embedder.fit_transform(TEXTS)
    model.encoder.layer[2].output.dense.weight.data.mul_(2)
    after = embedder.fit_transform(TEXTS)
    np.testing.assert_array_equal(after, vectors(backbone_of(model)).astype(np.float16))
    assert np.abs(after - before).max() > 0.1


def test_of_a_large_model_samples_are_looked_at(monkeypatch):
    monkeypatch.setattr(identities, "_LOOKED_AT", 2**16)
    model = torch.nn.Linear(512, 512)
    backbone = Backbone(model, LengthTokenizer())
    known = {backbone._identity()}
    model.weight.data.mul_(2)
    known.add(backbone._identity())
    with torch.no_grad():
        model.weight[2, 3] += 1
    known.add(backbone._identity())
    model.bias.data[3] += 1
    known.add(backbone._identity())
    assert len(known) == 4


@given(st.data())
def test_a_checksum_sees_every_bit_and_the_order_of_rows(data):
    rows, width = data.draw(st.integers(2, 300)), data.draw(st.integers(1, 300))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    array = rng.normal(size=(rows, width)).astype(np.float32)
    before = checksum(torch.from_numpy(array.copy()))
    assert checksum(torch.from_numpy(array)) == before
    bit = data.draw(st.integers(0, 31))
    i, j = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, width - 1))
    array.view(np.uint32)[i, j] ^= np.uint32(1 << bit)
    assert checksum(torch.from_numpy(array)) != before
    array.view(np.uint32)[i, j] ^= np.uint32(1 << bit)
    other = (i + data.draw(st.integers(1, rows - 1))) % rows
    array[[i, other]] = array[[other, i]]
    assert checksum(torch.from_numpy(array)) != before


def quantized(seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = tiny.make_model("bert", seed=0)
        model.encoder.layer[0].output.dense.weight.data.mul_(1 + seed)
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})


def test_int8_weights_are_part_of_a_model():
    assert identity_of(quantized(1)) == identity_of(quantized(1))
    assert identity_of(quantized(1)) != identity_of(quantized(0))


def test_weights_without_data_are_refused():
    with torch.device("meta"):
        model = tiny.MODELS["bert"]()
    with pytest.raises(ValueError, match="meta device"):
        LLMLayerEmbedder(backbone_of(model)).fit(["a"])


def test_a_model_that_accelerate_has_dispatched_is_the_same():
    model = tiny.make_model("llama")
    before, expected = identity_of(model), vectors(backbone_of(model))
    accelerate.hooks.add_hook_to_module(model, accelerate.hooks.ModelHook())
    accelerate.hooks.attach_align_device_hook(model, torch.device("cpu"))
    backbone = backbone_of(model)
    assert backbone._identity() == before
    np.testing.assert_array_equal(vectors(backbone), expected)
    assert backbone._identity() == before


@pytest.mark.parametrize("name", ["BertLayer.forward", "apply_chunking_to_forward"])
def test_a_library_that_was_patched_makes_another_model(monkeypatch, name):
    from transformers.models.bert import modeling_bert

    backbone = backbone_of(tiny.make_model("bert"))
    before = backbone._identity()
    owner, _, function = f"modeling_bert.{name}".rpartition(".")
    owner = {"modeling_bert": modeling_bert}.get(owner) or modeling_bert.BertLayer
    monkeypatch.setattr(owner, function, lambda *args, **options: None)
    assert backbone._identity() != before
    monkeypatch.undo()
    assert backbone._identity() == before


def test_an_attention_function_is_part_of_the_models_that_use_it(monkeypatch):
    model, other = tiny.make_model("bert"), tiny.make_model("bert")
    before, known = identity_of(other), []
    for factor in (1.0, 2.0):
        function = lambda *args, factor=factor, **options: None  # noqa: E731
        monkeypatch.setitem(AttentionInterface._global_mapping, "tests", function)
        model.set_attn_implementation("tests")
        known.append(identity_of(model))
    assert known[0] != known[1]
    assert identity_of(other) == before


class Plain:
    """No module, but it holds one."""

    def __init__(self) -> None:
        self.inner = tiny.make_model("bert")
        self.factor = 2

    def forward(self, **options: Any) -> Any:
        return self.inner(**options)

    __call__ = forward


def test_of_a_body_that_is_no_module_all_that_it_holds_counts():
    body = Plain()
    known = [identity_of(body)]
    assert identity_of(Plain()) == known[0]
    body.inner.encoder.layer[0].output.dense.weight.data[0, 0] += 1
    known.append(identity_of(body))
    body.factor = 3
    known.append(identity_of(body))
    assert len(set(known)) == 3


@pytest.mark.parametrize(
    "make", [lambda: object.__new__(Endless), lambda: [[]], threading.Lock, lambda: print]
)
def test_whatever_a_module_holds_it_has_an_identity(make):
    model = stub().model
    model.held = make()
    backbone = Backbone(model, LengthTokenizer())
    assert backbone._identity() == backbone._identity()


class Endless:
    """Holds itself in all that it is asked for, and cannot be compared."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__[name] = [self]
        return self

    def __eq__(self, other: object) -> Any:
        raise TypeError


# --- hooks ------------------------------------------------------------------------------------


def test_a_hook_is_the_same_as_long_as_it_is_the_same_function():
    model = tiny.make_model("bert")
    backbone = backbone_of(model)
    before = backbone._identity()
    identities = []
    for hook in (shift, lambda module, args, output: None, shift):
        handle = model.register_forward_hook(hook)
        identities.append(backbone._identity())
        handle.remove()
        assert backbone._identity() == before
    assert identities[0] == identities[2] != identities[1]
    assert before not in identities


def test_what_a_hook_holds_is_part_of_it():
    model = tiny.make_model("bert")
    backbone = backbone_of(model)
    settings, factor = {"by": 1.0}, 1.0

    def hook(module: Any, args: Any, output: Any) -> Any:
        return output * settings["by"] * factor

    model.encoder.layer[0].register_forward_hook(hook)
    known = [backbone._identity()]
    settings["by"] = 2.0
    known.append(backbone._identity())
    factor = 3.0
    known.append(backbone._identity())
    settings["by"], factor = 1.0, 1.0
    assert backbone._identity() == known[0]
    assert len(set(known)) == 3


def test_a_hook_that_records_does_not_change_the_model():
    model = tiny.make_model("bert")
    recorded: list[Any] = []
    model.encoder.layer[0].register_forward_hook(lambda *given: recorded.append(given[2]))
    embedder = LLMLayerEmbedder(backbone_of(model)).fit(TEXTS)
    before = embedder.transform(TEXTS)
    embedder.transform(["something new"])
    np.testing.assert_array_equal(embedder.transform(TEXTS), before)
    assert recorded
    recorded.clear()
    assert embedder.fit(TEXTS).store_.info()["n_texts"] in (0, len(TEXTS) + 1)


class Remembering(LengthTokenizer):
    """Counts its calls, and keeps words as slow tokenizers do."""

    def __init__(self) -> None:
        self.calls, self.cache = 0, {}

    def __call__(self, texts: list[str], **options: Any) -> Any:
        self.calls += 1
        self.cache.update(dict.fromkeys(texts))
        return super().__call__(texts, **options)


def test_a_tokenizer_that_remembers_does_not_change_the_model():
    backbone = Backbone(stub().model, Remembering())
    before = backbone._identity()
    embedder = LLMLayerEmbedder(backbone).fit(TEXTS)
    embedder.transform(TEXTS)
    embedder.transform(["something new"])
    assert backbone.tokenizer.calls
    assert backbone._identity() == before
    backbone.tokenizer.more = 1
    assert backbone._identity() != before


def test_a_hook_for_all_modules_is_part_of_every_model():
    backbone = backbone_of(tiny.make_model("bert"))
    before = backbone._identity()
    handle = torch.nn.modules.module.register_module_forward_hook(shift)
    try:
        assert backbone._identity() != before
    finally:
        handle.remove()
    assert backbone._identity() == before


# --- adapters ---------------------------------------------------------------------------------


@pytest.fixture
def adapted() -> Any:
    """A model with two adapters, the first of them active."""
    options = {"r": 2, "init_lora_weights": False}
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft calls what transformers deprecates
        torch.manual_seed(0)
        model = peft.get_peft_model(
            tiny.make_model("llama"), peft.LoraConfig(target_modules=["q_proj"], **options)
        )
        model.add_adapter("other", peft.LoraConfig(target_modules=["v_proj"], **options))
    return model.eval()


def _layers(model: Any) -> list[Any]:
    return [m for m in model.modules() if hasattr(m, "scale_layer")]


def test_adapters_switched_disabled_and_scaled(adapted):
    embedder = LLMLayerEmbedder(backbone_of(adapted.base_model.model))
    X = embedder.fit_transform(TEXTS)
    made = [X]
    adapted.set_adapter("other")
    with pytest.raises(ValueError, match="Call fit again"):
        embedder.transform(TEXTS)
    made.append(embedder.fit_transform(TEXTS))
    with adapted.disable_adapter():
        made.append(embedder.fit_transform(TEXTS))
    adapted.set_adapter("default")
    for layer in _layers(adapted):
        layer.scale_layer(2.0)
    made.append(embedder.fit_transform(TEXTS))
    for layer in _layers(adapted):
        layer.unscale_layer()
    np.testing.assert_array_equal(embedder.fit_transform(TEXTS), X)
    for i, one in enumerate(made):
        assert all(np.abs(one - other).max() > 0.01 for other in made[:i])
    assert np.abs(made[2] - vectors(backbone_of(tiny.make_model("llama")))).max() < 1e-2


def test_an_adapted_model_is_the_same_in_a_copy(adapted):
    body = adapted.base_model.model
    assert identity_of(copy.deepcopy(body)) == identity_of(body)
