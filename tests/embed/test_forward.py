"""Layers and poolings against values computed by hand, one text at a time, without padding."""

from __future__ import annotations

import functools
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from _support import tiny
from _support.by_hand import by_hand
from _support.doubles import probed, stub
from _support.tiny import tiny_texts

from skfusion import Backbone, LLMLayerEmbedder, VectorStore
from skfusion.embed import loading
from skfusion.embed.forward import ForwardPass, settle
from skfusion.embed.pooling import POOLINGS

TEXTS = tiny_texts(7)
ALL_LAYERS = list(range(tiny.DEPTH + 1))


@functools.cache
def states_by_hand(kind: str, ends: bool = True) -> list[list[np.ndarray]]:
    """hidden_states[k] of each text alone, through transformers itself."""
    model = tiny.make_model(kind)
    tokenizer = tiny.make_tokenizer(ends=ends)
    made = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"] or [tokenizer.bos_token_id]
        with torch.no_grad():
            output = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        made.append([state[0].numpy() for state in output.hidden_states])
    return made


def embed(folder: str, memory: Path, layers: str = "all", **options: object) -> np.ndarray:
    memory = VectorStore(memory, layers=layers, dtype="float32")
    options = {"pooling": list(POOLINGS), **options}
    return LLMLayerEmbedder(folder, memory=memory, **options).fit_transform(TEXTS)


@pytest.mark.parametrize("kind", tiny.HOOKED)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_every_pooling_equals_the_value_by_hand(folder, tmp_path, monkeypatch, kind, side, rows):
    monkeypatch.setattr("skfusion.embed.forward.Budget.choose", _fixed_rows(rows))
    made = embed(folder(kind, side=side), layer=ALL_LAYERS, memory=tmp_path)
    expected = [
        np.concatenate([by_hand(name, state) for state in states for name in POOLINGS])
        for states in states_by_hand(kind)
    ]
    np.testing.assert_allclose(made, expected, atol=1e-5)


def _fixed_rows(rows: int) -> object:
    from skfusion.embed.forward import Budget

    return classmethod(lambda cls, backbone, batch_tokens: Budget(10**6, rows))


@pytest.mark.parametrize("kind", tiny.MODELS)
@pytest.mark.parametrize("k", ALL_LAYERS)
@pytest.mark.parametrize("store_layers", ["all", "requested"])
def test_layer_k_is_hidden_states_k(folder, tmp_path, kind, k, store_layers):
    path = folder(kind)
    made = embed(path, layer=k, pooling="mean", memory=tmp_path, layers=store_layers)
    expected = [by_hand("mean", states[k]) for states in states_by_hand(kind)]
    np.testing.assert_allclose(made, expected, atol=1e-5)
    again = embed(path, layer=k - tiny.DEPTH - 1, pooling="mean", memory=tmp_path)
    np.testing.assert_array_equal(made, again)


def test_wrong_ways_would_be_seen():
    """The tolerance means something: an unmasked mean or a wrong last token is off by far."""
    states = states_by_hand("llama")[3][-1]
    padded = np.concatenate([states, states[:1], states[:1]])
    assert np.abs(padded.mean(0) - states.mean(0)).max() > 0.05
    assert np.abs(states[-1] - states[-2]).max() > 0.5


@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2", "gemma3", "t5"])
@pytest.mark.parametrize(("layer", "runs"), [(0, 0), (1, 1), (2, 2), (3, 3), ([0, 2], 2)])
def test_the_pass_stops_behind_the_deepest_layer(folder, tmp_path, kind, layer, runs):
    loading.release()
    embedder = LLMLayerEmbedder(
        folder(kind), layer=layer, memory=VectorStore(tmp_path, layers="requested")
    ).fit(TEXTS)
    ran = []
    backbone = probed(embedder._load(), embedder._spec.identity)
    blocks = backbone._blocks()
    handles = [
        b.register_forward_hook(lambda *_, k=k: ran.append(k)) for k, b in enumerate(blocks)
    ]
    embedder.set_params(batch_tokens=10**6).transform(TEXTS)
    for handle in handles:
        handle.remove()
    assert ran == list(range(runs))


@pytest.mark.parametrize("kind", tiny.MODELS)
def test_models_without_usable_blocks_fall_back(kind):
    backbone = probed(Backbone(tiny.make_model(kind), tiny.make_tokenizer()))
    assert backbone._probe.hooks is (kind in tiny.HOOKED)
    assert backbone._probe.batching == "padded"


def test_no_text_passes_through_the_model_twice():
    model = tiny.make_model("mpnet")
    backbone = probed(Backbone(model, tiny.make_tokenizer()))
    rows = []
    model.register_forward_pre_hook(
        lambda m, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    with ForwardPass(backbone, [(1, "mean")]) as run:
        run(*backbone._batch([[5, 6, 7], [8], [9, 10]]))
    assert rows == [3]


def test_blocks_that_do_not_give_the_hidden_states_are_not_used():
    model = tiny.make_model("llama")
    backbone = Backbone(model, tiny.make_tokenizer())
    backbone._blocks = lambda: list(model.layers)[::-1]  # found, but not what they seem
    batch = backbone._batch([[5, 6], [7]])
    with ForwardPass(backbone, [(1, "first")]) as run:
        made = run(*batch)
    expected = backbone._run(*batch, all_states=True).hidden_states[1][:, 0]
    torch.testing.assert_close(made, expected)
    assert not backbone._probe.hooks


def test_hooks_are_gone_after_a_pass_that_fails():
    model = tiny.make_model("llama")
    backbone = probed(Backbone(model, tiny.make_tokenizer()))

    def hooks():  # transformers hangs its own at the first call that asks for all states
        return [(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.layers]

    before = hooks()
    with pytest.raises(RuntimeError, match="stop"), ForwardPass(backbone, [(1, "mean")]):
        assert hooks() != before
        raise RuntimeError("stop")
    assert hooks() == before
    assert backbone._lock.acquire(blocking=False)


def test_states_of_two_blocks_are_never_alive_together():
    model = tiny.make_model("llama")
    backbone = Backbone(model, tiny.make_tokenizer())
    outputs: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def watch(module: object, args: object, output: torch.Tensor) -> None:
        # While a block gives out its state, only its own input may still be there.
        alive.append(sum(ref() is not None for ref in outputs[:-1]))
        outputs.append(weakref.ref(output))

    with ForwardPass(backbone, [(k, p) for k in ALL_LAYERS for p in POOLINGS]) as run:
        handles = [layer.register_forward_hook(watch) for layer in model.layers]
        run(*backbone._batch([[5, 6, 7], [8]]))
    assert alive == [0] * tiny.DEPTH
    backbone._run(*backbone._batch([[5, 6, 7], [8]]), all_states=True)
    assert max(alive) > 0  # it would have been seen
    for handle in handles:
        handle.remove()


def test_a_model_with_other_layers_than_its_config_says():
    backbone = stub(depth=2)
    assert backbone.n_layers == 2
    backbone.model.depth = 3
    with (
        pytest.raises(ValueError, match=r"4 hidden states, .* 2 layers"),
        ForwardPass(backbone, [(1, "mean")]) as run,
    ):
        run(*backbone._batch([[1]]))


def test_a_model_that_gives_no_hidden_states():
    backbone = Backbone(tiny.make_model("llama"), tiny.make_tokenizer())
    backbone.model.forward = lambda **_: SimpleNamespace(
        last_hidden_state=None, hidden_states=None
    )
    with (
        pytest.raises(ValueError, match="returns no hidden_states"),
        ForwardPass(backbone, [(1, "mean")]) as run,
    ):
        run(*backbone._batch([[1]]))


def test_layers_of_another_width_are_not_stored_and_refused_where_asked_for():
    narrow = stub(lambda k, state, mask: state[..., :2] if k == 1 else state)
    with pytest.raises(ValueError, match=r"Layer 1 .*width 4 .* can be used: 0, 2"):
        LLMLayerEmbedder(narrow, layer=1).fit_transform(["abc"])
    store = VectorStore(dtype="float32")
    made = LLMLayerEmbedder(narrow, layer=[0, 2], memory=store).fit_transform(["abc"])
    whole = LLMLayerEmbedder(stub(), layer=[0, 2], memory=store).fit_transform(["abc"])
    np.testing.assert_array_equal(made, whole)
    LLMLayerEmbedder(narrow, layer="mean", memory=VectorStore(layers=[0, 2])).fit(["abc", "b"])


def test_padding_may_hold_anything():
    def poison(k, state, mask):
        return state.masked_fill(~mask[..., None], float("nan"))

    clean = LLMLayerEmbedder(stub(), pooling=list(POOLINGS)).fit_transform(["abcdef", "a", "xyz"])
    made = LLMLayerEmbedder(stub(poison), pooling=list(POOLINGS))
    np.testing.assert_array_equal(made.fit_transform(["abcdef", "a", "xyz"]), clean)


class TestSettle:
    @pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 1e3, 1e7])
    def test_error_is_within_bounds_and_judged_row_by_row(self, rng, scale):
        x = torch.tensor(rng.normal(size=(8, 20)), dtype=torch.float32)
        x[::2] *= scale
        made = settle(x, 5, "auto")
        error = (made - x).view(8, 4, 5).norm(dim=2) / x.view(8, 4, 5).norm(dim=2)
        assert float(error.max()) <= 1e-3
        for i in range(8):
            torch.testing.assert_close(settle(x[i : i + 1], 5, "auto")[0], made[i], rtol=0, atol=0)

    def test_large_values_stay_float32(self):
        x = torch.tensor([[6.5e4, 1.0], [1.23456789, 2.0]])
        made = settle(x, 2, "auto")
        assert made[0].tolist() == x[0].tolist()
        assert made[1].tolist() == x[1].half().float().tolist()

    def test_forced(self):
        x = torch.tensor([[1e5, 1.2345678]])
        assert settle(x, 2, "float32") is x
        assert settle(x, 2, "float16")[0, 0] == float("inf")


def test_stub_counts():
    backbone = probed(stub())
    passed = backbone.model.passed
    LLMLayerEmbedder(backbone).fit_transform(["abc", "abc", "d"])
    assert backbone.model.passed - passed == 2  # different texts
