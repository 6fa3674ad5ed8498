"""From a folder or a hub id to a model: what is loaded, and what is named instead."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from _support import tiny
from _support.tiny import skip_without_states
from huggingface_hub import constants
from huggingface_hub.utils import are_progress_bars_disabled
from transformers.utils import logging as transformers_logging

from skfusion import Backbone, LLMLayerEmbedder, TruncationWarning, VectorStore
from skfusion.embed import loading
from skfusion.embed.loading import quiet, resolve

LONG = "good " * 40


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def save(folder: Path, kind: str = "bert", **options: Any) -> Path:
    return tiny.save_folder(folder, kind, **options)


def make_sentence(root: Path, subfolder: str = "", **settings: Any) -> Path:
    """A folder as sentence-transformers writes it, the transformer in `subfolder`."""
    save(root / subfolder)
    modules = [
        {"idx": 0, "type": "sentence_transformers.models.Transformer", "path": subfolder},
        {"idx": 1, "type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]
    write(root / "modules.json", modules)
    write(root / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    own = {
        key: settings.pop(key) for key in ("max_seq_length", "do_lower_case") if key in settings
    }
    write(root / subfolder / "sentence_bert_config.json", own)
    write(root / "config_sentence_transformers.json", {"prompts": {}, **settings})
    return root


# --- sentence-transformers ----------------------------------------------------------------------


@pytest.mark.parametrize("subfolder", ["", "0_Transformer"])
def test_the_limit_of_sentence_transformers_counts(tmp_path, subfolder):
    root = make_sentence(tmp_path, subfolder, max_seq_length=12)
    embedder = LLMLayerEmbedder(root).fit(["a"])
    with pytest.warns(TruncationWarning):
        X = embedder.transform([LONG])
    np.testing.assert_allclose(X, embedder.transform(["good " * 10]), atol=1e-3)
    whole = LLMLayerEmbedder(root, max_length=tiny.POSITIONS)
    assert np.abs(whole.fit_transform([LONG]) - X).max() > 1e-3
    assert whole.n_truncated_ == 0
    with pytest.raises(ValueError, match="64 positions"):
        LLMLayerEmbedder(root, max_length=65).fit(["a"])


@pytest.mark.parametrize("limit", [None, 0, "128", 10**6])
def test_a_limit_that_says_nothing(tmp_path, limit):
    root = make_sentence(tmp_path, max_seq_length=limit)
    assert LLMLayerEmbedder(root).fit(["a"])._spec.max_positions == tiny.POSITIONS


def test_a_changed_limit_is_another_model(tmp_path):
    root = make_sentence(tmp_path, "0_Transformer", max_seq_length=12)
    first = LLMLayerEmbedder(root).fit(["a"])
    write(root / "0_Transformer" / "sentence_bert_config.json", {"max_seq_length": 20})
    second = LLMLayerEmbedder(root).fit(["a"])
    assert first.store_._fingerprint != second.store_._fingerprint
    with pytest.raises(ValueError, match="Call fit again"):
        first.transform(["something new"])


def test_a_changed_weight_in_the_subfolder_is_another_model(tmp_path):
    root = make_sentence(tmp_path, "0_Transformer")
    first = LLMLayerEmbedder(root).fit(["a"])
    tiny.make_model("bert", seed=1).save_pretrained(root / "0_Transformer")
    assert LLMLayerEmbedder(root).fit(["a"]).store_._fingerprint != first.store_._fingerprint


PROMPTS = {"query": "the good ", "passage": "", "long": "slow "}


@pytest.mark.parametrize(
    ("default", "prompt", "literal"),
    [
        (None, None, ""),
        (None, "", ""),
        (None, "query", "the good "),
        (None, "passage", ""),
        (None, "bad ", "bad "),
        (None, "Query", "Query"),
        ("long", None, "slow "),
        ("long", "", ""),
        ("long", "query", "the good "),
        ("passage", None, ""),
    ],
)
def test_prompts_of_sentence_transformers(tmp_path, default, prompt, literal):
    root = make_sentence(tmp_path / "s", prompts=PROMPTS, default_prompt_name=default)
    plain = save(tmp_path / "plain")
    texts = ["film", "a dull plot"]
    X = LLMLayerEmbedder(root, prompt=prompt).fit_transform(texts)
    Y = LLMLayerEmbedder(plain).fit_transform([literal + text for text in texts])
    np.testing.assert_allclose(X, Y, atol=1e-3)


def test_the_prompts_text_counts_and_not_its_name(tmp_path):
    root = make_sentence(tmp_path, prompts=PROMPTS, default_prompt_name="long")
    prompts = [None, "long", "slow ", "", "passage", "query"]
    made = [LLMLayerEmbedder(root, prompt=p).fit(["a"]).store_._fingerprint for p in prompts]
    assert made[0] == made[1] == made[2]
    assert made[3] == made[4]
    assert len(set(made)) == 3


def test_a_default_prompt_that_is_not_there(tmp_path):
    root = make_sentence(tmp_path, prompts=PROMPTS, default_prompt_name="none")
    with pytest.raises(ValueError, match=r"config_sentence_transformers\.json.*'none'.*query"):
        LLMLayerEmbedder(root).fit(["a"])


def test_texts_are_lower_case_where_sentence_transformers_has_them_so(tmp_path):
    lower = make_sentence(tmp_path / "lower", do_lower_case=True)
    plain = save(tmp_path / "plain")
    X = LLMLayerEmbedder(lower, prompt="The ").fit_transform(["GOOD Film"])
    Y = LLMLayerEmbedder(plain, prompt="the ").fit_transform(["good film"])
    np.testing.assert_allclose(X, Y, atol=1e-3)
    Z = LLMLayerEmbedder(plain, prompt="The ").fit_transform(["GOOD Film"])
    assert np.abs(X - Z).max() > 1e-2


@pytest.mark.parametrize(
    "name", ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"]
)
@pytest.mark.parametrize("content", ["{not json", "3"])
def test_damaged_settings_are_named(tmp_path, name, content):
    root = make_sentence(tmp_path, max_seq_length=12)
    write(root / name, content)
    with pytest.raises((ValueError, OSError), match=name):
        LLMLayerEmbedder(root).fit(["a"])


# --- the hub ------------------------------------------------------------------------------------

COMMIT = "a" * 40


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub, which cannot be reached."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(loading, "_RESOLVED", {})
    loading.release()
    return tmp_path / "hub"


def snapshot(hub: Path, name: str) -> Path:
    """Return the folder of a repository's only commit."""
    repo = hub / f"models--{name.replace('/', '--')}"
    write(repo / "refs" / "main", COMMIT)
    return repo / "snapshots" / COMMIT


@pytest.mark.parametrize("subfolder", ["", "0_Transformer", "both"])
def test_a_hub_model_of_sentence_transformers(hub, tmp_path, subfolder):
    settings = {"max_seq_length": 12, "prompts": PROMPTS, "default_prompt_name": "long"}
    there = tmp_path / "folder"
    if subfolder == "both":
        save(there, seed=1)
    make_sentence(there, subfolder.replace("both", "0_Transformer"), **settings)
    shutil.copytree(there, snapshot(hub, "some/model"))
    embedders = [LLMLayerEmbedder(name).fit(["a"]) for name in ("some/model", there)]
    with pytest.warns(TruncationWarning):
        X, Y = (embedder.transform([LONG, "a dull plot"]) for embedder in embedders)
    np.testing.assert_allclose(X, Y, atol=1e-6)
    assert embedders[0]._spec.identity == f"hub:some/model@{COMMIT}"
    assert embedders[0]._spec.prompt == "slow "


def test_a_hub_model_without_these_files(hub):
    save(snapshot(hub, "some/model"))
    embedder = LLMLayerEmbedder("some/model").fit(["a"])
    assert embedder._spec.max_positions == tiny.POSITIONS and embedder._spec.prompt is None


def test_settings_that_are_known_later_are_another_fingerprint(hub, monkeypatch):
    folder = save(snapshot(hub, "some/model"))
    first = LLMLayerEmbedder("some/model").fit(["a"])
    write(folder / "sentence_bert_config.json", {"max_seq_length": 12})
    monkeypatch.setattr(loading, "_RESOLVED", {})
    second = LLMLayerEmbedder("some/model").fit(["a"])
    assert first.store_._fingerprint != second.store_._fingerprint


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "an adapter"),
        (["a-Q4_K_M.gguf", "a-Q8_0.gguf"], "GGUF files.*a-Q4_K_M.gguf"),
        (["config.json", "onnx/model.onnx"], "ONNX"),
        (["model_index.json", "unet/config.json"], "diffusers"),
        ([], "Check the spelling"),
    ],
)
def test_a_hub_repository_that_is_not_one_model(hub, monkeypatch, files, words):
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: files)
    with pytest.raises(OSError, match=f"Cannot load model 'some/model'.*{words}"):
        LLMLayerEmbedder("some/model").fit(["a"])


def test_the_hubs_cache_itself(hub):
    folder = save(snapshot(hub, "some/model"))
    with pytest.raises(OSError, match=r"hub's cache.*hub id.*snapshots"):
        LLMLayerEmbedder(folder.parents[1]).fit(["a"])
    LLMLayerEmbedder(folder).fit(["a"])


# --- folders ------------------------------------------------------------------------------------

CONFIG = {"model_type": "bert"}
#: Files of a folder that is not one whole model, and what must be said of it.
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "must hold config.json, the weights"),
    "config": ({"config.json": CONFIG}, "no weights"),
    "weights": ({"model.safetensors": ""}, "no config.json"),
    "adapter": (
        {"adapter_config.json": {}, "adapter_model.safetensors": ""},
        "an adapter .*merge_and_unload",
    ),
    "adapter with config": (
        {"config.json": CONFIG, "adapter_config.json": {}, "adapter_model.safetensors": ""},
        "an adapter",
    ),
    "adapter beside a model": (
        {"config.json": CONFIG, "model.safetensors": "", "adapter_config.json": {}},
        "an adapter",
    ),
    "diffusers": (
        {"model_index.json": {}, "unet/config.json": {}, "text_encoder/config.json": {}},
        "diffusers",
    ),
    "GGUFs": ({"a-Q4_0.gguf": "", "b-Q8_0.gguf": ""}, "path of one.*a-Q4_0.gguf, b-Q8_0.gguf"),
    "ONNX": ({"config.json": CONFIG, "model.onnx": "", "tokenizer.json": {}}, "ONNX Runtime"),
    "ONNX below": ({"config.json": CONFIG, "onnx/model.onnx": ""}, "ONNX Runtime"),
    "OpenVINO": (
        {"config.json": CONFIG, "openvino_model.xml": "", "openvino_model.bin": ""},
        "OpenVINO",
    ),
    "CTranslate2": (
        {"config.json": {}, "model.bin": "", "shared_vocabulary.json": []},
        "CTranslate2",
    ),
    "MLX": ({"config.json": CONFIG, "weights.npz": ""}, "MLX"),
    "TensorFlow": ({"config.json": CONFIG, "tf_model.h5": ""}, "TensorFlow"),
    "Flax": ({"config.json": CONFIG, "flax_model.msgpack": ""}, "Flax"),
    "Core ML": ({"config.json": CONFIG, "model.mlpackage/Manifest.json": {}}, "Core ML"),
    "original Llama": ({"consolidated.00.pth": "", "params.json": {}}, "transformers does not"),
    "Lightning": ({"last.ckpt": ""}, "transformers does not"),
    "pooling": ({"config.json": {"pooling_mode_mean_tokens": True}}, "the pooling"),
    "training runs": (
        {"checkpoint-9/config.json": CONFIG, "checkpoint-9/model.safetensors": ""},
        "folders of models: give one of checkpoint-9",
    ),
    "static": (
        {
            "modules.json": [
                {
                    "type": "sentence_transformers.models.StaticEmbedding",
                    "path": "0_StaticEmbedding",
                }
            ],
            "0_Static/model.safetensors": "",
        },
        "static embeddings.*no layers",
    ),
    "model2vec": (
        {
            "modules.json": [
                {"type": "sentence_transformers.models.StaticEmbedding", "path": "."}
            ],
            "config.json": {"model_type": "model2vec"},
            "model.safetensors": "",
            "tokenizer.json": {},
        },
        "static embeddings.*no layers",
    ),
    "a type that is unknown": (
        {"config.json": {"model_type": "new"}, "model.safetensors": "", "tokenizer.json": {}},
        "new",
    ),
    "no type": ({"config.json": {}, "model.safetensors": "", "tokenizer.json": {}}, "model_type"),
    "no config": (
        {"config.json": "{not json", "model.safetensors": "", "tokenizer.json": {}},
        "JSON",
    ),
    "a list": (
        {"config.json": [], "model.safetensors": "", "tokenizer.json": {}},
        "model_type|list",
    ),
    "a null": (
        {"config.json": {**CONFIG, "hidden_size": None}, "model.safetensors": "", "vocab.txt": ""},
        "hidden_size",
    ),
    "MLX weights": (
        {
            "config.json": {"model_type": "llama", "quantization": {"bits": 4, "group_size": 64}},
            "model.safetensors": "",
            "tokenizer.json": {},
        },
        "MLX",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_folder_that_is_not_one_model_is_named_in_fit(tmp_path, kind):
    files, words = ODD[kind]
    (tmp_path / "m").mkdir()
    for name, content in files.items():
        write(tmp_path / "m" / name, content)
    with pytest.raises((OSError, ValueError), match=f"(?s){tmp_path / 'm'}.*{words}") as caught:
        LLMLayerEmbedder(tmp_path / "m").fit(["a"])
    assert len(str(caught.value)) < 800


def test_a_folder_without_a_tokenizer(tmp_path):
    tiny.make_model("bert").save_pretrained(tmp_path)
    with pytest.raises(OSError, match=r"no tokenizer.*save_pretrained"):
        LLMLayerEmbedder(tmp_path).fit(["a"])


def test_a_tokenizer_without_a_vocabulary(tmp_path):
    tiny.make_model("bert").save_pretrained(tmp_path)
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    embedder = LLMLayerEmbedder(tmp_path).fit(["a"])
    with pytest.raises(ValueError, match="no vocabulary"):
        embedder.transform(["a"])


def test_a_tokenizer_that_cannot_be_read(tmp_path):
    folder = save(tmp_path / "m")
    write(folder / "tokenizer.json", {"version": "1.0"})
    embedder = LLMLayerEmbedder(folder).fit(["a"])
    with pytest.raises(OSError, match=f"Cannot load model {str(folder)!r}"):
        embedder.transform(["a"])


def test_a_part_of_the_weights_that_is_not_there(tmp_path):
    folder = save(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    write(folder / "model.safetensors.index.json", {"weight_map": parts})
    with pytest.raises(OSError, match=r"lacks 1 .*'model-00002-of-00002.safetensors'"):
        LLMLayerEmbedder(folder).fit(["a"])


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_of_a_model(tmp_path, name):
    folder = save(tmp_path / "m")
    with pytest.raises(ValueError, match=r"is a file\. Give the folder"):
        LLMLayerEmbedder(folder / name).fit(["a"])


def test_weights_that_are_damaged_name_the_model(tmp_path):
    folder = save(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"not weights")
    embedder = LLMLayerEmbedder(folder).fit(["a"])
    with pytest.raises(OSError, match=f"Cannot load model {str(folder)!r}"):
        embedder.transform(["a"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", 32), ("intermediate_size", -1), ("vocab_size", 7), ("hidden_act", "x")],
)
def test_a_config_that_does_not_fit_the_weights_names_the_model(tmp_path, name, value):
    folder = save(tmp_path / "m", "llama")
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, name: value})
    with pytest.raises((OSError, ValueError), match=f"Cannot load model {str(folder)!r}"):
        LLMLayerEmbedder(folder).fit_transform(["a"])


@pytest.mark.parametrize("beside", [[], ["config.json"], ["mmproj-a.gguf", "README.md"]])
def test_a_folder_with_one_gguf_is_that_file(tmp_path, monkeypatch, beside):
    for name in ("a.gguf", *beside):
        write(tmp_path / name, CONFIG if name.endswith("json") else "")
    given = []
    monkeypatch.setattr(loading, "_resolve_gguf", given.append)
    resolve(tmp_path)
    assert given == [str(tmp_path / "a.gguf")]


@pytest.mark.slow
def test_a_folder_with_one_gguf_gives_the_vectors_of_that_file(tmp_path, monkeypatch):
    # A conversion that is there already stands for the file's content.
    file = tmp_path / "m" / "a.gguf"
    write(file, "some weights")
    monkeypatch.setenv("SKFUSION_CACHE", str(tmp_path / "cache"))
    from skfusion.embed.digests import file_digest

    save(tmp_path / "cache" / "gguf" / file_digest(file), "llama")
    X, Y = (LLMLayerEmbedder(path).fit_transform(["a film"]) for path in (file, file.parent))
    np.testing.assert_array_equal(X, Y)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.MarianMTModel(tf.MarianConfig(**MARIAN)),
        lambda: tf.BartForConditionalGeneration(tf.BartConfig(**MARIAN)),
        lambda: tf.CLIPModel(
            tf.CLIPConfig(
                text_config={**SIZES, "vocab_size": 160, "max_position_embeddings": 64},
                vision_config={**SIZES, "image_size": 8, "patch_size": 4},
            )
        ),
        lambda: tf.EncoderDecoderModel(
            tf.EncoderDecoderConfig(
                encoder=tf.BertConfig(**SIZES, vocab_size=160).to_dict(),
                decoder=tf.BertConfig(
                    **SIZES, vocab_size=160, is_decoder=True, add_cross_attention=True
                ).to_dict(),
            )
        ),
    ],
    ids=["marian", "bart", "clip", "encoder-decoder"],
)
def test_a_folder_of_a_model_with_more_parts_gives_the_vectors_of_the_model(
    tmp_path, make, monkeypatch
):
    # Those of Marian and CLIP have rules of their own.
    monkeypatch.setattr(
        tf.AutoTokenizer, "from_pretrained", lambda *_, **__: tiny.make_tokenizer()
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make().eval()
    model.save_pretrained(tmp_path)
    tiny.make_tokenizer().save_pretrained(tmp_path)
    own = Backbone(model, tiny.make_tokenizer())
    if hasattr(model, "text_model"):
        skip_without_states(model.text_model)
    layers = [0, 1, -1]
    X, Y = (
        LLMLayerEmbedder(m, layer=layers, memory=VectorStore(dtype="float32")).fit_transform(
            ["a good film", "bad"]
        )
        for m in (tmp_path, own)
    )
    np.testing.assert_allclose(X, Y, atol=1e-6)


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
MARIAN = {
    "vocab_size": 160,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
    "eos_token_id": 3,
}


def test_vocabularies_of_sentencepiece_count_in_the_digest(tmp_path):
    folder = save(tmp_path / "m")
    (folder / "source.spm").write_bytes(b"one")
    first = LLMLayerEmbedder(folder).fit(["a"]).store_._fingerprint
    (folder / "source.spm").write_bytes(b"two")
    assert LLMLayerEmbedder(folder).fit(["a"]).store_._fingerprint != first


def test_fit_of_a_plain_model_looks_at_no_model_class(folder, monkeypatch):
    from transformers.models.auto import modeling_auto

    monkeypatch.setattr(loading, "_RESOLVED", {})
    monkeypatch.setattr(modeling_auto, "MODEL_MAPPING_NAMES", None)  # imported by name from here
    for kind in ("llama", "bert", "t5"):
        LLMLayerEmbedder(folder(kind)).fit(["a"])


# --- switches of the whole process --------------------------------------------------------------


def switches() -> tuple[Any, ...]:
    return (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
        are_progress_bars_disabled(),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("order", ["first in, first out", "first in, last out"])
def test_quiet_puts_back_what_was_before_all_threads(order):
    before = switches()
    inside, leave = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def run(i: int) -> None:
        with quiet():
            torch.rand(3)
            inside[i].set()
            leave[i].wait(20)

    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for i in (0, 1):
        threads[i].start()
        assert inside[i].wait(20)
    out = (0, 1) if order == "first in, first out" else (1, 0)
    leave[out[0]].set()
    threads[out[0]].join()
    assert transformers_logging.get_verbosity() == transformers_logging.ERROR  # one is inside
    leave[out[1]].set()
    threads[out[1]].join()
    assert switches() == before


def test_quiet_of_many_threads(monkeypatch):
    before = switches()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    wrong = []

    def run() -> None:
        for _ in range(50):
            with contextlib.suppress(ZeroDivisionError), quiet():
                torch.rand(1)
                if transformers_logging.get_verbosity() != transformers_logging.ERROR:
                    wrong.append("loud")
                raise ZeroDivisionError

    try:
        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert switches() == before


def test_quiet_within_quiet_keeps_what_the_user_has_set():
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_info()
    try:
        before = switches()
        with quiet(), quiet():
            pass
        assert switches() == before
    finally:
        transformers_logging.set_verbosity(level)


def test_an_ordinary_folder_may_hold_other_things(tmp_path):
    folder = save(tmp_path / "m")
    for name in ("README.md", "onnx/model.onnx", "openvino/openvino_model.xml", "tf_model.h5"):
        write(folder / name, "")
    os.symlink(tmp_path, folder / "loop")
    shutil.copy(folder / "model.safetensors", folder / "rust_model.ot")
    assert LLMLayerEmbedder(folder).fit_transform(["a"]).shape == (1, tiny.WIDTH)
