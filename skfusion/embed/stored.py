"""What embedders of texts share that keep their vectors in a store."""

from __future__ import annotations

import os
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import joblib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils._param_validation import Options
from sklearn.utils.validation import check_is_fitted

from .encoding import Encoded
from .session import session_folder
from .store import NoStore, VectorStore
from .texts import Missing

#: What the parameter `memory` takes.
Memory: TypeAlias = str | os.PathLike[str] | joblib.Memory | VectorStore | Literal[False] | None
#: The same for scikit-learn's `_parameter_constraints`.
MEMORY = [str, os.PathLike, joblib.Memory, VectorStore, Options(bool, {False}), None]
#: Of a call. A fitted embedder holds them in one dict, since `transform` must leave its attributes
#: as they are.
NO_COUNTS = {"truncated": 0, "encoded": 0, "found": 0}


class StoredEmbedder(TransformerMixin, BaseEstimator, metaclass=ABCMeta):
    """Base of `LLMLayerEmbedder` and `CallableEmbedder`."""

    memory: Memory
    missing: Missing
    normalize: bool
    _counts: dict[str, int]  # set by `fit`

    @abstractmethod
    def _scope(self) -> tuple[str, dict[str, Any]]:
        """Return the name of the store's folder, and what `info` says of it."""

    @property
    def store_(self) -> VectorStore:
        """The part of `memory` for this model and these settings."""
        check_is_fitted(self, "_counts")
        return self._memory()._scoped(*self._scope())

    @property
    def n_encoded_(self) -> int:
        """How many different texts of the last call passed through the model."""
        return self._counts["encoded"]

    @property
    def n_found_(self) -> int:
        """How many different texts of the last call were found in the store."""
        return self._counts["found"]

    def fit_transform(self, X: ArrayLike, y: Any = None) -> NDArray[np.float32]:
        """Fit to texts and embed them: `fit`, and then `transform`.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts, as in `fit`.
        y : array-like or None, default=None
            As in `fit`.

        Returns
        -------
        ndarray of float32, shape (n_texts, n_features)
            As `transform` returns.
        """
        self.fit(X, y)
        before = self._counts["encoded"]
        vectors: NDArray[np.float32] = self.transform(X)
        self._counts["encoded"] += before
        self._counts["found"] = max(0, self._counts["found"] - before)
        return vectors

    def _memory(self) -> VectorStore:
        if isinstance(self.memory, VectorStore):
            return self.memory
        return NoStore() if self.memory is False else VectorStore(self.memory)

    def _count(self, encoded: Encoded) -> None:
        self._counts["truncated"] = encoded.n_truncated
        # A call that reads more than fits the memory looks into the store several times.
        self._counts["encoded"] += encoded.n_encoded
        self._counts["found"] = max(0, encoded.n_different - self._counts["encoded"])

    def _normalized(self, vectors: NDArray[np.float32], width: int) -> NDArray[np.float32]:
        if self.normalize:
            blocks = vectors.reshape(-1, width)
            norms = np.linalg.norm(blocks, axis=1, keepdims=True)
            return np.divide(blocks, np.where(norms == 0, 1, norms)).reshape(vectors.shape)
        return vectors

    def __getstate__(self) -> Mapping[str, Any]:
        if self.memory is None:
            session_folder()  # workers look for it, so it must exist before they are sent this
        state: Mapping[str, Any] = super().__getstate__()
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.input_tags.allow_nan = self.missing == "empty"
        tags.transformer_tags.preserves_dtype = []
        return tags
