"""Stand-ins for models and estimators: they count, break, or speak numbers."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from skfusion import Backbone, LLMLayerEmbedder
from skfusion.embed.probe import look


class CountingEmbedder(LLMLayerEmbedder):
    """Writes each load and each forward into ``{model}.log``, from whatever process it runs in."""

    def _load(self) -> Backbone:
        backbone = super()._load()
        hooked = hasattr(backbone, "log")
        # A model of the same content may be loaded already, for a folder of another test.
        backbone.log = Path(f"{self.model}.log")  # type: ignore[attr-defined]
        _append(backbone.log, "load")  # type: ignore[attr-defined]
        if not hooked:
            probed(backbone, self._spec.identity)  # whose rows are no texts
            backbone._body.register_forward_pre_hook(
                lambda module, args, kwargs: _append(backbone.log, str(len(kwargs["input_ids"]))),
                with_kwargs=True,
            )
        return backbone


def _append(log: Path, line: str) -> None:
    with open(log, "a", encoding="ascii") as file:
        file.write(f"{line}\n")


def read_log(model: str | os.PathLike[str]) -> tuple[int, int]:
    """Number of loads and of texts that went through the forward since the last look."""
    log = Path(f"{model}.log")
    lines = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines.count("load"), sum(int(line) for line in lines if line != "load")


class NumericRows(TransformerMixin, BaseEstimator):
    """Writes numeric rows out as texts, so that scikit-learn's checks reach a text estimator."""

    def __init__(self, embedder: LLMLayerEmbedder | None = None) -> None:
        self.embedder = embedder

    def _texts(self, X: Any, *, reset: bool) -> list[str]:
        X = validate_data(self, X, reset=reset, dtype=np.float64)
        return [" ".join(f"{value:.7g}" for value in row) for row in X]

    def fit(self, X: Any, y: Any = None) -> NumericRows:
        texts = self._texts(X, reset=True)
        self.embedder_ = clone(self.embedder).fit(texts, y)
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        check_is_fitted(self)
        return self.embedder_.transform(self._texts(X, reset=False))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        check_is_fitted(self)
        return self.embedder_.get_feature_names_out(input_features)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.embedder.__sklearn_tags__().target_tags.required
        tags.transformer_tags.preserves_dtype = []
        return tags


class LengthTokenizer:
    """One token a letter, ids 1 to 26; nothing but a call."""

    def __call__(self, texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
        limit = options["max_length"] if options.get("truncation") else None
        return {"input_ids": [[ord(c) % 26 + 1 for c in text][:limit] for text in texts]}


class StubModel(torch.nn.Module):
    """A forward and nothing else; `change` may break its hidden states (layers, batch, ...)."""

    def __init__(self, change: Any = None, *, max_rows: int | None = None, depth: int = 2) -> None:
        super().__init__()
        self.change, self.max_rows, self.depth = change, max_rows, depth
        self.failed = self.passed = 0

    def forward(
        self, input_ids: Any, attention_mask: Any, output_hidden_states: bool = False
    ) -> Any:
        if self.max_rows is not None and len(input_ids) > self.max_rows:
            self.failed += 1
            raise torch.OutOfMemoryError("stub")
        self.passed += len(input_ids)
        base = torch.stack([input_ids.float() * (i + 1) for i in range(4)], dim=-1)
        states = [base + 10 * k for k in range(self.depth + 1)]
        if self.change is not None:
            states = [
                self.change(k, state, attention_mask.bool()) for k, state in enumerate(states)
            ]
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=tuple(states))


def probed(backbone: Backbone, identity: str | None = None) -> Backbone:
    """Look at a model as its first use does, so that only texts are counted from then on."""
    look(backbone, identity)
    return backbone


def stub(change: Any = None, **options: Any) -> Backbone:
    return Backbone(StubModel(change, **options), LengthTokenizer())


def read_numbers(texts: Any) -> NDArray[np.float64]:
    """Return the numbers of texts."""
    return np.array([[float(number) for number in text.split()] for text in texts])


class NumberReader(TransformerMixin, BaseEstimator):
    """A model that reads the numbers of a text: as cheap as a model can be."""

    def fit(self, X: Any, y: Any = None) -> NumberReader:
        self.n_numbers_ = len(X[0].split())
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        return read_numbers(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        return np.array([f"number{i}" for i in range(self.n_numbers_)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        return tags


def planted(k: int, state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Layer 2 keeps what the text says, the others are empty."""
    return state if k == 2 else state * 0
