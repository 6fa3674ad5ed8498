"""One tiny random model per family of models, and what the package makes of each.

``python -m _support.families`` (in the folder ``tests``) prints the README's table.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

from _support.by_hand import by_hand
from _support.tiny import (
    DEPTH,
    POSITIONS,
    WIDTH,
    WORDS,
    make_tokenizer,
    randomise,
    sizes,
    usual,
)
from skfusion import Backbone, LLMLayerEmbedder, VectorStore
from skfusion.embed.pooling import POOLINGS


def _plain(name: str, **options: Any) -> Callable[[], Any]:
    """A model ``{name}Model`` made from a ``{name}Config``."""

    def build() -> Any:
        return _class(f"{name}Model")(_class(f"{name}Config")(**options))

    return build


def _both_sides(**options: Any) -> dict[str, Any]:
    """The sizes that BART's kin share."""
    shared = {
        "d_model": WIDTH,
        "encoder_layers": DEPTH,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": POSITIONS,
        "decoder_start_token_id": 2,
    }
    return sizes(**shared | options)


def _encoder(name: str, **options: Any) -> Callable[[], Any]:
    """An encoder-decoder of BART's kin, of which the encoder counts."""
    return _plain(name, **_both_sides(**options))


def _class(name: str) -> Any:
    if not hasattr(transformers, name):
        raise NotImplementedError(f"transformers {transformers.__version__} has no {name}.")
    return getattr(transformers, name)


def _llama(**options: Any) -> Callable[[], Any]:
    return _plain("Llama", **usual(num_key_value_heads=1, **options))


def _rope(kind: str, **options: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **options}


def _mrope() -> dict[str, Any]:
    return _rope("default", mrope_section=[2, 1, 1])


def _gqa(name: str, **options: Any) -> Callable[[], Any]:
    return _plain(name, **usual(num_key_value_heads=1, **options))


#: Attention to the best keys alone.
_SPARSE = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 8}


def _deepseek(name: str, **options: Any) -> Callable[[], Any]:
    more = {
        "num_key_value_heads": 2,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 8,
        "first_k_dense_replace": 1,
    }
    return _plain(name, **usual(**more, **options))


def _t5(name: str, **options: Any) -> Callable[[], Any]:
    more = {"d_model": WIDTH, "num_layers": DEPTH, "num_decoder_layers": 1, "num_heads": 2}
    return _plain(name, **sizes(**more, d_kv=8, d_ff=24, decoder_start_token_id=0, **options))


def _text(kind: str, **options: Any) -> dict[str, Any]:
    return {"model_type": kind, **usual(**options)}


def _vision(**options: Any) -> dict[str, Any]:
    """A tower for pictures that is as deep and wide as the text's."""
    return {
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "image_size": 8,
        "patch_size": 4,
        **options,
    }


def _int8() -> Any:
    model = _plain("Bert", **usual())().eval()
    randomise(model)
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def _ibert_integers() -> Any:
    """I-BERT that computes in integers, whose ranges a pass in training mode has set."""
    model = _plain("IBert", **usual(quant_mode=True))()
    randomise(model)
    with torch.no_grad():
        model.train()(input_ids=torch.arange(10, 90).reshape(2, 40))
    return model


BUILDERS: dict[str, Callable[[], Any]] = {
    # Encoders.
    "BERT": _plain("Bert", **usual()),
    "DistilBERT": _plain(
        "DistilBert",
        **sizes(
            dim=WIDTH,
            n_layers=DEPTH,
            n_heads=2,
            hidden_dim=24,
            max_position_embeddings=POSITIONS,
        ),
    ),
    "RoBERTa": _plain("Roberta", **usual()),
    "XLM-R": _plain("XLMRoberta", **usual()),
    "CamemBERT": _plain("Camembert", **usual()),
    "ALBERT": _plain("Albert", **usual(embedding_size=8)),
    "DeBERTa": _plain("Deberta", **usual(relative_attention=True, pos_att_type=["p2c", "c2p"])),
    "DeBERTa-v2": _plain(
        "DebertaV2",
        **usual(
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["p2c", "c2p"],
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            position_biased_input=False,
        ),
    ),
    "DeBERTa-v2 (with its convolution)": _plain(
        "DebertaV2", **usual(conv_kernel_size=3, conv_act="gelu", relative_attention=True)
    ),
    "ELECTRA": _plain("Electra", **usual(embedding_size=8)),
    "MPNet": _plain("MPNet", **usual(relative_attention_num_buckets=32)),
    "ModernBERT": _plain(
        "ModernBert", **usual(local_attention=8, global_attn_every_n_layers=2, cls_token_id=2)
    ),
    "EuroBERT": _gqa("EuroBert"),
    "NomicBERT": _plain("NomicBert", **usual()),
    "GTE": _plain("Gte", **usual()),
    "jina-embeddings-v3": _plain("JinaEmbeddingsV3", **usual()),
    "EmbeddingGemma 2": _gqa(
        "EmbeddingGemma2Text",
        head_dim=8,
        global_head_dim=8,
        sliding_window=4,
        sliding_window_pattern=2,
        hidden_size_per_layer_input=8,
        embedding_dim=8,
    ),
    "Ernie": _plain("Ernie", **usual()),
    "MegatronBERT": _plain("MegatronBert", **usual()),
    "RemBERT": _plain("RemBert", **usual(input_embedding_size=8)),
    "RoFormer": _plain("RoFormer", **usual(embedding_size=8)),
    "MobileBERT": _plain(
        "MobileBert",
        **usual(embedding_size=8, intra_bottleneck_size=8, true_hidden_size=8),
    ),
    "SqueezeBERT": _plain("SqueezeBert", **usual(embedding_size=WIDTH)),
    "I-BERT": _plain("IBert", **usual()),
    "I-BERT (in integers)": _ibert_integers,
    "XLNet": _plain("XLNet", **sizes(d_model=WIDTH, n_layer=DEPTH, n_head=2, d_inner=24)),
    "XLM": _plain(
        "XLM", **sizes(emb_dim=WIDTH, n_layers=DEPTH, n_heads=2, max_position_embeddings=64)
    ),
    "Longformer": _plain("Longformer", **usual(attention_window=8)),
    "BigBird": _plain("BigBird", **usual(block_size=4, num_random_blocks=1)),
    "FNet": _plain(
        "FNet",
        **sizes(
            hidden_size=WIDTH,
            num_hidden_layers=DEPTH,
            intermediate_size=24,
            max_position_embeddings=POSITIONS,
        ),
    ),
    "ConvBERT": _plain(
        "ConvBert", **usual(embedding_size=8, conv_kernel_size=3, head_ratio=2, num_groups=1)
    ),
    "YOSO": _plain("Yoso", **usual()),
    "Nystromformer": _plain(
        "Nystromformer",
        **usual(num_landmarks=8, segment_means_seq_len=8, conv_kernel_size=3),
    ),
    "Funnel": _plain(
        "Funnel",
        **sizes(d_model=WIDTH, block_sizes=[1, 1], n_head=2, d_head=8, d_inner=24),
    ),
    "Reformer": _plain(
        "Reformer",
        **sizes(
            hidden_size=WIDTH,
            attention_head_size=8,
            num_attention_heads=2,
            feed_forward_size=24,
            attn_layers=["local", "local"],
            local_attn_chunk_length=4,
            axial_pos_embds=False,
            max_position_embeddings=POSITIONS,
            is_decoder=False,
        ),
    ),
    "Reformer (LSH)": _plain(
        "Reformer",
        **sizes(
            hidden_size=WIDTH,
            attention_head_size=8,
            num_attention_heads=2,
            feed_forward_size=24,
            attn_layers=["lsh", "lsh"],
            lsh_attn_chunk_length=4,
            num_buckets=4,
            axial_pos_embds=False,
            max_position_embeddings=POSITIONS,
            is_decoder=False,
        ),
    ),
    "CANINE": _plain(
        "Canine",
        **usual(
            num_hash_buckets=64,
            num_hash_functions=2,
            local_transformer_stride=8,
            downsampling_rate=4,
        ),
    ),
    "Perceiver": _plain(
        "Perceiver",
        **sizes(
            d_model=WIDTH,
            d_latents=WIDTH,
            num_latents=8,
            num_blocks=1,
            num_self_attends_per_block=DEPTH,
            num_self_attention_heads=2,
            num_cross_attention_heads=2,
            max_position_embeddings=POSITIONS,
        ),
    ),
    "BERT (dynamic int8)": _int8,
    # Decoders.
    "GPT-1": _plain(
        "OpenAIGPT", **sizes(n_embd=WIDTH, n_layer=DEPTH, n_head=2, n_positions=POSITIONS)
    ),
    "GPT-2": _plain("GPT2", **sizes(n_embd=WIDTH, n_layer=DEPTH, n_head=2, n_positions=POSITIONS)),
    "GPT-Neo": _plain(
        "GPTNeo",
        **sizes(
            hidden_size=WIDTH,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
            max_position_embeddings=POSITIONS,
        ),
    ),
    "GPT-J": _plain(
        "GPTJ",
        **sizes(n_embd=WIDTH, n_layer=DEPTH, n_head=2, n_positions=POSITIONS, rotary_dim=4),
    ),
    "GPT-NeoX": _plain("GPTNeoX", **usual()),
    "GPT-OSS": _gqa("GptOss", head_dim=8, sliding_window=4, num_local_experts=4),
    "CTRL": _plain("CTRL", **sizes(n_embd=WIDTH, n_layer=DEPTH, n_head=2, n_positions=64, dff=24)),
    "OPT": _plain("OPT", **usual(ffn_dim=24, word_embed_proj_dim=WIDTH)),
    "OPT (with narrower ends: 350m)": _plain(
        "OPT", **usual(ffn_dim=24, word_embed_proj_dim=8, do_layer_norm_before=False)
    ),
    "Bloom": _plain("Bloom", **sizes(hidden_size=WIDTH, n_layer=DEPTH, n_head=2)),
    "MPT": _plain("Mpt", **sizes(d_model=WIDTH, n_layers=DEPTH, n_heads=2, max_seq_len=POSITIONS)),
    "Falcon": _plain("Falcon", **usual(multi_query=True)),
    "Falcon (ALiBi)": _plain("Falcon", **usual(alibi=True, multi_query=False)),
    "Llama": _llama(),
    "Llama (linear rope)": _llama(rope_parameters=_rope("linear", factor=2.0)),
    "Llama (dynamic rope)": _llama(
        max_position_embeddings=16, rope_parameters=_rope("dynamic", factor=2.0)
    ),
    "Llama (yarn)": _llama(
        rope_parameters=_rope("yarn", factor=4.0, original_max_position_embeddings=16)
    ),
    "Llama (llama3 rope)": _llama(
        rope_parameters=_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        )
    ),
    "Mistral (sliding window)": _gqa("Mistral", sliding_window=4),
    "Mixtral": _gqa("Mixtral", num_local_experts=4),
    "Qwen2": _gqa("Qwen2"),
    "Qwen2 (sliding window)": _gqa(
        "Qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "Qwen2-MoE": _gqa(
        "Qwen2Moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
    ),
    "Qwen3": _gqa("Qwen3", head_dim=8),
    "Qwen3-MoE": _gqa(
        "Qwen3Moe", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8
    ),
    "OLMoE": _gqa("Olmoe", num_experts=4, num_experts_per_tok=2),
    "DeepSeek-V3": _deepseek("DeepseekV3"),
    "DeepSeek-V3.2": _deepseek("DeepseekV32", **_SPARSE),
    "GLM-5": _deepseek("GlmMoeDsa", **_SPARSE),
    "Doge (dynamic mask)": _gqa("Doge", keep_window_size=4),
    "Gemma": _gqa("Gemma", head_dim=8),
    "Gemma 2": _gqa("Gemma2", head_dim=8, sliding_window=4),
    "Gemma 3": _plain(
        "Gemma3Text",
        **usual(num_key_value_heads=1, head_dim=8, sliding_window=4, sliding_window_pattern=2),
    ),
    "Gemma 3 (both directions)": _plain(
        "Gemma3Text",
        **usual(
            num_key_value_heads=1, head_dim=8, sliding_window=4, use_bidirectional_attention=True
        ),
    ),
    "Phi": _plain("Phi", **usual()),
    "Phi-3": _gqa("Phi3"),
    "Phi-3 (longrope)": _gqa(
        "Phi3",
        original_max_position_embeddings=16,
        rope_parameters=_rope(
            "longrope", short_factor=[1.0] * 4, long_factor=[1.0, 2.0, 4.0, 8.0]
        ),
    ),
    "StableLM": _gqa("StableLm"),
    "Cohere": _gqa("Cohere"),
    "Cohere 2": _gqa("Cohere2", sliding_window=4),
    "OLMo 2": _gqa("Olmo2"),
    "SmolLM3": _gqa("SmolLM3"),
    "Granite": _gqa("Granite"),
    "StarCoder2": _gqa("Starcoder2", sliding_window=4),
    "Gemma 3n": _gqa(
        "Gemma3nText",
        intermediate_size=[24] * DEPTH,
        head_dim=8,
        sliding_window=4,
        vocab_size_per_layer_input=160,
        hidden_size_per_layer_input=8,
        altup_num_inputs=2,
        laurel_rank=4,
        num_kv_shared_layers=0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        activation_sparsity_pattern=[0.0] * DEPTH,
    ),
    "Gemma 4": _gqa(
        "Gemma4Text",
        head_dim=8,
        global_head_dim=8,
        sliding_window=4,
        vocab_size_per_layer_input=160,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=0,
    ),
    "Llama 4": _gqa(
        "Llama4Text",
        head_dim=8,
        intermediate_size_mlp=24,
        num_local_experts=4,
        attention_chunk_size=8,
        no_rope_layer_interval=2,
    ),
    "ModernBERT decoder": _plain(
        "ModernBertDecoder",
        **usual(local_attention=8, global_attn_every_n_layers=2, cls_token_id=2),
    ),
    "XGLM": _plain(
        "XGLM",
        **sizes(
            d_model=WIDTH,
            num_layers=DEPTH,
            attention_heads=2,
            ffn_dim=24,
            max_position_embeddings=POSITIONS,
        ),
    ),
    # Recurrent models and hybrids.
    "Mamba": _plain("Mamba", **sizes(hidden_size=WIDTH, num_hidden_layers=DEPTH, state_size=4)),
    "Mamba 2": _plain(
        "Mamba2",
        **sizes(
            hidden_size=WIDTH,
            num_hidden_layers=DEPTH,
            state_size=4,
            num_heads=4,
            head_dim=8,
            n_groups=1,
            chunk_size=8,
        ),
    ),
    "FalconMamba": _plain(
        "FalconMamba", **sizes(hidden_size=WIDTH, num_hidden_layers=DEPTH, state_size=4)
    ),
    "Jamba": _gqa(
        "Jamba",
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=2,
        num_experts_per_tok=1,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "Bamba": _gqa(
        "Bamba",
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_d_state=4,
        mamba_chunk_size=8,
    ),
    "Zamba": _plain(
        "Zamba",
        **usual(
            num_key_value_heads=2,
            layers_block_type=["mamba", "hybrid", "hybrid"],
            mamba_d_state=4,
            mamba_dt_rank=4,
            n_mamba_heads=2,
            use_mamba_kernels=False,
        ),
    ),
    "Zamba 2": _plain(
        "Zamba2",
        **usual(
            layers_block_type=["mamba", "mamba", "hybrid"],
            mamba_d_state=4,
            mamba_ngroups=1,
            n_mamba_heads=4,
            chunk_size=8,
        ),
    ),
    "Falcon-H1": _gqa(
        "FalconH1",
        mamba_d_ssm=32,
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_d_state=4,
        mamba_chunk_size=8,
    ),
    "RecurrentGemma": _gqa(
        "RecurrentGemma",
        lru_width=WIDTH,
        attention_window_size=4,
        block_types=["recurrent", "attention"],
    ),
    "LFM2": _gqa("Lfm2", full_attn_idxs=[1], block_multiple_of=8),
    "Qwen3-Next": _gqa(
        "Qwen3Next",
        head_dim=8,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
    ),
    "MiniMax": _gqa(
        "MiniMax",
        head_dim=8,
        num_local_experts=4,
        block_size=8,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    ),
    "Nemotron-H": _gqa(
        "NemotronH",
        layers_block_type=["mamba", "attention", "mlp"],
        mamba_num_heads=4,
        mamba_head_dim=8,
        ssm_state_size=4,
        n_groups=1,
        chunk_size=8,
        head_dim=8,
    ),
    "OLMo hybrid": _gqa("OlmoHybrid"),
    "Qwen3.5": _gqa(
        "Qwen3_5Text",
        head_dim=8,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        rope_parameters=_rope("default", mrope_section=[1, 1, 1], partial_rotary_factor=1.0),
    ),
    "RWKV": _plain(
        "Rwkv", **sizes(hidden_size=WIDTH, num_hidden_layers=DEPTH, context_length=POSITIONS)
    ),
    "RWKV (rescaled)": _plain(
        "Rwkv",
        **sizes(
            hidden_size=WIDTH,
            num_hidden_layers=DEPTH,
            context_length=POSITIONS,
            rescale_every=2,
        ),
    ),
    "xLSTM": _plain(
        "xLSTM",
        **sizes(
            hidden_size=WIDTH,
            num_hidden_layers=DEPTH,
            num_heads=2,
            chunk_size=8,
            qk_dim_factor=4.0,
            v_dim_factor=4.0,
        ),
    ),
    # Encoders of encoder-decoders.
    "T5": _t5("T5"),
    "mT5": _t5("MT5"),
    "UMT5": _t5("UMT5"),
    "LongT5 (local)": _t5("LongT5", local_radius=4, encoder_attention_type="local"),
    "LongT5 (transient-global)": _t5(
        "LongT5",
        local_radius=4,
        global_block_size=4,
        encoder_attention_type="transient-global",
    ),
    "Switch Transformers": _t5("SwitchTransformers", num_experts=4, num_sparse_encoder_layers=1),
    "BART": _encoder("Bart"),
    "mBART": _encoder("MBart"),
    "Pegasus": _encoder("Pegasus"),
    "Marian": _encoder("Marian"),
    "M2M-100": _encoder("M2M100"),
    "LED": _encoder(
        "LED",
        attention_window=8,
        max_encoder_position_embeddings=POSITIONS,
        max_decoder_position_embeddings=POSITIONS,
    ),
    "BigBirdPegasus": _encoder("BigBirdPegasus", block_size=4, num_random_blocks=1),
    "ProphetNet": _plain(
        "ProphetNet",
        **sizes(
            hidden_size=WIDTH,
            num_encoder_layers=DEPTH,
            num_decoder_layers=1,
            num_encoder_attention_heads=2,
            num_decoder_attention_heads=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            max_position_embeddings=POSITIONS,
        ),
    ),
    "PEGASUS-X": _encoder("PegasusX", block_size=8, num_global_tokens=4),
    "FSMT": _encoder("FSMT", langs=["en", "de"], src_vocab_size=160, tgt_vocab_size=160),
    "NLLB-MoE (limited experts)": _encoder(
        "NllbMoe",
        num_experts=2,
        encoder_sparse_step=1,
        decoder_sparse_step=1,
        moe_eval_capacity_token_fraction=0.5,
    ),
    "T5Gemma": _plain(
        "T5Gemma",
        encoder=_text("t5_gemma_module", num_key_value_heads=1, head_dim=8, sliding_window=4),
        decoder=_text(
            "t5_gemma_module", num_key_value_heads=1, head_dim=8, cross_attention_hidden_size=WIDTH
        ),
    ),
    "BERT to BERT": lambda: _class("EncoderDecoderModel")(
        encoder=_plain("Bert", **usual())(),
        decoder=_class("BertLMHeadModel")(
            _class("BertConfig")(**usual(is_decoder=True, add_cross_attention=True))
        ),
    ),
    # Models of several kinds of input, whose text part counts.
    "Gemma 3 (with pictures)": _plain(
        "Gemma3",
        text_config=_text("gemma3_text", num_key_value_heads=1, head_dim=8, sliding_window=4),
        vision_config=_vision(model_type="siglip_vision_model"),
        mm_tokens_per_image=4,
        image_token_index=159,
        boi_token_index=158,
        eoi_token_index=157,
    ),
    "LLaVA": _plain(
        "Llava",
        text_config=_text("llama", num_key_value_heads=1),
        vision_config=_vision(model_type="clip_vision_model", projection_dim=WIDTH),
        image_token_index=159,
    ),
    "InternVL": _plain(
        "InternVL",
        text_config=_text("qwen2", num_key_value_heads=1),
        vision_config=_vision(model_type="internvl_vision", image_size=[8, 8], patch_size=[4, 4]),
        image_token_id=159,
    ),
    "Qwen2-VL": _plain(
        "Qwen2VL",
        text_config=_text(
            "qwen2_vl_text",
            num_key_value_heads=1,
            rope_parameters=_mrope(),
        ),
        vision_config={
            "depth": DEPTH,
            "embed_dim": WIDTH,
            "hidden_size": WIDTH,
            "num_heads": 2,
            "patch_size": 4,
        },
        image_token_id=159,
        video_token_id=158,
        vision_start_token_id=157,
    ),
    "Qwen2-Audio": lambda: _class("Qwen2AudioForConditionalGeneration")(
        _class("Qwen2AudioConfig")(
            text_config=_text("qwen2", num_key_value_heads=1),
            audio_config={
                "model_type": "qwen2_audio_encoder",
                "d_model": WIDTH,
                "encoder_layers": DEPTH,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 24,
                "num_mel_bins": 8,
                "max_source_positions": 16,
            },
            audio_token_index=159,
        )
    ),
    "CLIP": _plain("CLIP", text_config=usual(), vision_config=_vision(), projection_dim=8),
    "SigLIP": _plain("Siglip", text_config=usual(), vision_config=_vision()),
    "AltCLIP": _plain(
        "AltCLIP", text_config=usual(project_dim=8), vision_config=_vision(), projection_dim=8
    ),
    "BLIP": _plain("Blip", text_config=usual(), vision_config=_vision(), projection_dim=8),
    "CLAP": _plain(
        "Clap",
        text_config=usual(),
        audio_config={
            "depths": [1, 1],
            "num_attention_heads": [2, 2],
            "patch_embeds_hidden_size": 8,
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
        },
        projection_dim=8,
    ),
    "FLAVA": _plain(
        "Flava",
        text_config=usual(),
        image_config=_vision(),
        multimodal_config=usual(),
        hidden_size=WIDTH,
        projection_dim=8,
    ),
    "PaliGemma": _plain(
        "PaliGemma",
        text_config=_text("gemma", num_key_value_heads=1, head_dim=8),
        vision_config=_vision(model_type="siglip_vision_model"),
        image_token_index=159,
    ),
    "Idefics 3": _plain(
        "Idefics3",
        text_config=_text("llama", num_key_value_heads=1),
        vision_config=_vision(),
        image_token_id=159,
    ),
    "Qwen3-VL": _plain(
        "Qwen3VL",
        text_config=_text(
            "qwen3_vl_text", num_key_value_heads=1, head_dim=8, rope_parameters=_mrope()
        ),
        vision_config={
            "depth": DEPTH,
            "hidden_size": WIDTH,
            "num_heads": 2,
            "intermediate_size": 24,
            "patch_size": 4,
            "out_hidden_size": WIDTH,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=159,
        video_token_id=158,
        vision_start_token_id=157,
        vision_end_token_id=156,
    ),
    "Mistral 3": _plain(
        "Mistral3",
        text_config=_text("mistral", num_key_value_heads=1, head_dim=8),
        vision_config=_vision(model_type="pixtral", head_dim=8),
        image_token_index=159,
        spatial_merge_size=1,
    ),
    "SmolVLM": _plain(
        "SmolVLM",
        text_config=_text("llama", num_key_value_heads=1),
        vision_config=_vision(),
        image_token_id=159,
    ),
    "ModernVBERT": _plain(
        "ModernVBert",
        text_config=_text("modernbert", local_attention=8, cls_token_id=2),
        vision_config=_vision(model_type="siglip_vision_model"),
        image_token_id=159,
    ),
    "Voxtral": _plain(
        "Voxtral",
        text_config=_text("llama", num_key_value_heads=1, head_dim=8),
        audio_config=_vision(num_mel_bins=8, max_source_positions=16),
        audio_token_id=159,
    ),
    "Florence-2": _plain(
        "Florence2",
        text_config={"model_type": "bart", **_both_sides()},
        vision_config={
            "depths": [1],
            "embed_dim": [WIDTH],
            "num_heads": [2],
            "num_groups": [2],
            "patch_size": [3],
            "patch_stride": [2],
            "patch_padding": [1],
            "patch_prenorm": [False],
            "window_size": 4,
            "projection_dim": WIDTH,
        },
        image_token_id=159,
    ),
    "Mllama": _plain(
        "Mllama",
        text_config=_text("mllama_text_model", num_key_value_heads=1, cross_attention_layers=[1]),
        vision_config={
            "hidden_size": WIDTH,
            "attention_heads": 2,
            "num_hidden_layers": 1,
            "num_global_layers": 1,
            "intermediate_size": 24,
            "image_size": 8,
            "patch_size": 4,
            "max_num_tiles": 1,
            "vision_output_dim": WIDTH,
            "intermediate_layers_indices": [0],
            "supported_aspect_ratios": [[1, 1]],
        },
    ),
    # Not of a text alone.
    "UDOP": _t5("Udop"),
    "LXMERT": _plain("Lxmert", **usual()),
    "ViT": _plain("ViT", **_vision()),
    "Whisper": _encoder(
        "Whisper", num_mel_bins=8, max_source_positions=16, max_target_positions=16
    ),
    "wav2vec 2.0": _plain(
        "Wav2Vec2",
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        conv_dim=[8],
        conv_stride=[2],
        conv_kernel=[3],
        num_feat_extract_layers=1,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    ),
}


#: What a Backbone decides, in the README's words.
HOW = {
    "padded": "in padded batches",
    "equal": "in batches of equal length",
    "single": "one text at a time",
    "last": "the last layer alone",
    "refused": "refused in `fit`",
}


def make_family(name: str, *, seed: int = 0) -> Any:
    """The tiny model of a family, in evaluation mode; NotImplementedError if it isn't there."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BUILDERS[name]()
        if BUILDERS[name] not in (_int8, _ibert_integers):
            randomise(model)
    return model.eval()


def text_part(model: Any) -> Any:
    """The part of a model whose hidden states are meant: an encoder, a text tower."""
    for name in ("language_model", "text_model"):
        if hasattr(model, name):
            return text_part(getattr(model, name))
    if getattr(model.config, "is_encoder_decoder", False) and hasattr(model, "get_encoder"):
        return model.get_encoder()
    return model


def states_of(model: Any, ids: list[int]) -> list[np.ndarray]:
    """hidden_states of one text alone, without padding; the last is last_hidden_state.

    Where that has another width than the blocks, the last is what the last block gives.
    """
    part = text_part(copy.deepcopy(model))  # some change themselves for good
    given: list[Any] = []
    if (block := _last_block(part)) is not None:
        block.register_forward_hook(lambda module, args, output: given.append(output))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)  # as the package does where a forward draws
        output = part(input_ids=torch.tensor([ids]), output_hidden_states=True)
    states = list(output.hidden_states)
    width = states[0].shape[-1]
    # A causal model's output has no last_hidden_state, and its last hidden state is that.
    last = getattr(output, "last_hidden_state", states[-1])
    if last.shape[-1] == width:
        states[-1] = last
    elif states[-1].shape[-1] != width:
        states[-1] = given[0][0] if isinstance(given[0], tuple) else given[0]
    # Window and block attention pad inside; the real tokens come first.
    return [state[0, : len(ids)].double().numpy() for state in states]


def _last_block(model: Any) -> Any:
    lists = (part for part in model.modules() if isinstance(part, torch.nn.ModuleList))
    return next((blocks[-1] for blocks in lists if len(blocks) == DEPTH), None)


def make_texts() -> list[str]:
    """Make eight texts of 1 to 40 tokens, some of equal length, the longest in between."""
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS[:26], size=n)) for n in (3, 1, 40, 9, 3, 17, 40, 30)]


@dataclass(frozen=True)
class Found:
    """What the package makes of a family."""

    outcome: str  # "padded", "equal", "single", "last" or "refused"
    message: str = ""  # why all layers or the inner ones are refused
    error: float = 0.0  # largest difference, relative to the largest value of the layer by hand
    off: float = 0.0  # largest difference
    way: str = ""  # of embedding, where that is


@functools.cache
def sweep(name: str) -> Found:
    """Embed by every layer and pooling, in several ways, and compare with the values by hand."""
    model, tokenizer, texts = make_family(name), make_tokenizer(ends=False), make_texts()
    backbone = Backbone(copy.deepcopy(model), tokenizer)
    # Some models are longer than their config's limit says, which is where they change.
    embedder = LLMLayerEmbedder(backbone, pooling=list(POOLINGS), max_length=48)
    embedder.set_params(batch_tokens=10**6, memory=VectorStore(dtype="float32"))
    message = ""
    try:
        layers = list(range(embedder.fit(texts).n_layers_ + 1))
    except (TypeError, ValueError) as refusal:
        return Found("refused", str(refusal))
    try:  # what a forward has to show is known at the first one
        embedder.set_params(layer=layers).fit(texts).transform(texts[:1])
    except ValueError as refusal:
        layers, message = layers[-1:], str(refusal)
        embedder.set_params(layer=layers).fit(texts)
    embedder.store_.clear()
    states = [states_of(model, tokenizer(text)["input_ids"]) for text in texts]
    expected = np.array(
        [[[by_hand(p, state[k]) for p in POOLINGS] for k in layers] for state in states]
    )
    largest = np.array([[[[np.abs(state[k]).max()]] for k in layers] for state in states])
    worst = Found("")
    for way, rows, columns in _ways(embedder, texts, layers):
        shape = (len(rows), len(columns), *expected.shape[2:])
        made = embedder.transform([texts[i] for i in rows]).reshape(shape)
        apart = np.abs(made - expected[np.ix_(rows, columns)])
        error = float((apart / largest[np.ix_(rows, columns)]).max())
        if error > worst.error:
            worst = Found("", message, error, float(apart.max()), way)
    return dataclasses.replace(worst, outcome="last" if message else backbone._probe.batching)


def _ways(
    embedder: LLMLayerEmbedder, texts: list[str], layers: list[int]
) -> Iterator[tuple[str, list[int], list[int]]]:
    """Set the embedder to each way, and yield its name, and which texts and layers it is of."""
    rows, columns = list(range(len(texts))), list(range(len(layers)))
    longest = [int(np.argmax([len(text) for text in texts]))]
    yield "in one batch", rows, columns
    embedder.set_params(batch_tokens=1).store_.clear()
    yield "one by one, the longest first", rows, columns
    embedder.store_.clear()
    yield "the longest after a short one", longest, columns
    embedder.model.model.train()
    embedder.set_params(batch_tokens=10**6).fit(texts).store_.clear()
    yield "in training mode", rows, columns
    assert all(module.training for module in embedder.model.model.modules())
    memory = VectorStore(dtype="float32", layers="requested")
    embedder.set_params(layer=layers[:2][-1:], memory=memory).fit(texts).store_.clear()
    yield "up to layer 1", rows, columns[:2][-1:]


def table(outcomes: Mapping[str, str]) -> str:
    """Return the README's table of what is made of each family."""
    lines = ["| how | families |", "| --- | --- |"]
    for outcome, how in HOW.items():
        names = (name for name, found in outcomes.items() if found == outcome)
        lines.append(f"| {how} | {', '.join(names)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table({name: sweep(name).outcome for name in BUILDERS}))
