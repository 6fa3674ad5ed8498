"""`LLMLayerEmbedder`: any layer, any pooling of a language model as a scikit-learn transformer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from .backbone import Backbone
from .encoding import Encoded, NonFiniteError, Spec, encode
from .layers import feature_names, resolve_layers, resolve_poolings, resolve_stored
from .loading import load, resolve, resolve_device, resolve_dtype
from .pooling import POOLINGS
from .session import session_folder
from .store import VectorStore
from .texts import Missing, check_texts

if TYPE_CHECKING:
    import torch


_WARNED: set[str] = set()  # fingerprints whose cut texts this process has heard of


class TruncationWarning(UserWarning):
    """Some texts were longer than the model or `max_length` takes, and were cut."""


class LLMLayerEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn texts into the pooled hidden states of a language model.

    The layer and the pooling are hyperparameters: the first pass of a text through the model
    pools and stores all layers with all poolings, so that a search over them runs each text
    through the model once.

    Parameters
    ----------
    model : str, path-like or Backbone
        A hub id, a folder, a ``.gguf`` file, or a `Backbone` that is in memory already.
    layer : int, float or list of these, default=-1
        Which hidden state: 0 is the embedding output, L (or -1) the last, after the final norm
        where the model has one. Valid are -(L+1) to L. A float f in (0, 1] is the depth
        ``round(f * L)``. A list gives one block of columns a layer.
    pooling : str or list of str, default="mean"
        How a text's token states become one vector, over its real tokens: "mean", "last",
        "first", "max", "weighted_mean" (weights 1 to T) or "mean_no_first" (without the first
        token, an attention sink in decoder models). A list gives one block each.
    max_length : int or None, default=None
        Most tokens of a text, the special ones counted. None takes the smaller of the
        tokenizer's and the model's limit.
    prompt : str or None, default=None
        Put before every text; its tokens take part in the pooling.
    device : str, torch.device or None, default=None
        None picks cuda, mps, cpu in that order when the model is loaded. "auto" spreads a large
        model over the devices there are (needs accelerate).
    dtype : str, torch.dtype or None, default=None
        What the model computes in. None is float32, and bfloat16 on a GPU that has it; "auto" is
        what the checkpoint says. Pooling and output are float32 always.
    batch_tokens : int or "auto", default="auto"
        Largest number of tokens of a batch, padding counted. It is halved when memory runs out.
    memory : path-like, joblib.Memory, VectorStore or None, default=None
        Where vectors are stored. None is a temporary folder shared with joblib's workers and
        removed at exit. A `VectorStore` can have a size limit.
    store_layers : "all", "requested" or list, default="all"
        Layers that a pass stores. "requested" keeps only what `layer` and `pooling` ask for, and
        the pass stops behind the deepest of these layers. A list is of the form of `layer`.
    store_poolings : "all", "requested" or list of str, default="all"
        Poolings that a pass stores, where `store_layers` is not "requested".
    store_dtype : {"auto", "float32", "float16"}, default="auto"
        "auto" rounds a vector to float16 where the error is at most 1e-3 of its norm and no value
        reaches 6e4; others stay float32. What is returned is what is stored, cold or warm.
    missing : {"error", "empty"}, default="error"
        What to do with None and NaN: raise, or take them for "".
    normalize : bool, default=False
        Whether to scale each block of each row to unit Euclidean length.
    revision : str or None, default=None
        Branch, tag or commit of a hub id.
    trust_remote_code : bool, default=False
        Whether a model may bring its own code; passed to transformers.
    attn_implementation : str or None, default=None
        Passed to transformers, for example "eager", "sdpa" or "flash_attention_2".
    verbose : int, default=0
        Above 0, a progress bar counts the texts that pass through the model.

    Attributes
    ----------
    layers_ : list of int
        The layers of the output, counted from 0.
    poolings_ : list of str
        The poolings of the output.
    n_layers_ : int
        Number of blocks L of the model.
    hidden_size_ : int
        Length of one vector.
    output_indices_ : dict of str to slice
        The columns of each block ``layer{k}_{pooling}``.
    store_ : VectorStore
        What is stored for this model and these settings: ``info()``, ``clear()``, ``verify()``.
    n_truncated_ : int
        How many texts of the last call were cut.

    See Also
    --------
    Backbone : A model and tokenizer that are in memory already.
    VectorStore : A store with a size limit.

    References
    ----------
    Gwak and Jung, "Beyond Single Representations: Multi-Model Embedding Fusion for Stable Text
    Classification", ACL 2026.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from skfusion import LLMLayerEmbedder
    >>> embedder = LLMLayerEmbedder(tiny_model, layer=1, pooling=["mean", "last"])
    >>> embedder.fit_transform(["good film", "bad film"]).shape
    (2, 32)
    >>> list(embedder.output_indices_)
    ['layer1_mean', 'layer1_last']
    >>> pipe = make_pipeline(embedder, LogisticRegression())
    >>> pipe.fit(["good film", "bad film"], ["pos", "neg"]).predict(["good film"])
    array(['pos'], dtype='<U3')
    """

    _parameter_constraints: dict[str, Any] = {  # noqa: RUF012 - scikit-learn's own form
        "model": [str, os.PathLike, Backbone],
        "layer": [Integral, Real, list, tuple, np.ndarray, StrOptions({"auto", "mean"})],
        "pooling": [StrOptions(set(POOLINGS)), list, tuple],
        "max_length": [Interval(Integral, 1, None, closed="left"), None],
        "prompt": [str, None],
        "device": "no_validation",
        "dtype": "no_validation",
        "batch_tokens": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "memory": [str, os.PathLike, joblib.Memory, VectorStore, None],
        "store_layers": [StrOptions({"all", "requested"}), list, tuple],
        "store_poolings": [StrOptions({"all", "requested"}), list, tuple],
        "store_dtype": [StrOptions({"auto", "float32", "float16"})],
        "missing": [StrOptions({"error", "empty"})],
        "normalize": ["boolean"],
        "revision": [str, None],
        "trust_remote_code": ["boolean"],
        "attn_implementation": [str, None],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        model: str | os.PathLike[str] | Backbone,
        *,
        layer: int | float | list[int | float] | str = -1,
        pooling: str | list[str] = "mean",
        max_length: int | None = None,
        prompt: str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        batch_tokens: int | str = "auto",
        memory: str | os.PathLike[str] | joblib.Memory | VectorStore | None = None,
        store_layers: str | list[int | float] = "all",
        store_poolings: str | list[str] = "all",
        store_dtype: str = "auto",
        missing: Missing = "error",
        normalize: bool = False,
        revision: str | None = None,
        trust_remote_code: bool = False,
        attn_implementation: str | None = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.layer = layer
        self.pooling = pooling
        self.max_length = max_length
        self.prompt = prompt
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens
        self.memory = memory
        self.store_layers = store_layers
        self.store_poolings = store_poolings
        self.store_dtype = store_dtype
        self.missing = missing
        self.normalize = normalize
        self.revision = revision
        self.trust_remote_code = trust_remote_code
        self.attn_implementation = attn_implementation
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: ArrayLike, y: Any = None) -> LLMLayerEmbedder:
        """Read the model's config and settle layers and poolings; no weights are loaded.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts: a list, numpy array, Series, pyarrow array or one-column frame.
        y : ignored
            There for scikit-learn's interface.

        Returns
        -------
        LLMLayerEmbedder
            Itself.

        Raises
        ------
        TypeError
            If `X` is not a container of texts.
        ValueError
            If `X` is empty or misses values, or a parameter is out of the model's range.
        OSError
            If the model cannot be found or reached.
        """
        if not check_texts(X, missing=self.missing):
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        spec = self._make_spec()
        n_layers = spec.source.n_layers
        self.layers_ = resolve_layers(self.layer, n_layers, name="layer")
        self.poolings_ = resolve_poolings(self.pooling, name="pooling")
        self._stored = resolve_stored(
            self.store_layers, self.store_poolings, self.layers_, self.poolings_, n_layers
        )
        self.n_layers_ = n_layers
        self.hidden_size_ = spec.source.width
        self.output_indices_ = {
            f"layer{layer}_{pooling}": slice(i * self.hidden_size_, (i + 1) * self.hidden_size_)
            for i, (layer, pooling) in enumerate(self._columns())
        }
        self.n_truncated_ = 0
        self._spec = spec
        memory = self.memory if isinstance(self.memory, VectorStore) else VectorStore(self.memory)
        self.store_ = memory.scoped(spec.fingerprint(), spec.about())
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Embed texts, running only those through the model that are not stored.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts, as in `fit`.

        Returns
        -------
        ndarray of float32, shape (n_texts, n_layers * n_poolings * hidden_size_)
            One block for each layer and pooling, poolings varying fastest; see
            `output_indices_`. Always finite and C-contiguous.

        Raises
        ------
        TypeError
            If `X` is not a container of texts.
        ValueError
            If `X` misses values, or a vector is not finite.
        OSError
            If the model's weights are needed and cannot be found or reached.

        Warns
        -----
        TruncationWarning
            If texts were cut: once a call that computes them, and once a process for texts
            whose vectors are stored.
        StoreWarning
            If vectors cannot be stored, or some were found damaged.
        """
        check_is_fitted(self)
        vectors = self._encode(X, progress=bool(self.verbose))
        if self.normalize:
            blocks = vectors.reshape(-1, self.hidden_size_)
            norms = np.linalg.norm(blocks, axis=1, keepdims=True)
            blocks /= np.where(norms == 0, 1, norms)
        return vectors

    def warm(self, X: ArrayLike, *, verbose: int = 1) -> LLMLayerEmbedder:
        """Fill the store with the vectors of texts, showing a progress bar.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts, as in `fit`.
        verbose : int, default=1
            0 hides the bar.

        Returns
        -------
        LLMLayerEmbedder
            Itself; fitted, if it was not.
        """
        if not hasattr(self, "store_"):
            self.fit(X)
        self._encode(X, progress=bool(verbose))
        return self

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Name the output's columns ``layer{k}_{pooling}_{i}``.

        Parameters
        ----------
        input_features : ignored
            Texts have no features.

        Returns
        -------
        ndarray of str objects
            One name a column.
        """
        check_is_fitted(self)
        return feature_names(self.output_indices_)

    def _columns(self) -> list[tuple[int, str]]:
        return [(layer, pooling) for layer in self.layers_ for pooling in self.poolings_]

    def _make_spec(self) -> Spec:
        """Fix all that changes a vector, so that later `set_params` cannot mix up the store."""
        source = resolve(
            self.model, revision=self.revision, trust_remote_code=self.trust_remote_code
        )
        dtype = resolve_dtype(self.dtype, resolve_device(self.device), source.saved_dtype)
        if isinstance(self.model, Backbone):
            dtype = self._check_backbone(self.model)
        if self.max_length is not None and source.fixed_positions:
            limit = source.max_positions
            if limit is not None and self.max_length > limit:
                raise ValueError(
                    f"max_length={self.max_length} is more than the {limit} positions that "
                    f"{source.name!r} has. Use at most {limit}, or None for that."
                )
        return Spec(
            source=source,
            prompt=self.prompt or None,
            max_length=self.max_length,
            dtype=dtype,
            attn_implementation=self.attn_implementation,
            store_dtype=self.store_dtype,
        )

    def _check_backbone(self, backbone: Backbone) -> str:
        """Refuse to move or cast a model that the user made."""
        if self.device is not None:
            device, wanted = backbone.device, resolve_device(self.device)
            if wanted not in (str(device), device.type):
                raise ValueError(
                    f"device={self.device!r}, but the Backbone's model is on {device}. Move it "
                    f"yourself with model.to(...), or leave device=None."
                )
        wanted = resolve_dtype(self.dtype, "cpu", backbone.dtype)
        if self.dtype is not None and wanted != backbone.dtype:
            raise ValueError(
                f"dtype={self.dtype!r}, but the Backbone's model is in {backbone.dtype}. Cast it "
                f"yourself with model.to(...), or leave dtype=None."
            )
        if self.attn_implementation is not None:
            raise ValueError(
                f"attn_implementation={self.attn_implementation!r} cannot be changed on a "
                f"Backbone. Load its model with it."
            )
        return backbone.dtype

    def _load(self) -> Backbone:
        """Bring the weights; called only when a text is not stored."""
        spec = self._spec
        if isinstance(self.model, Backbone):
            if self.model.identity() != spec.source.identity:
                raise ValueError(
                    f"{self.model!r} is not the model, or no longer has the weights, with which "
                    f"this embedder was fitted. Call fit again."
                )
            return self.model
        return load(
            spec.source,
            device=resolve_device(self.device),
            dtype=spec.dtype,
            attn_implementation=spec.attn_implementation,
        )

    def _encode(self, X: ArrayLike, *, progress: bool) -> NDArray[np.float32]:
        texts = check_texts(X, missing=self.missing)
        try:
            encoded = encode(
                texts,
                columns=self._columns(),
                stored=self._stored,
                spec=self._spec,
                store=self.store_,
                load=self._load,
                batch_tokens=self.batch_tokens,
                progress=progress,
            )
        except NonFiniteError as error:
            raise self._explain(error, texts) from None
        self._warn_if_truncated(encoded, len(texts))
        return encoded.vectors

    def _explain(self, error: NonFiniteError, texts: list[str]) -> ValueError:
        text = list(dict.fromkeys(texts))[error.row]
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        dtypes = f"dtype={self._spec.dtype!r}"
        if self._spec.store_dtype == "float16":
            dtypes += " stored as float16"
        return ValueError(
            f"The {error.pooling} vector of layer {error.layer} is not finite for the text at "
            f"position {texts.index(text)} ({shown!r}), computed in {dtypes}. Nothing of it was "
            f"stored; the texts before it were. Use dtype='float32' and store_dtype='auto', or "
            f"leave the text out."
        )

    def _warn_if_truncated(self, encoded: Encoded, n_texts: int) -> None:
        self.n_truncated_ = encoded.n_truncated
        if not encoded.n_truncated:
            return
        # A search reads the same cut texts from the store hundreds of times: of those it is
        # enough to hear once a process.
        fingerprint = self._spec.fingerprint()
        if fingerprint in _WARNED and not encoded.newly_truncated:
            return
        _WARNED.add(fingerprint)
        limit = self._spec.max_length or "the model's limit"
        warnings.warn(
            f"{encoded.n_truncated} of {n_texts} texts were longer than max_length ({limit} "
            f"tokens) and were cut.",
            TruncationWarning,
            stacklevel=4,
        )

    @property
    def _n_features_out(self) -> int:
        return len(self._columns()) * self.hidden_size_

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
