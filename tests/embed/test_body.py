"""Which part of a model is used, its depth and its limit; what cannot be used is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from _support import tiny
from _support.doubles import LengthTokenizer, StubModel
from _support.tiny import skip_without_states
from transformers import BatchEncoding

from skfusion import Backbone, LLMLayerEmbedder, TruncationWarning, VectorStore
from skfusion.embed.body import position_limit, shape

TEXT = {
    "vocab_size": 160,
    "hidden_size": tiny.WIDTH,
    "num_hidden_layers": tiny.DEPTH,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": tiny.POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
ENCODER = {key: value for key, value in TEXT.items() if key != "num_key_value_heads"}
# As deep and as wide as the text part.
VISION = {
    "hidden_size": tiny.WIDTH,
    "num_hidden_layers": tiny.DEPTH,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
}
BOTH = {
    "vocab_size": 160,
    "d_model": tiny.WIDTH,
    "encoder_layers": tiny.DEPTH,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": tiny.POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
}
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
IMAGE = {"image_token_id": 150, "video_token_id": 151, "vision_start_token_id": 152}


def build(make: Any) -> Any:
    """A random model in evaluation mode, its weights large enough that a wrong part shows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() > 1:
                    weight.normal_(std=0.3 if "embed" not in name else 1.0)
    return model.eval()


def states(model: Any, text: str, **more: Any) -> tuple[torch.Tensor, ...]:
    """Hidden states of one text, asked from the whole model."""
    ids = torch.tensor([tiny.make_tokenizer()(text)["input_ids"]])
    with torch.no_grad():
        output = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            output_hidden_states=True,
            **more,
        )
    return output.get("hidden_states") or output.encoder_hidden_states


def check(model: Any, expected: Any) -> None:
    """Hold all layers of three texts, each alone, against the states that `expected` gives."""
    texts = ["a good film", "dull", "the plot was not very funny , but the music was"]
    layers = list(range(len(expected("a"))))
    embedder = LLMLayerEmbedder(
        Backbone(model, tiny.make_tokenizer()),
        layer=layers,
        batch_tokens=1,
        memory=VectorStore(dtype="float32"),
    )
    X = embedder.fit_transform(texts)
    assert embedder.n_layers_ == len(layers) - 1
    for text, row in zip(texts, X, strict=True):
        alone = torch.cat([state[0].mean(dim=0) for state in expected(text)])
        np.testing.assert_allclose(row, alone, atol=1e-4, rtol=1e-4)


# --- models of texts and pictures or sounds ----------------------------------------------------


def _llava() -> Any:
    vision, text = tf.CLIPVisionConfig(**VISION), tf.LlamaConfig(**TEXT)
    return tf.LlavaForConditionalGeneration(tf.LlavaConfig(vision_config=vision, text_config=text))


def _internvl() -> Any:
    vision = tf.InternVLVisionConfig(**{**VISION, "image_size": [8, 8], "patch_size": [4, 4]})
    text = tf.Qwen2Config(**TEXT)
    config = tf.InternVLConfig(vision_config=vision, text_config=text)
    return tf.InternVLForConditionalGeneration(config)


def _qwen2_audio() -> Any:
    audio = tf.Qwen2AudioEncoderConfig(
        d_model=tiny.WIDTH,
        encoder_layers=tiny.DEPTH,
        encoder_attention_heads=2,
        encoder_ffn_dim=24,
        num_mel_bins=8,
    )
    text = tf.Qwen2Config(**TEXT)
    config = tf.Qwen2AudioConfig(audio_config=audio, text_config=text)
    return tf.Qwen2AudioForConditionalGeneration(config)


def _gemma3() -> Any:
    config = tf.Gemma3Config(
        vision_config=tf.SiglipVisionConfig(**VISION),
        text_config=tf.Gemma3TextConfig(**TEXT, head_dim=8, sliding_window=4),
        mm_tokens_per_image=4,
        image_token_index=150,
        boi_token_index=151,
        eoi_token_index=152,
    )
    return tf.Gemma3ForConditionalGeneration(config)


def _paligemma() -> Any:
    config = tf.PaliGemmaConfig(
        vision_config=tf.SiglipVisionConfig(**VISION),
        text_config=tf.GemmaConfig(**TEXT, head_dim=8),
        image_token_index=150,
        projection_dim=tiny.WIDTH,
    )
    return tf.PaliGemmaForConditionalGeneration(config)


def _qwen2_vl() -> Any:
    vision = {"depth": 3, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4}
    text = {**TEXT, "rope_parameters": ROPE}
    config = tf.Qwen2VLConfig(text_config=text, vision_config=vision, **IMAGE)
    return tf.Qwen2VLForConditionalGeneration(config)


def _qwen2_5_vl() -> Any:
    vision = {"depth": 3, "hidden_size": 16, "out_hidden_size": 16, "intermediate_size": 24}
    vision |= {"num_heads": 2, "patch_size": 4, "fullatt_block_indexes": [1]}
    text = {**TEXT, "rope_parameters": ROPE}
    config = tf.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **IMAGE)
    return tf.Qwen2_5_VLForConditionalGeneration(config)


def _idefics3() -> Any:
    config = tf.Idefics3Config(
        vision_config=VISION, text_config=tf.LlamaConfig(**TEXT), image_token_id=150
    )
    return tf.Idefics3ForConditionalGeneration(config)


def _mllama() -> Any:
    # The layer that looks at a picture is left out where there is none.
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_global_layers": 1}
    vision |= {"attention_heads": 2, "intermediate_size": 24, "image_size": 8, "patch_size": 4}
    vision |= {"vision_output_dim": 32, "intermediate_layers_indices": [0], "max_num_tiles": 1}
    rope = {"rope_type": "default", "rope_theta": 1e4}
    text = {**TEXT, "cross_attention_layers": [1], "rope_parameters": rope}
    config = tf.MllamaConfig(
        vision_config={**vision, "supported_aspect_ratios": [[1, 1]]},
        text_config=text,
        image_token_index=150,
    )
    return tf.MllamaForConditionalGeneration(config)


@pytest.mark.parametrize(
    "make",
    [
        _llava,
        _internvl,
        _qwen2_audio,
        _gemma3,
        _qwen2_vl,
        _paligemma,
        _qwen2_5_vl,
        _idefics3,
        _mllama,
    ],
)
def test_of_texts_and_pictures_the_language_model_is_taken(make):
    model = build(make)
    check(model, lambda text: states(model, text))


def _clip() -> Any:
    return tf.CLIPModel(tf.CLIPConfig(text_config=ENCODER, vision_config=VISION))


def _siglip() -> Any:
    return tf.SiglipModel(tf.SiglipConfig(text_config=ENCODER, vision_config=VISION))


def _blip() -> Any:
    text = {**ENCODER, "encoder_hidden_size": tiny.WIDTH}
    return tf.BlipModel(tf.BlipConfig(text_config=text, vision_config=VISION))


def _clap() -> Any:
    audio = {"hidden_size": 16, "depths": [1, 1], "num_attention_heads": [1, 2], "spec_size": 32}
    audio |= {"patch_embeds_hidden_size": 8, "num_mel_bins": 8, "window_size": 2}
    text = {**ENCODER, "pad_token_id": 1, "type_vocab_size": 1}
    return tf.ClapModel(tf.ClapConfig(text_config=text, audio_config=audio, projection_dim=16))


@pytest.mark.parametrize("make", [_clip, _siglip, _blip, _clap])
def test_of_clip_and_its_like_the_text_part_is_taken(make):
    model = build(make)
    skip_without_states(model.text_model)

    def expected(text: str) -> tuple[torch.Tensor, ...]:
        ids = torch.tensor([tiny.make_tokenizer()(text)["input_ids"]])
        with torch.no_grad():
            output = model.text_model(
                input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True
            )
        return (*output.hidden_states[:-1], output.last_hidden_state)

    check(model, expected)


def test_a_caption_writer_is_refused():
    text = {**ENCODER, "encoder_hidden_size": tiny.WIDTH}
    config = tf.BlipConfig(text_config=text, vision_config=VISION)
    with pytest.raises(ValueError, match="BlipTextLMHeadModel"):
        Backbone(build(lambda: tf.BlipForConditionalGeneration(config)), tiny.make_tokenizer())


# --- adapters and wrappers ----------------------------------------------------------------------

CAUSAL = {"r": 2, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
BERT = {"r": 2, "target_modules": ["query", "dense"], "init_lora_weights": False}


def _adapted(model: Any, settings: dict[str, Any], task: str | None, **more: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(**settings, task_type=task), **more)


ADAPTED = {
    "causal": lambda: _adapted(tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT)), CAUSAL, "CAUSAL_LM"),
    "classes": lambda: _adapted(
        tf.LlamaForSequenceClassification(tf.LlamaConfig(**TEXT)), CAUSAL, "SEQ_CLS"
    ),
    "BERT classes": lambda: _adapted(
        tf.BertForSequenceClassification(tf.BertConfig(**ENCODER)), BERT, "SEQ_CLS"
    ),
    "features": lambda: _adapted(
        tf.LlamaModel(tf.LlamaConfig(**TEXT)), CAUSAL, "FEATURE_EXTRACTION"
    ),
    "no task": lambda: _adapted(tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT)), CAUSAL, None),
    "mixed": lambda: _adapted(
        tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT)), CAUSAL, None, mixed=True
    ),
    "pictures": lambda: _adapted(_llava(), CAUSAL, "CAUSAL_LM"),
    "T5": lambda: _adapted(
        tf.T5ForConditionalGeneration(tf.T5Config(**T5)),
        {"r": 2, "target_modules": ["q", "v"], "init_lora_weights": False},
        None,
    ),
}
T5 = {"vocab_size": 160, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 3, "num_heads": 2}
T5 |= {"num_decoder_layers": 2, "pad_token_id": 0, "decoder_start_token_id": 0}


@pytest.mark.parametrize("kind", ADAPTED)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_adapters_are_part_of_the_body_whatever_head_is_around(kind):
    model = build(ADAPTED[kind])
    more = {"decoder_input_ids": torch.tensor([[0]])} if kind == "T5" else {}
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    check(model, lambda text: states(inner, text, **more))
    check(model.base_model, lambda text: states(inner, text, **more))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig", "aLoRA"])
def test_adapters_outside_of_the_model_are_refused(kind):
    peft = pytest.importorskip("peft")
    config: Any = None
    if kind == "aLoRA":
        config = peft.LoraConfig(**CAUSAL, task_type="CAUSAL_LM", alora_invocation_tokens=[9])
    else:
        config = getattr(peft, kind)(num_virtual_tokens=3, task_type="CAUSAL_LM")
    model = peft.get_peft_model(tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT)), config)
    with pytest.raises(ValueError, match="from outside of the model's layers"):
        Backbone(model, tiny.make_tokenizer())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("wrap", [torch.compile, torch.nn.DataParallel])
def test_wrappers_are_taken_off(wrap):
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT))
    assert Backbone(wrap(model), tiny.make_tokenizer())._body is model.model
    model.model = wrap(model.model)
    assert type(Backbone(wrap(model), tiny.make_tokenizer())._body) is tf.LlamaModel


# --- encoder-decoders, depths, limits -----------------------------------------------------------


def _led() -> Any:
    both = {k: v for k, v in BOTH.items() if k != "max_position_embeddings"}
    limits = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 32}
    return tf.LEDModel(tf.LEDConfig(**both, **limits, attention_window=4))


def _encoder_decoder() -> Any:
    encoder = tf.BertConfig(**ENCODER).to_dict()
    decoder = {**encoder, "is_decoder": True, "add_cross_attention": True, "num_hidden_layers": 2}
    config = tf.EncoderDecoderConfig(encoder=encoder, decoder=decoder)
    return tf.EncoderDecoderModel(config)


def _t5gemma() -> Any:
    part = {**TEXT, "head_dim": 8, "sliding_window": 4}
    config = tf.T5GemmaConfig(
        encoder=part, decoder={**part, "num_hidden_layers": 2}, vocab_size=160
    )
    return tf.T5GemmaForConditionalGeneration(config)


def _fsmt() -> Any:
    both = {k: v for k, v in BOTH.items() if k != "vocab_size"}
    sizes = {"src_vocab_size": 160, "tgt_vocab_size": 160}
    return tf.FSMTModel(tf.FSMTConfig(langs=["a", "b"], **sizes, **both))


BART = {
    "led": (_led, tiny.POSITIONS),
    "bart": (lambda: tf.BartForConditionalGeneration(tf.BartConfig(**BOTH)), tiny.POSITIONS),
    "pegasus": (lambda: tf.PegasusModel(tf.PegasusConfig(**BOTH)), tiny.POSITIONS),
    "mbart": (lambda: tf.MBartModel(tf.MBartConfig(**BOTH)), tiny.POSITIONS),
    "marian": (lambda: tf.MarianMTModel(tf.MarianConfig(**BOTH)), tiny.POSITIONS),
    "bigbird_pegasus": (
        lambda: tf.BigBirdPegasusModel(tf.BigBirdPegasusConfig(**BOTH)),
        tiny.POSITIONS,
    ),
    "encoder and decoder": (_encoder_decoder, tiny.POSITIONS),
    "t5gemma": (_t5gemma, tiny.POSITIONS),
    "fsmt": (_fsmt, tiny.POSITIONS),
    "t5": (lambda: tf.T5ForConditionalGeneration(tf.T5Config(**T5)), None),
}


@pytest.mark.parametrize("kind", BART)
def test_of_an_encoder_decoder_the_encoder_and_its_limit_count(kind):
    make, limit = BART[kind]
    model = build(make)
    if kind != "bigbird_pegasus":  # which keeps another kind of attention after a short text
        start = {"decoder_input_ids": torch.tensor([[2]])}
        check(model, lambda text: states(model, text, **start))
    backbone = Backbone(model, tiny.make_tokenizer())
    assert backbone.n_layers == tiny.DEPTH
    assert backbone._source().max_positions == limit
    embedder = LLMLayerEmbedder(backbone, memory=VectorStore(layers="requested")).fit(["a"])
    if limit is not None:
        with pytest.warns(TruncationWarning):
            long = embedder.transform(["good " * 100])
        np.testing.assert_allclose(long, embedder.transform(["good " * (limit - 2)]), atol=1e-3)


def test_a_decoder_alone_has_its_own_depth():
    model = build(lambda: tf.BartForCausalLM(tf.BartConfig(**BOTH)))
    check(model, lambda text: states(model, text))


@pytest.mark.parametrize("longer", [1, 40])
def test_mpt_is_cut_at_what_it_calls_its_limit(longer):
    config = tf.MptConfig(d_model=16, n_heads=2, n_layers=3, max_seq_len=24, vocab_size=160)
    backbone = Backbone(build(lambda: tf.MptForCausalLM(config)), tiny.make_tokenizer())
    embedder = LLMLayerEmbedder(backbone).fit(["a"])
    with pytest.warns(TruncationWarning):
        embedder.transform(["good " * (22 + longer)])
    with pytest.raises(ValueError, match="24 positions"):
        LLMLayerEmbedder(backbone, max_length=25).fit(["a"])


def test_where_the_config_names_no_limit_the_table_of_positions_does():
    model = tiny.make_model("bert")
    del model.config.max_position_embeddings
    embedder = LLMLayerEmbedder(Backbone(model, tiny.make_tokenizer())).fit(["a"])
    with pytest.warns(TruncationWarning):
        embedder.transform(["good " * 100])
    with pytest.raises(ValueError, match="64 positions"):
        LLMLayerEmbedder(embedder.model, max_length=65).fit(["a"])


def test_a_table_that_is_shorter_than_the_config_says_counts():
    model = tiny.make_model("bert")
    model.config.max_position_embeddings = 512
    embedder = LLMLayerEmbedder(Backbone(model, tiny.make_tokenizer())).fit(["a"])
    with pytest.warns(TruncationWarning):
        embedder.transform(["good " * 100])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (tf.LEDConfig(), (16384, True)),
        (tf.MptConfig(max_seq_len=9), (9, True)),
        (tf.DbrxConfig(), (2048, False)),
        (tf.BigBirdPegasusConfig(), (4096, True)),
        (tf.PegasusConfig(), (1024, True)),
        (tf.GPT2Config(), (1024, True)),
        (tf.GPTJConfig(), (2048, True)),
        (tf.ClapConfig(), (512, True)),
        (tf.AltCLIPConfig(), (512, True)),
        (tf.CLIPConfig(), (77, True)),
        (tf.RobertaConfig(max_position_embeddings=514, pad_token_id=1), (512, True)),
        (tf.XLNetConfig(), (None, False)),
        (tf.BloomConfig(), (None, False)),
        (tf.T5Config(), (None, False)),
        (tf.MambaConfig(), (None, False)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_limits_are_read_from_what_configs_call_them(config, expected):
    assert position_limit(config) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (tf.DbrxConfig(), (24, 2048)),
        (tf.MptConfig(), (24, 2048)),
        (tf.BloomConfig(n_layer=3), (3, 64)),
        (tf.XLNetConfig(), (24, 1024)),
        (tf.MambaConfig(), (32, 768)),
        (tf.CLIPConfig(), (12, 512)),
        (tf.BartConfig(encoder_layers=4, decoder_layers=7), (4, 1024)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_depth_and_width_are_read_from_what_configs_call_them(config, expected):
    assert shape(config) == expected


# --- what is no text model ----------------------------------------------------------------------


def _whisper() -> Any:
    both = {k: v for k, v in BOTH.items() if k != "max_position_embeddings"}
    limits = {"max_source_positions": 8, "max_target_positions": 20, "num_mel_bins": 8}
    return tf.WhisperModel(tf.WhisperConfig(**both, **limits))


def _wav2vec2() -> Any:
    sizes = {k: v for k, v in VISION.items() if "size" not in k or k in ("hidden_size",)}
    layers = {"conv_dim": (8,), "conv_kernel": (3,), "conv_stride": (2,)}
    layers |= {"num_feat_extract_layers": 1, "num_conv_pos_embeddings": 4}
    sizes |= {"intermediate_size": 24, "num_conv_pos_embedding_groups": 2}
    return tf.Wav2Vec2Model(tf.Wav2Vec2Config(**sizes, **layers))


NO_TEXT = {
    "vit": (lambda: tf.ViTModel(tf.ViTConfig(**VISION)), "pixel_values"),
    "whisper": (_whisper, "input_features"),
    "wav2vec2": (_wav2vec2, "input_values"),
}


@pytest.mark.parametrize("kind", NO_TEXT)
def test_what_reads_no_texts_is_refused_in_fit(kind, tmp_path):
    make, reads = NO_TEXT[kind]
    model = build(make)
    with pytest.raises(ValueError, match=f"Cannot embed with .*{reads}"):
        LLMLayerEmbedder(Backbone(model, tiny.make_tokenizer())).fit(["a"])
    model.save_pretrained(tmp_path)
    tiny.make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"Cannot embed with .*'{kind}'.*{reads}"):
        LLMLayerEmbedder(tmp_path).fit(["a"])


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (tf.FunnelConfig(), "shorten the text"),
        (tf.CanineConfig(), "fourth character"),
        (tf.PerceiverConfig(), "latent"),
        (tf.ReformerConfig(), "random"),
        (tf.IdeficsConfig(), "picture"),
        (tf.ViltConfig(), "picture"),
        (tf.UdopConfig(), "place of each word"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_without_a_state_for_each_token_are_refused_in_fit(config, why, tmp_path):
    config.save_pretrained(tmp_path)
    tiny.make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(ValueError, match=f"Cannot embed with .*{config.model_type}.*{why}"):
        LLMLayerEmbedder(tmp_path).fit(["a"])


# --- where the weights lie ----------------------------------------------------------------------


def test_weights_without_values_are_refused_in_fit():
    with torch.device("meta"):
        model = tf.BertModel(tf.BertConfig(**ENCODER))
    with pytest.raises(ValueError, match="on the meta device"):
        LLMLayerEmbedder(Backbone(model, tiny.make_tokenizer())).fit(["a"])


def test_weights_on_the_disk_are_refused_in_fit(tmp_path):
    from accelerate import disk_offload

    model = tiny.make_model("bert")
    disk_offload(model, tmp_path, execution_device=torch.device("cpu"))
    with pytest.raises(ValueError, match="offloaded to the CPU or the disk"):
        LLMLayerEmbedder(Backbone(model, tiny.make_tokenizer())).fit(["a"])


def test_weights_on_several_devices_are_refused_in_fit_unless_dispatched():
    class Spread(StubModel):
        def parameters(self, recurse: bool = True) -> Any:
            for device in ("cuda:0", "cuda:1"):
                yield SimpleNamespace(
                    device=torch.device(device),
                    is_meta=False,
                    dtype=torch.float32,
                    is_floating_point=lambda: True,
                )

    backbone = Backbone(Spread(), LengthTokenizer())
    with pytest.raises(ValueError, match=r"on cuda:0, cuda:1.*model\.to"):
        LLMLayerEmbedder(backbone).fit(["a"])
    backbone.model._hf_hook = None
    backbone._check()


# --- tokenizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["some/model", None, 3, lambda ids: ids])
def test_a_model_that_is_none(model):
    with pytest.raises(TypeError, match="must be a torch module"):
        Backbone(model, tiny.make_tokenizer())


@pytest.mark.parametrize("tokenizer", [None, "some/model", tiny.make_tokenizer()._tokenizer])
def test_a_tokenizer_that_cannot_be_called(tokenizer):
    with pytest.raises(TypeError, match="tokenizer must be callable"):
        Backbone(tiny.make_model("bert"), tokenizer)


def test_of_a_processor_the_tokenizer_is_taken():
    class SomeProcessor:
        tokenizer = tiny.make_tokenizer()

    backbone = Backbone(tiny.make_model("bert"), SomeProcessor())
    assert backbone.tokenizer is SomeProcessor.tokenizer


ODD = {
    "nothing": lambda texts, **_: {},
    "no mapping": lambda texts, **_: None,
    "another name": lambda texts, **_: {"ids": [[1] for _ in texts]},
    "flat": lambda texts, **_: {"input_ids": [1 for _ in texts]},
    "one for all": lambda texts, **_: {"input_ids": [[1]]},
    "no numbers": lambda texts, **_: {"input_ids": [[None] for _ in texts]},
    "words": lambda texts, **_: {"input_ids": [["good"] for _ in texts]},
    "no options": lambda texts: {"input_ids": [[1] for _ in texts]},
    "uncut": lambda texts, **_: {"input_ids": [[1] * 99 for _ in texts]},
    "a bug": lambda texts, **_: texts.ids,
    "another bug": lambda texts, **_: [][0],
}


@pytest.mark.parametrize("kind", ODD)
def test_a_tokenizer_that_gives_something_else(kind):
    embedder = LLMLayerEmbedder(Backbone(tiny.make_model("bert"), ODD[kind])).fit(["a", "b"])
    with pytest.raises(TypeError, match=r"cannot be used as a tokenizer.*'input_ids'"):
        embedder.transform(["a", "b"])


@pytest.mark.parametrize("wrong", [160, 10**6, -1])
def test_a_token_beyond_the_embedding_table(wrong):
    def tokenizer(texts: list[str], **_: Any) -> dict[str, Any]:
        return {"input_ids": [[wrong if text == "odd" else 5] for text in texts]}

    embedder = LLMLayerEmbedder(Backbone(tiny.make_model("bert"), tokenizer)).fit(["a"])
    embedder.transform(["good"])
    with pytest.raises(ValueError, match=rf"'odd' into the token id {wrong}, .* has 160 rows"):
        embedder.transform(["fine", "odd"])


def test_added_tokens_are_named_and_work_once_the_model_is_resized():
    tokenizer, model = tiny.make_tokenizer(), tiny.make_model("bert")
    tokenizer.add_tokens([f"<{i}>" for i in range(60)])
    backbone = Backbone(model, tokenizer)
    embedder = LLMLayerEmbedder(backbone).fit(["a"])
    with pytest.raises(ValueError, match="resize_token_embeddings"):
        embedder.transform(["good <59>"])
    model.resize_token_embeddings(len(tokenizer))
    assert LLMLayerEmbedder(backbone).fit_transform(["good <59>"]).shape == (1, tiny.WIDTH)


def test_a_pad_token_beyond_the_embedding_table_is_not_used(texts):
    tokenizer = tiny.make_tokenizer(pad=False)
    tokenizer.add_special_tokens({"pad_token": "<new>"})
    model = tiny.make_model("bert")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.data = model.embeddings.word_embeddings.weight[
            : len(tokenizer) - 1
        ].clone()
    X = LLMLayerEmbedder(Backbone(model, tokenizer)).fit_transform(texts)
    Y = LLMLayerEmbedder(Backbone(model, tiny.make_tokenizer())).fit_transform(texts)
    np.testing.assert_allclose(X, Y, atol=1e-3)


def test_a_token_type_that_the_model_does_not_know():
    def tokenizer(texts: list[str], **_: Any) -> BatchEncoding:
        return BatchEncoding(
            {"input_ids": [[5]] * len(texts), "token_type_ids": [[2]] * len(texts)}
        )

    embedder = LLMLayerEmbedder(Backbone(tiny.make_model("bert"), tokenizer)).fit(["a"])
    with pytest.raises(ValueError, match="token type 2, but the model knows 2"):
        embedder.transform(["a"])
    other = LLMLayerEmbedder(Backbone(tiny.make_model("llama"), tokenizer))
    assert other.fit_transform(["a"]).shape == (1, tiny.WIDTH)  # which takes none


def test_a_tokenizers_limit_that_is_no_number():
    tokenizer = tiny.make_tokenizer()
    tokenizer.model_max_length = "512"
    with pytest.raises(TypeError, match="model_max_length is no number, but '512'"):
        LLMLayerEmbedder(Backbone(tiny.make_model("bert"), tokenizer)).fit_transform(["a"])


@pytest.mark.parametrize("n", [1, 2])
def test_a_max_length_without_room_for_a_text(folder, n):
    embedder = LLMLayerEmbedder(folder("bert"), max_length=n).fit(["a"])
    with pytest.raises(ValueError, match=rf"max_length={n} .* 2 special tokens.*at least 3"):
        embedder.transform(["a good film"])
