"""Families of models against transformers' own hidden states, every layer by every pooling.

What is made of each stands in the README's table, which these tests hold to what they find.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import transformers
from _support import families
from _support.tiny import make_tokenizer
from packaging.version import Version

from skfusion import Backbone, LLMLayerEmbedder

README = Path(__file__).parents[2] / "README.md"
TOLERANCE = 2e-6
#: Those of which rounding alone takes most of that.
TOLERANCES = dict.fromkeys(["MobileBERT", "NomicBERT", "mT5", "xLSTM", "Zamba 2"], 5e-6)
#: Why a model, or its inner layers, are refused, as far as the message must say it.
REFUSED = {
    "Funnel": "FunnelModel.*shorten",
    "Reformer": "ReformerModel.*twice as wide",
    "Reformer (LSH)": "ReformerModel.*random",
    "CANINE": "CanineModel.*every fourth character",
    "Perceiver": "PerceiverModel reads inputs",
    "Gemma 3n": r"Layer 0 of .*Gemma3nTextModel.* shape \(2, 1, \d+, 16\).*used: 3\.",
    "UDOP": "UdopModel.*place of each word",
    "LXMERT": "LxmertModel.*picture",
    "ViT": "ViTModel reads pixel_values",
    "Whisper": "WhisperEncoder reads input_features",
    "wav2vec 2.0": "Wav2Vec2Model reads input_values",
}
#: One family of each kind; the others are slow.
FAST = {
    *("BERT", "MobileBERT", "XLNet", "Longformer", "BigBird", "FNet", "BERT (dynamic int8)"),
    *("GPT-1", "OPT (with narrower ends: 350m)", "Bloom", "Llama (dynamic rope)", "Mixtral"),
    *("Mistral (sliding window)", "Mamba", "Jamba", "T5", "LongT5 (local)", "PEGASUS-X"),
    *("LED", "NLLB-MoE (limited experts)", "LLaVA", "CLIP", "Mllama", "Funnel", "ViT"),
}
#: Those whose parts, or weights under other names, have to be found in a folder.
FROM_A_FOLDER = [
    *("OPT (with narrower ends: 350m)", "GPT-1", "MPNet", "LongT5 (local)", "BART", "LED"),
    *("BERT to BERT", "T5Gemma", "CLIP", "CLAP", "FLAVA", "Gemma 3 (with pictures)"),
    *("Qwen2-Audio", "Voxtral", "Florence-2", "Mllama"),
]
OLDER = Version(transformers.__version__) < Version("5.24")
#: What is wrong with models of releases before 5.24, so that there is nothing to compare with.
NOT_YET = {
    "Zamba 2": "it has no rotary_emb",
    "RecurrentGemma": "it computes otherwise without its cache",
    "xLSTM": "it fails by itself",
    "CLIP": "its text part gives no hidden states",
    "SigLIP": "its text part gives no hidden states",
}


def table() -> dict[str, str]:
    """Return what the README says of each family."""
    section = README.read_text(encoding="utf-8").partition("\n## Model families\n")[2]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    ways = {how: way for way, how in families.HOW.items()}
    return {
        name: ways[how] for how, names in rows if how in ways for name in names.split(", ") if name
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
        for name in families.BUILDERS
    ],
)
@pytest.mark.filterwarnings("ignore")  # of transformers and torch about their own models
def test_vectors_are_those_of_a_text_alone(name):
    if name in NOT_YET and OLDER:
        pytest.skip(f"transformers {transformers.__version__}: {NOT_YET[name]}.")
    try:
        found = families.sweep(name)
    except NotImplementedError as reason:  # an older transformers
        pytest.skip(str(reason))
    assert found.outcome == table()[name], found
    assert re.search(REFUSED.get(name, "^$"), found.message), found.message
    assert found.error <= TOLERANCES.get(name, TOLERANCE), found


@pytest.mark.parametrize(
    "name",
    [
        *("T5", "LLaVA"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in FROM_A_FOLDER),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_saved_model_is_the_one_in_memory(tmp_path, name):
    try:
        model, tokenizer = families.make_family(name), make_tokenizer(ends=False)
    except NotImplementedError as reason:
        pytest.skip(str(reason))
    if name in NOT_YET and OLDER:
        pytest.skip(f"transformers {transformers.__version__}: {NOT_YET[name]}.")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    made = [
        LLMLayerEmbedder(whole, memory=tmp_path / str(i)).fit_transform(families.make_texts())
        for i, whole in enumerate([tmp_path / "model", Backbone(model, tokenizer)])
    ]
    np.testing.assert_array_equal(*made)


def test_the_table_of_families_is_whole():
    assert families.table(table()) in README.read_text(encoding="utf-8")
    assert set(table()) == set(families.BUILDERS) > FAST
    assert {name for name, way in table().items() if way in ("refused", "last")} == set(REFUSED)
