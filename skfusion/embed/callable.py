"""`CallableEmbedder`: the vectors of any function of texts, each text computed once."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import joblib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context, clone
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from .encoding import encode_by
from .stored import MEMORY, NO_COUNTS, Memory, StoredEmbedder
from .texts import Missing, check_texts

_COLUMN = (0, "encoded")  # how the store calls the only vector of a text


class CallableEmbedder(StoredEmbedder):
    """Store what a function makes of texts, so that each text is computed once.

    The function may be the `encode` of a sentence-transformers or model2vec model with its own
    pooling and prompts, or ask an inference server or an API. Its vectors are stored per text
    under `name` and `version`: a search, a second process and a run that goes on where it was
    interrupted compute nothing again.

    Parameters
    ----------
    encode : callable
        Takes a list of str and returns their vectors, of shape (n_texts, n_features). Called
        with at most `batch_size` different texts at a time. Trying again after an error, with
        a pause, is its own business; what it raises ends the call, and the batches before are
        stored. `clone` shares it.
    name : str
        What the vectors are stored under, together with `version`. The function itself is not
        looked at: change one of the two whenever it gives other vectors.
    version : str or int, default=""
        Version of the model and its settings.
    batch_size : int, default=64
        Most texts of one call of `encode`.
    memory : path-like, joblib.Memory, VectorStore, None or False, default=None
        Where vectors are stored, as for `LLMLayerEmbedder`.
    missing : {"error", "empty"}, default="error"
        What to do with None and NaN: raise, or take them for "".
    normalize : bool, default=False
        Whether to scale each row to unit Euclidean length.
    verbose : int, default=0
        Above 0, a progress bar counts the texts that are computed.

    Attributes
    ----------
    n_features_out_ : int
        Length of one vector.
    store_ : VectorStore
        The part of `memory` for this name and version: ``info()``, ``clear()``, ``verify()``.
    n_encoded_, n_found_ : int
        How many different texts of the last call were computed, and how many were found in the
        store. `fit_transform` is one call.

    See Also
    --------
    LLMLayerEmbedder : Any layer and pooling of a language model.
    EmbedderUnion : Several embedders side by side.

    Notes
    -----
    Vectors are stored by the rules of `VectorStore`: in float16 where that is exact to 1e-3 of
    their norm, and what is returned is what is stored. `encode` gets a text once, alone or beside
    any others; one whose vectors depend on the texts beside them is stored as it came.

    `skfusion.save` names the function; give it to ``load(trusted=[encode])``.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import CallableEmbedder
    >>> def letters(texts):
    ...     return np.array([[text.count(letter) for letter in "aeiou"] for text in texts])
    >>> embedder = CallableEmbedder(letters, name="vowels", version=1)
    >>> embedder.fit_transform(["a good film", "a bad one", "a good film"])
    array([[1., 0., 1., 2., 0.],
           [2., 1., 0., 1., 0.],
           [1., 0., 1., 2., 0.]], dtype=float32)
    >>> embedder.n_encoded_
    2
    """

    _parameter_constraints: dict[str, Any] = {
        "encode": [callable],
        "name": [str],
        "version": [str, Integral],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "memory": MEMORY,
        "missing": [StrOptions({"error", "empty"})],
        "normalize": ["boolean"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        encode: Callable[[list[str]], ArrayLike],
        name: str,
        version: str | int = "",
        *,
        batch_size: int = 64,
        memory: Memory = None,
        missing: Missing = "error",
        normalize: bool = False,
        verbose: int = 0,
    ) -> None:
        self.encode = encode
        self.name = name
        self.version = version
        self.batch_size = batch_size
        self.memory = memory
        self.missing = missing
        self.normalize = normalize
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: Any = None) -> CallableEmbedder:
        """Learn how long the vectors are, from the first text.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts: a list or another sequence, numpy, pandas or pyarrow array, Series, or
            one-column frame.
        y : ignored
            For scikit-learn's pipelines.

        Returns
        -------
        CallableEmbedder
            Itself.

        Raises
        ------
        TypeError
            If `X` is not a container of texts.
        ValueError
            If `X` is empty or misses values, `name` is empty, or `encode` returns something else
            than a finite vector.
        """
        texts = check_texts(X, missing=self.missing)
        if not texts:
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        if not self.name:
            raise ValueError("name='' names nothing. Give the model's name, as vectors are stored")
        memory = self._memory()
        memory._check()
        self._counts = dict(NO_COUNTS)
        self._about = {
            "model": self.name,
            "version": str(self.version),
            "encode": "callable",  # no language model of this name
            "store_dtype": memory.dtype,
        }
        self.__dict__.pop("n_features_out_", None)
        width = self.store_._width(_COLUMN)
        if width is None:
            first = self._vectors(texts[:1])
            width = first.shape[1]
            self._encode(lambda _: first, texts[:1], width, progress=False)
        self.n_features_out_ = width
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Embed texts, computing only those that are not stored.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts, as in `fit`.

        Returns
        -------
        ndarray of float32, shape (n_texts, n_features_out_)
            One row per text.

        Raises
        ------
        TypeError
            If `X` is not a container of texts.
        ValueError
            If `X` misses values, or `encode` returns something else than one finite vector of
            the known length for each text; what came before is stored.

        Warns
        -----
        StoreWarning
            If vectors cannot be stored, or some were found damaged.
        """
        check_is_fitted(self)
        self._counts.update(NO_COUNTS)
        texts = check_texts(X, missing=self.missing)
        width = self.n_features_out_
        vectors = self._encode(self._vectors, texts, width, progress=bool(self.verbose))
        return self._normalized(vectors, width)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names ``{name}_{i}`` of the columns.

        Parameters
        ----------
        input_features : ignored
            Texts have no features.

        Returns
        -------
        ndarray of str objects
            One name per column.
        """
        check_is_fitted(self)
        return np.array([f"{self.name}_{i}" for i in range(self.n_features_out_)], dtype=object)

    def _scope(self) -> tuple[str, dict[str, Any]]:
        return str(joblib.hash(self._about)), self._about

    def _encode(
        self,
        function: Callable[[list[str]], NDArray[np.float32]],
        texts: list[str],
        width: int,
        *,
        progress: bool,
    ) -> NDArray[np.float32]:
        encoded = encode_by(
            function,
            texts,
            column=_COLUMN,
            width=width,
            store=self.store_,
            batch_size=self.batch_size,
            label=self.name,
            progress=progress,
        )
        self._count(encoded)
        return encoded.vectors

    def _vectors(self, texts: list[str]) -> NDArray[np.float32]:
        """Call the function, and check and round what it returns."""
        import torch

        from .forward import settle

        found = np.asarray(self.encode(texts))
        if found.ndim != 2 or len(found) != len(texts) or found.dtype.kind not in "fiub":
            raise ValueError(
                f"encode must return an array of numbers of shape (n_texts, n_features), here "
                f"({len(texts)}, ...); got shape {found.shape} and dtype {found.dtype}."
            )
        width = getattr(self, "n_features_out_", found.shape[1])
        if found.shape[1] != width or not width:
            raise ValueError(
                f"encode returned vectors of {found.shape[1]} values, and those stored under "
                f"name={self.name!r}, version={self.version!r} have {width}. Give another model "
                f"another name or version."
            )
        vectors = np.ascontiguousarray(found, dtype=np.float32)
        with np.errstate(over="ignore"):
            settled = settle(torch.from_numpy(vectors), width, self._about["store_dtype"])
        return np.ascontiguousarray(settled.numpy())

    @property
    def _n_features_out(self) -> int:
        return self.n_features_out_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_out_")

    def __sklearn_clone__(self) -> CallableEmbedder:
        # A copy of the function could be a copy of a model.
        params = {
            name: value if name == "encode" else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        return type(self)(**params)
