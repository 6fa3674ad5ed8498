"""What the embedder is compared with: the libraries, and the loop that one writes without any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from numpy.typing import NDArray

ROWS = 32  # of a batch: the default of sentence-transformers, skrub and embetter


def load_libraries(folder: str, scratch: str, max_length: int) -> dict[str, Any]:
    """Load each library's own copy of the model."""
    from embetter.text import SentenceEncoder
    from sentence_transformers import SentenceTransformer
    from skrub import LLMEncoder
    from transformers import pipeline

    peers = {
        "sentence_transformers": SentenceTransformer(folder, device="cpu"),
        "skrub": LLMEncoder(folder, n_components=None, device="cpu", cache_folder=scratch),
        "embetter": SentenceEncoder(folder, device=torch.device("cpu")),
        "pipeline": pipeline("feature-extraction", model=folder, tokenizer=folder, device="cpu"),
    }
    for loaded in (
        peers["sentence_transformers"],
        peers["skrub"]._estimator,
        peers["embetter"].tfm,
    ):
        loaded.max_seq_length = max_length
    return peers


def library_runs(
    peers: dict[str, Any], texts: list[str], max_length: int
) -> dict[str, Callable[[], Any]]:
    """Return a call for each library, with its own batches of 32."""
    column = pd.Series(texts)
    pipe, cut = peers["pipeline"], {"truncation": True, "max_length": max_length}
    # The pipeline returns padding too, but no mask. What its user pays for one is left out here.
    lengths = [len(ids) for ids in pipe.tokenizer(texts, **cut)["input_ids"]]

    def run_pipeline() -> NDArray[np.float32]:
        states = pipe(texts, batch_size=ROWS, tokenize_kwargs=dict(cut), return_tensors=True)
        pairs = zip(states, lengths, strict=True)
        return torch.stack([hidden[0, :n].mean(dim=0) for hidden, n in pairs]).numpy()

    return {
        "sentence_transformers": lambda: peers["sentence_transformers"].encode(texts),
        "skrub": lambda: peers["skrub"].fit_transform(column).to_numpy(),
        "embetter": lambda: peers["embetter"].fit_transform(texts),
        "pipeline": run_pipeline,
    }


class PlainLoop:
    """What one writes without a library: `AutoModel(output_hidden_states=True)` in a loop.

    Batches of 32 texts sorted by length; mean over the mask, and last token.
    """

    def __init__(self, folder: str) -> None:
        self.model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="right")

    def __call__(
        self,
        texts: Sequence[str],
        columns: Sequence[tuple[int, str]],
        max_length: int = 256,
        rows: int = ROWS,
    ) -> torch.Tensor:
        """Return the vectors of some (layer, pooling), shape (n_texts, len(columns), width)."""
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        parts = []
        for start in range(0, len(order), rows):
            chosen = [texts[i] for i in order[start : start + rows]]
            parts.append(self._batch(chosen, columns, max_length))
        return torch.cat(parts)[torch.tensor(order).argsort()]

    @torch.inference_mode()
    def _batch(
        self, texts: list[str], columns: Sequence[tuple[int, str]], max_length: int
    ) -> torch.Tensor:
        tokens = self.tokenizer(
            texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt"
        )
        output = self.model(**tokens, output_hidden_states=True, use_cache=False)
        states = output.hidden_states
        mask = tokens["attention_mask"].unsqueeze(2)
        lengths = mask.sum(dim=1)
        everyone = torch.arange(len(texts))
        pooled = [
            (states[layer] * mask).sum(dim=1) / lengths
            if pooling == "mean"
            else states[layer][everyone, lengths[:, 0] - 1]
            for layer, pooling in columns
        ]
        return torch.stack(pooled, dim=1)
