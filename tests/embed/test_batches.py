"""A vector is a property of its text: not of its neighbours, of what ran before, or of a hook."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from _support import families, tiny
from _support.by_hand import by_hand
from _support.doubles import LengthTokenizer, StubModel, probed, stub
from torch import Tensor

from skfusion import Backbone, LLMLayerEmbedder, VectorStore
from skfusion.embed.forward import ForwardPass
from skfusion.embed.pooling import POOLINGS

quantises = pytest.mark.filterwarnings("ignore:torch.ao.quant", "ignore:torch.quantize_per")

WORDS = ["a", "bcdef", "gh", "ijklmnopqrstuvw", "xyzab", "cd", "e" * 30]


def embed(backbone: Backbone, texts: list[str], **options: Any) -> np.ndarray:
    """Vectors of all layers and poolings, kept in float32."""
    options = {"layer": list(range(backbone.n_layers + 1)), "pooling": list(POOLINGS), **options}
    store = VectorStore(dtype="float32", **options.pop("store", {}))
    return LLMLayerEmbedder(backbone, memory=store, **options).fit_transform(texts)


def one_by_one(make: Callable[[], Any], tokenizer: Any, texts: list[str]) -> np.ndarray:
    """The same by hand: each text alone, through a model that ran nothing before."""
    rows = []
    for text in texts:
        ids = tokenizer([text], truncation=False, max_length=None)["input_ids"][0]
        with torch.no_grad():
            output = make()(
                input_ids=torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                output_hidden_states=True,
            )
        states = [*output.hidden_states[:-1], output.last_hidden_state]
        rows.append(
            np.concatenate(
                [by_hand(p, s[0, : len(ids)].float().numpy()) for s in states for p in POOLINGS]
            )
        )
    return np.array(rows)


# --- models that padding, neighbours or chance change -----------------------------------------


def leaks(k: int, state: Tensor, mask: Tensor) -> Tensor:
    return state * (1 + mask.shape[1])


def mixes(k: int, state: Tensor, mask: Tensor) -> Tensor:
    return state + state.amax()


def keeps(k: int, state: Tensor, mask: Tensor) -> Tensor:
    return state


@pytest.mark.parametrize(
    ("change", "batching"), [(keeps, "padded"), (leaks, "equal"), (mixes, "single")]
)
def test_a_text_is_in_a_batch_as_it_is_alone(change, batching):
    backbone = stub(change)
    made = embed(backbone, WORDS)
    assert backbone._probe.batching == batching
    expected = one_by_one(lambda: StubModel(change), LengthTokenizer(), WORDS)
    np.testing.assert_allclose(made, expected, rtol=1e-6)


@pytest.mark.parametrize("change", [leaks, mixes])
def test_memory_that_runs_out_leaves_the_batches_as_they_must_be(change):
    small = stub(change, max_rows=2)
    texts = [f"{a}{b}" for a in "abcde" for b in ("", "f", "gh")]
    np.testing.assert_array_equal(embed(small, texts), embed(stub(change), texts))


@quantises
@pytest.mark.parametrize(
    "name",
    [
        "FNet",
        "ConvBERT",
        "YOSO",
        "Nystromformer",
        "Phi-3 (longrope)",
        "Llama (dynamic rope)",
        "BERT (dynamic int8)",
        "NLLB-MoE (limited experts)",
        "BigBird",
        "BigBirdPegasus",
        "Longformer",
        "LED",
        "LongT5 (local)",
        "LongT5 (transient-global)",
        "GPT-1",
        "XLNet",
        "RWKV (rescaled)",
    ],
)
def test_families_whose_batches_matter(name):
    model, tokenizer = families.make_family(name), tiny.make_tokenizer(ends=False)
    texts = ["a good film", *(" ".join(["the slow plot"] * n) for n in (13, 3, 9, 6))]
    backbone = Backbone(families.make_family(name), tokenizer)
    for order in (texts, texts[::-1]):
        made = embed(backbone, order, max_length=45)
        expected = [
            np.concatenate(
                [by_hand(p, s) for s in families.states_of(model, ids) for p in POOLINGS]
            )
            for ids in tokenizer(order)["input_ids"]
        ]
        expected = np.reshape(expected, made.shape)
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["BigBird", "Longformer", "LongT5 (local)"])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 29, 40])
def test_models_that_pad_inside_take_any_length(name, n):
    model = families.make_family(name)
    ids = [5 + i % 90 for i in range(n)]
    columns = [(k, p) for k in range(tiny.DEPTH + 1) for p in POOLINGS]
    backbone = Backbone(model, tiny.make_tokenizer())
    with ForwardPass(backbone, columns) as run:
        made = run(*backbone._batch([ids, [6, 7, 8, *ids[3:]] if n > 3 else ids]))[0]
    states = families.states_of(families.make_family(name), ids)
    expected = np.concatenate([by_hand(p, s) for s in states for p in POOLINGS])
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", tiny.MODELS)
def test_rounding_alone_slows_no_model_down(kind, dtype):
    backbone = probed(Backbone(tiny.make_model(kind, dtype=dtype), tiny.make_tokenizer()))
    assert backbone._probe.batching == "padded"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_padding_is_seen_in_half_precision_too(dtype):
    backbone = Backbone(families.make_family("ConvBERT").to(dtype), tiny.make_tokenizer())
    assert probed(backbone)._probe.batching == "equal"


@pytest.mark.parametrize(
    ("settings", "batching"),
    [
        ({"rope_scaling": None}, "padded"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "padded"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "equal"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "equal"),
        ({"text_config": {"rope_parameters": {"rope_type": "dynamic"}}}, "equal"),
        ({"attention_type": "block_sparse"}, "equal"),
        ({"attention_type": "original_full"}, "padded"),
        ({"index_topk": 2048}, "equal"),
        ({"keep_window_size": 2048}, "equal"),
        ({"moe_eval_capacity_token_fraction": 0.5}, "single"),
        ({"moe_eval_capacity_token_fraction": 1.0}, "padded"),
        ({"quantization_config": {"load_in_8bit": True}}, "single"),
        ({"a": {"input_activations": {"dynamic": True, "strategy": "tensor"}}}, "single"),
        ({"a": {"input_activations": {"dynamic": True, "strategy": "token"}}}, "padded"),
        ({"attn_layers": ["local", "lsh"]}, "single"),
        ({"rope_scaling": {"type": "dynamic"}, "attn_layers": ["lsh"]}, "single"),
    ],
)
def test_what_a_short_text_cannot_show_the_config_says(settings, batching):
    backbone = stub()
    backbone._config = SimpleNamespace(
        num_hidden_layers=2, hidden_size=4, to_dict=lambda: settings
    )
    assert probed(backbone)._probe.batching == batching


class TestChance:
    def test_noise_of_torch_is_the_same_for_the_same_text(self):
        def noise(k, state, mask):
            return state + torch.randn_like(state)

        texts = ["abc", "de", "fgh", "i"]
        torch.manual_seed(1)
        before = torch.get_rng_state()
        made = embed(stub(noise), texts)
        assert torch.equal(before, torch.get_rng_state())
        for i in (2, 0, 3, 1):
            torch.rand(i + 1)
            np.testing.assert_array_equal(embed(stub(noise), texts[i : i + 1])[0], made[i])

    def test_other_noise_is_refused(self):
        noise = np.random.default_rng(0)
        random = stub(lambda k, state, mask: state + noise.normal())
        with pytest.raises(ValueError, match=r"other hidden states each time .* Switch off"):
            embed(random, ["abc"])

    @pytest.mark.parametrize("batching", ["padded", "equal"])
    def test_random_numbers_without_effect_change_no_batches(self, batching):
        def draws(k, state, mask):
            torch.rand(3)
            return state if batching == "padded" else leaks(k, state, mask)

        before = torch.get_rng_state()
        backbone = stub(draws)
        embed(backbone, ["abc", "d"])
        assert torch.equal(before, torch.get_rng_state())
        assert backbone._probe.batching == batching


# --- the look at a model ----------------------------------------------------------------------


@quantises
def test_a_model_is_looked_at_once_and_again_after_it_has_changed():
    backbone = Backbone(tiny.make_model("bert"), tiny.make_tokenizer())
    rows: list[int] = []
    backbone.model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    for text in ("good", "bad", "dull"):
        embed(backbone, [text])
    assert rows == [1, 1, 2, 1, 1, 1]
    torch.ao.quantization.quantize_dynamic(backbone.model, {torch.nn.Linear}, inplace=True)
    embed(backbone, ["good film", "a bad film"])
    assert backbone._probe.batching == "single"


@pytest.mark.parametrize("limit", [1, 2, 6, 40])
def test_no_more_tokens_than_the_model_has_positions(limit):
    with torch.random.fork_rng():
        config = tiny.BertConfig(**tiny.usual(max_position_embeddings=limit))
        backbone = Backbone(tiny.BertModel(config).eval(), tiny.make_tokenizer(ends=False))
    assert embed(backbone, ["good", "bad"], max_length=1).shape[0] == 2
    assert backbone._probe.batching == "padded"


def test_a_tokenizer_of_another_language():
    class Digits:
        def __call__(self, texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [[int(c) for c in text] for text in texts]}

    backbone = Backbone(StubModel(leaks), Digits())
    made = embed(backbone, ["12345", "6", "78"])
    expected = one_by_one(lambda: StubModel(leaks), Digits(), ["12345", "6", "78"])
    np.testing.assert_allclose(made, expected, rtol=1e-6)


def test_a_tokenizer_that_knows_no_word_of_ours():
    class Unknown:
        all_special_ids = (0, 1)

        def __call__(self, texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
            return {
                "input_ids": [[int(w) if w.isdigit() else 1 for w in t.split()] for t in texts]
            }

    class Table(StubModel):
        def get_input_embeddings(self) -> Any:
            return SimpleNamespace(weight=torch.zeros(100, 4))

    backbone = Backbone(Table(mixes), Unknown())
    texts = ["7 8 9", "70 80", "3"]
    expected = one_by_one(lambda: StubModel(mixes), Unknown(), texts)
    np.testing.assert_allclose(embed(backbone, texts), expected, rtol=1e-6)


# --- blocks and their states ------------------------------------------------------------------


class Block(torch.nn.Module):
    """Adds to what enters it; `give` says in which form, and for which texts."""

    def __init__(self, give: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.give, self.ran = give, 0

    def forward(self, hidden: Tensor) -> Any:
        self.ran += 1
        return self.give(hidden + 1)


class BlockModel(torch.nn.Module):
    """Three blocks, the states of which `take` reads, and a norm that doubles."""

    def __init__(
        self,
        give: Callable[[Tensor], Any] = lambda hidden: hidden,
        take: Callable[[Any], Tensor] = lambda output: output,
        last: Callable[[Tensor], Any] = lambda hidden: hidden * 2,
    ) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(give) for _ in range(3))
        self.take, self.last = take, last

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False
    ) -> Any:
        hidden = torch.stack([input_ids.float() * (i + 1) for i in range(4)], dim=-1)
        states = [hidden]
        for block in self.blocks:
            hidden = self.take(block(hidden))
            states.append(hidden)
        states = states if output_hidden_states else None
        return SimpleNamespace(last_hidden_state=self.last(hidden), hidden_states=states)


def padded_inside(hidden: Tensor) -> Tensor:
    """States of long texts filled up to a multiple of 8."""
    n = hidden.shape[1]
    return torch.nn.functional.pad(hidden, (0, 0, 0, -n % 8)) if n > 8 else hidden


# Form of what a block returns, how the model reads it, and whether hooks can be used.
FORMS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor], bool]] = {
    "tensor": (lambda h: h, lambda o: o, True),
    "tuple": (lambda h: (h, None), lambda o: o[0], True),
    "list": (lambda h: [h, None], lambda o: o[0], True),
    "dict": (lambda h: {"state": h}, lambda o: o["state"], False),
    "none": (lambda h: SimpleNamespace(h=h), lambda o: o.h, False),
    "second": (lambda h: (h * 0, h), lambda o: o[1], False),
    "tokens first": (lambda h: h.transpose(0, 1), lambda o: o.transpose(0, 1), False),
    "written into": (lambda h: h.clone(), lambda o: o.mul_(3), False),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_blocks(form):
    give, take, hooks = FORMS[form]
    backbone = Backbone(BlockModel(give, take), LengthTokenizer())
    made = embed(backbone, WORDS)
    assert backbone._probe.hooks is hooks
    np.testing.assert_allclose(
        made, one_by_one(lambda: BlockModel(give, take), LengthTokenizer(), WORDS), rtol=1e-6
    )


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_requested_layers_end_the_pass_behind_the_deepest(layer):
    backbone = probed(Backbone(BlockModel(*FORMS["list"][:2]), LengthTokenizer()))
    for block in backbone.model.blocks:
        block.ran = 0
    embed(backbone, ["abc"], layer=layer, store={"layers": "requested"})
    assert [block.ran for block in backbone.model.blocks] == [int(k < layer) for k in range(3)]


def test_a_module_that_takes_no_hooks():
    class Closed(Block):
        def register_forward_hook(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("no hooks here")

    model = BlockModel()
    model.blocks[1] = Closed(lambda hidden: hidden)
    backbone = Backbone(model, LengthTokenizer())
    made = embed(backbone, WORDS)
    assert not backbone._probe.hooks
    assert not model.blocks[0]._forward_hooks
    assert not model.blocks[0]._forward_pre_hooks
    np.testing.assert_allclose(made, one_by_one(BlockModel, LengthTokenizer(), WORDS), rtol=1e-6)


def test_blocks_that_pad_long_texts_inside():
    class Cut(BlockModel):
        def forward(
            self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False
        ) -> Any:
            output = super().forward(input_ids, attention_mask, output_hidden_states)
            output.last_hidden_state = output.last_hidden_state[:, : input_ids.shape[1]]
            return output

    backbone = Backbone(Cut(padded_inside), LengthTokenizer())
    assert probed(backbone)._probe.hooks
    made = embed(backbone, WORDS)
    assert not backbone._probe.hooks  # found out with the first long text
    expected = one_by_one(lambda: Cut(padded_inside), LengthTokenizer(), WORDS)
    np.testing.assert_allclose(made, expected, rtol=1e-6)


def test_a_block_that_some_texts_skip():
    class Skips(BlockModel):
        def forward(self, input_ids: Tensor, **options: Any) -> Any:
            skip = input_ids.shape[1] == 2
            forward = self.blocks[0].forward if skip else self.blocks[0].__call__
            hidden = torch.stack([input_ids.float() * (i + 1) for i in range(4)], dim=-1)
            states = [hidden, forward(hidden)]
            for block in self.blocks[1:]:
                states.append(block(states[-1]))
            return SimpleNamespace(last_hidden_state=states[-1], hidden_states=tuple(states))

    backbone = Backbone(Skips(), LengthTokenizer())
    made = embed(backbone, ["ab", "cd"])  # their first block is run without its hooks
    np.testing.assert_allclose(made, one_by_one(Skips, LengthTokenizer(), ["ab", "cd"]), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda s: s[..., :2], r"\(1, 5, 2\)"),
        (lambda s: s[:, ::2], r"\(1, 3, 4\)"),
        (lambda s: s[..., 0], r"\(1, 5\)"),
        (lambda s: s[None], r"\(1, 1, 5, 4\)"),
        (lambda s: None, "NoneType"),
    ],
)
def test_a_layer_without_a_state_for_each_token(change, found):
    """It is not stored, refused where it is asked for, and the others are as they were."""
    odd = stub(lambda k, state, mask: change(state) if k == 1 else state)
    with pytest.raises(ValueError, match=rf"Layer 1 of .*{found}.* can be used: 0, 2"):
        embed(odd, ["abc"], layer=1)
    with pytest.raises(ValueError, match="Layer 1"):
        embed(odd, ["abc"], layer="mean", pooling="mean")
    np.testing.assert_array_equal(
        embed(odd, WORDS, layer=[0, 2]), embed(stub(), WORDS, layer=[0, 2])
    )


def test_the_last_layer_is_that_before_a_projection():
    """Where the last state has another width than the blocks, as in OPT-350m."""

    def model() -> BlockModel:
        return BlockModel(last=lambda hidden: hidden[..., :2])

    backbone = Backbone(model(), LengthTokenizer())
    made = embed(backbone, WORDS, layer=-1)
    plain = embed(Backbone(BlockModel(last=lambda hidden: hidden), LengthTokenizer()), WORDS)
    np.testing.assert_array_equal(made, plain[:, -made.shape[1] :])


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("layers", ["all", "requested"])
def test_opt_with_narrower_ends(layer, layers):
    name = "OPT (with narrower ends: 350m)"
    backbone = Backbone(families.make_family(name), tiny.make_tokenizer(ends=False))
    texts = ["a good film", "bad", "the plot was not very funny"]
    made = embed(backbone, texts, layer=layer, pooling="mean", store={"layers": layers})
    model = families.make_family(name)
    ids = backbone.tokenizer(texts)["input_ids"]
    expected = [by_hand("mean", families.states_of(model, row)[layer]) for row in ids]
    np.testing.assert_allclose(made, expected, atol=1e-5)


def test_states_in_one_tensor():
    class Stacked(BlockModel):
        def forward(
            self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False
        ) -> Any:
            output = super().forward(input_ids, attention_mask, output_hidden_states=True)
            output.hidden_states = torch.stack(output.hidden_states)
            return output

    made = embed(Backbone(Stacked(), LengthTokenizer()), WORDS)
    np.testing.assert_array_equal(made, embed(Backbone(BlockModel(), LengthTokenizer()), WORDS))


def test_a_model_that_remembers_its_texts_is_refused():
    class Remembers(StubModel):
        def __init__(self) -> None:
            self.memory: list[int] = []
            super().__init__(lambda k, state, mask: state + len(self.memory))

        def forward(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
            self.memory.append(1)
            wanted = bool(options.get("output_hidden_states"))
            return super().forward(input_ids, attention_mask, wanted)

    with pytest.raises(ValueError, match="other hidden states each time"):
        embed(Backbone(Remembers(), LengthTokenizer()), ["abc"])


def test_a_forward_without_a_mask():
    class NoMask(BlockModel):
        def forward(self, input_ids: Tensor, output_hidden_states: bool = False) -> Any:
            made = super().forward(input_ids, None, output_hidden_states)
            mean = made.last_hidden_state.mean(dim=1, keepdim=True)  # of padding too
            made.last_hidden_state = made.last_hidden_state + mean
            return made

    backbone = Backbone(NoMask(), LengthTokenizer())
    made = embed(backbone, WORDS, layer=-1)
    assert backbone._probe.batching == "equal"
    for i, text in enumerate(WORDS):
        alone = embed(Backbone(NoMask(), LengthTokenizer()), [text], layer=-1)[0]
        np.testing.assert_allclose(made[i], alone, rtol=1e-6)


# --- errors from within a model ---------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        AssertionError,
        AttributeError,
        IndexError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        TypeError,
        ValueError,
    ],
)
@pytest.mark.parametrize("n_tokens", [2, 5])
def test_an_error_within_a_model_is_named(error, n_tokens):
    def fail(k, state, mask):
        if state.shape[1] == n_tokens:  # a user's text, or the first look
            raise error("deep inside")
        return state

    backbone = stub(fail)
    with pytest.raises(RuntimeError, match=f"StubModel.* {error.__name__}: .*deep inside") as e:
        embed(backbone, ["ab", "c"])
    assert isinstance(e.value.__cause__, error)
    assert "Check that" in str(e.value)


def test_an_interrupt_passes_through():
    def stop(k, state, mask):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stub(stop).n_layers  # noqa: B018
