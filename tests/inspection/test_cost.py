"""What a model costs is measured in a process of its own."""

from __future__ import annotations

import pytest
from _support import tiny
from _support.tiny import tiny_texts
from sklearn.feature_extraction.text import TfidfVectorizer

from skfusion import EmbedderUnion, LLMLayerEmbedder, VectorStore, measure_costs


@pytest.mark.slow
def test_costs_of_a_union(folder, tmp_path):
    texts = tiny_texts(30)
    embedder = LLMLayerEmbedder(folder())
    union = EmbedderUnion([("tiny", embedder), ("no", "drop")], memory=tmp_path)
    costs = measure_costs(union, [*texts, *texts])
    assert costs.index.tolist() == ["tiny"] and costs.index.name == "model"
    cost = costs.loc["tiny"]
    assert cost.load_seconds > 0 and cost.peak_bytes > 0
    assert cost.seconds_per_text > 0
    # Every layer and six poolings, in float16 or float32; a text that comes twice is kept once.
    vectors = (tiny.DEPTH + 1) * 6 * tiny.WIDTH
    assert 2 * vectors <= cost.bytes_per_text <= 6 * vectors
    assert VectorStore(tmp_path).info()["n_texts"] == 0 and embedder.memory is None


def test_no_texts():
    with pytest.raises(ValueError, match="no texts"):
        measure_costs(EmbedderUnion([("words", TfidfVectorizer())]), [])
