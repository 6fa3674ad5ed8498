"""`LLMLayerEmbedder`: any layer, any pooling of a language model as a scikit-learn transformer."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from .._targets import TASKS, Targets, Task, require_y
from ..linear.blending import without_repeats
from ..linear.criteria import CRITERIA
from ..linear.layer_scores import read_criterion_targets, score_layers
from ..linear.scaling import column_scales, mean_over_layers
from .backbone import Backbone, Source
from .blend import Blend, Read, fit_blend
from .encoding import Spec, encode
from .estimating import Estimate, estimate
from .layers import is_word, resolve_columns
from .loading import describe_kwargs, load, resolve, resolve_again, resolve_device
from .pooling import POOLINGS
from .shards import Column
from .stored import MEMORY, NO_COUNTS, Memory, StoredEmbedder
from .texts import Missing, check_texts, encodable

if TYPE_CHECKING:
    import torch

_WARNED: set[str | None] = set()  # fingerprints whose cut texts this process has heard of
_READ_BYTES = 2**29  # of vectors that are in memory together when all layers are looked at
#: What fitting with "auto", "blend" or "mean" sets, and what it sets last: gone when another fit
#: begins.
_BY_TEXTS = (
    "layer_",
    "pooling_",
    "layer_scores_",
    "layer_errors_",
    "layer_ties_",
    "layer_weights_",
    "_blend",
    "layer_means_",
    "layer_stds_",
    "output_indices_",
)


class TruncationWarning(UserWarning):
    """Some texts were longer than the model or `max_length` takes, and were cut."""


class LLMLayerEmbedder(StoredEmbedder):
    """Turn texts into the pooled hidden states of a language model.

    The layer and the pooling are hyperparameters: the first pass of a text through the model
    pools and stores all layers with all poolings, so that a search over them runs each text
    through the model once.

    Parameters
    ----------
    model : str, path-like or Backbone
        A hub id, a folder (one that holds a single ``.gguf`` file, too), a ``.gguf`` file, or a
        `Backbone` that is in memory already. Task heads are left out; of an encoder-decoder the
        encoder is taken, of a model of texts and pictures or sounds the language model or text
        encoder, of a sentence-transformers model the transformer: its pooling and dense layers
        are not used. Models that read no texts are refused in `fit`.
    layer : int, float, list of these, "auto", "blend" or "mean", default=-1
        Which hidden state: 0 is the embedding output, L (or -1) the last, after the final norm
        where the model has one. Valid are -(L+1) to L. A float f in (0, 1] is the depth
        ``round(f * L)``. A list gives one block of columns per layer. "auto" chooses one in `fit`,
        from the training rows alone: the best by `layer_criterion`, or a shallower one that is
        as good (`LayerScores.shallowest`). "blend" chooses none: the vectors of all layers and
        poolings are standardised by the training rows, weighted in `fit`, and brought to the
        principal components of all of them side by side. "mean" is the mean over layers, each
        standardised by the training rows. These three look at the layers that the store keeps
        (`VectorStore.layers`) where that is a list, and at all otherwise.
    pooling : str, list of str or "auto", default="mean"
        How a text's token states become one vector, over its real tokens: "mean", "last",
        "first", "max", "weighted_mean" (weights 1 to T) or "mean_no_first" (without the first
        token, an attention sink in decoder models). A list gives one block each. "auto" chooses
        one in `fit`, together with the layer or for a single layer, of those that the store keeps
        where it has a list. With ``layer="blend"`` a list and "auto" are blended like layers.
    layer_criterion : str, default="balanced"
        What "auto" goes by: "balanced" (leave-one-out log-loss of ridge classification, classes
        counted alike), "ridge" (the same, rows counted alike), "logme" (exact log evidence of a
        linear model), "h_score", "variability" or, without labels, "effective_rank"; see
        `layer_scores`.
    task : {"auto", "classification", "regression"}, default="auto"
        How "auto" and "blend" read y in `fit`. By default strings, booleans and whole numbers
        (also as floats) are classes where they have at most 20 values, or no more values than a
        fifth of the rows, and a 0/1 matrix holds labels; other numbers are a regression.
    n_components : int or None, default=None
        Most columns of ``layer="blend"``, which are at most as many as the training rows less
        one. None takes that many, and 1,000 at most.
    max_length : int or None, default=None
        Most tokens of a text, the special ones counted. None takes the smallest of the
        tokenizer's limit, the model's, and the ``max_seq_length`` of a sentence-transformers
        model. A number may be above that of sentence-transformers, but not above the model's.
    prompt : str or None, default=None
        Put before every text; its tokens take part in the pooling. None is the default prompt of
        a sentence-transformers model that has one, and none otherwise; "" is none at all. The
        name of one of its prompts, such as "query", stands for that prompt, and anything else
        for itself.
    device : str, torch.device or None, default=None
        None picks cuda, mps, cpu in that order when the model is loaded. "auto" spreads a large
        model over the devices there are (needs accelerate).
    dtype : str, torch.dtype or None, default=None
        What the model computes in. None is float32, and bfloat16 on a GPU that has it; "auto" is
        what the checkpoint says. Pooling and output are float32 always.
    batch_tokens : int or "auto", default="auto"
        Largest number of tokens of a batch, padding counted. It is halved when memory runs out.
    memory : path-like, joblib.Memory, VectorStore, None or False, default=None
        Where vectors are stored. None is a temporary folder shared with joblib's workers and
        removed at exit. With False nothing is read or written, and only what is asked for is
        computed: for serving, and for texts that must not leave a trace. A `VectorStore` can have
        a size limit, and says which layers and poolings a pass stores and how exactly; by default
        all of them.
    missing : {"error", "empty"}, default="error"
        What to do with None and NaN: raise, or take them for "".
    normalize : bool, default=False
        Whether to scale each block of each row to unit Euclidean length.
    revision : str or None, default=None
        Branch, tag or commit of a hub id.
    trust_remote_code : bool, default=False
        Whether a model may bring its own code; passed to transformers.
    model_kwargs : mapping or None, default=None
        More arguments for transformers' ``from_pretrained``, for example
        ``{"attn_implementation": "eager"}`` or ``{"quantization_config": ...}``. They count as
        part of the model: plain values, lists, dicts, and objects with ``to_dict()``.
    random_state : int, RandomState instance or None, default=None
        For "blend", where there are many rows: those that it weighs layers by, and the
        randomised search for principal components.
    verbose : int, default=0
        Above 0, a progress bar counts the texts that pass through the model.

    Attributes
    ----------
    layers_ : list of int
        The layers of the output, counted from 0. With ``layer="mean"`` those it is the mean of,
        with ``layer="blend"`` those that have weight.
    poolings_ : list of str
        The poolings of the output; with ``layer="blend"`` those that have weight.
    n_layers_ : int
        Number of blocks L of the model.
    hidden_size_ : int
        Length of one vector.
    output_indices_ : dict of str to slice
        The columns of each block ``layer{k}_{pooling}`` (``layermean_{pooling}``,
        ``layerblend``).
    layer_, pooling_ : int and str
        What "auto" has chosen.
    layer_scores_ : dict of str to float
        What "auto" has looked at: scores of ``layer{k}_{pooling}``, the higher the better.
    layer_errors_ : dict of str to float
        Standard errors of the differences to the best score, by "balanced" and "ridge".
    layer_ties_ : list of str
        Those of ``layer{k}_{pooling}`` that the rows cannot tell from the best: within one
        standard error of it.
    layer_weights_ : dict of str to float
        What "blend" gives to ``layer{k}_{pooling}``: its share in the variance of the output. They
        add up to 1; what is below 0.001 is 0 and not read by `transform`.
    layer_means_, layer_stds_ : ndarray of float32, shape (n_layers * n_poolings, hidden_size_)
        What ``layer="mean"`` standardises by, poolings varying fastest.
    store_ : VectorStore
        The part of `memory` for this model and these settings: ``info()``, ``clear()``,
        ``verify()``.
    n_truncated_ : int
        How many texts of the last call were cut.
    n_encoded_, n_found_ : int
        How many different texts of the last call passed through the model, and how many were
        found in the store. `fit_transform` and `precompute` are one call.

    See Also
    --------
    Backbone : A model and tokenizer that are in memory already.
    VectorStore : What is stored, how exactly, and how much at most.
    skfusion.layer_scores : The scores behind "auto", for any arrays.

    Notes
    -----
    A vector depends on its text, its model as it computes now and these settings. The texts beside
    it in a batch move it by rounding alone, about 5e-7 of its norm in float32 and 4e-2 at most in
    bfloat16; storing as float16 adds at most 1e-3. See `Backbone`.

    The columns of "blend" are not the principal components themselves but a rotation of them, in
    which the columns of the training rows have a mean variance of 1 and none varies by more than
    2. Inner products of rows are those of the weighted vectors, times the number of components,
    so that logistic regression or another linear or kernel method learns the same from them. What
    treats columns alike, such as a `StandardScaler` or a network that standardises, does not take
    the last components, which are mostly noise, for as much as the first. A fitted "blend" holds
    a float32 for each value of a vector of each layer and pooling that counts, and each component:
    11 MB for 7 layers of 384 values and 1,000 components.

    "auto" sees the rows that `fit` sees and nothing else, so that cross-validation of a pipeline
    stays honest. "balanced" is the default since the others follow the frequent classes where
    some are rare, and it errs less than cross-validation of a classifier
    (`benchmarks/layer_choice.py`). A pooling other than "mean" and "mean_no_first" is chosen only
    where it beats these two clearly (`LayerScores.shallowest`).

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

    The layer by itself, from labelled rows:

    >>> texts = ["good film", "bad film", "good plot", "bad plot", "good scene", "bad scene"]
    >>> auto = LLMLayerEmbedder(tiny_model, layer="auto").fit(texts, [1, 0, 1, 0, 1, 0])
    >>> sorted(auto.layer_scores_)
    ['layer0_mean', 'layer1_mean', 'layer2_mean', 'layer3_mean']
    >>> auto.transform(["good film"]).shape
    (1, 16)

    All layers, and no choice:

    >>> blend = LLMLayerEmbedder(tiny_model, layer="blend", pooling=["mean", "last"])
    >>> blend.fit_transform(texts, [1, 0, 1, 0, 1, 0]).shape
    (6, 5)
    >>> list(blend.output_indices_), len(blend.layer_weights_)
    (['layerblend'], 8)
    """

    _parameter_constraints: dict[str, Any] = {
        "model": [str, os.PathLike, Backbone],
        "layer": [Integral, Real, list, tuple, np.ndarray, StrOptions({"auto", "blend", "mean"})],
        "pooling": [StrOptions({*POOLINGS, "auto"}), list, tuple],
        "layer_criterion": [StrOptions(set(CRITERIA))],
        "task": [StrOptions(set(TASKS))],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "max_length": [Interval(Integral, 1, None, closed="left"), None],
        "prompt": [str, None],
        "device": "no_validation",
        "dtype": "no_validation",
        "batch_tokens": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "memory": MEMORY,
        "missing": [StrOptions({"error", "empty"})],
        "normalize": ["boolean"],
        "revision": [str, None],
        "trust_remote_code": ["boolean"],
        "model_kwargs": [Mapping, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        model: str | os.PathLike[str] | Backbone,
        *,
        layer: int | float | list[int | float] | str = -1,
        pooling: str | list[str] = "mean",
        layer_criterion: str = "balanced",
        task: Task = "auto",
        n_components: int | None = None,
        max_length: int | None = None,
        prompt: str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        batch_tokens: int | str = "auto",
        memory: Memory = None,
        missing: Missing = "error",
        normalize: bool = False,
        revision: str | None = None,
        trust_remote_code: bool = False,
        model_kwargs: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.layer = layer
        self.pooling = pooling
        self.layer_criterion = layer_criterion
        self.task = task
        self.n_components = n_components
        self.max_length = max_length
        self.prompt = prompt
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens
        self.memory = memory
        self.missing = missing
        self.normalize = normalize
        self.revision = revision
        self.trust_remote_code = trust_remote_code
        self.model_kwargs = model_kwargs
        self.random_state = random_state
        self.verbose = verbose

    _blend: Blend | None = None  # set by layer="blend" alone
    #: What is no part of a pickle: the store's name and, with memory=False, the model, which stays
    #: loaded as long as this embedder.
    _held: dict[str, Any]

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: Any = None) -> LLMLayerEmbedder:
        """Resolve layers and poolings from the model's config; three words use the texts, too.

        No weights are loaded, unless "auto", "blend" or "mean" has to see the vectors of texts
        that are not stored.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts: a list or another sequence, numpy, pandas or pyarrow array, Series, or
            one-column frame. (scikit-learn cannot split the ``.values`` of a pandas Series of
            strings: give its searches the Series.)
        y : array-like of shape (n_texts,) or (n_texts, n_outputs), or None, default=None
            Classes, a label indicator matrix, or numbers, for "auto" and "blend"; otherwise
            ignored. Without it, "blend" gives all layers and poolings the same weight.

        Returns
        -------
        LLMLayerEmbedder
            Itself.

        Raises
        ------
        TypeError
            If `X` is not a container of texts, or `model_kwargs` holds something that cannot be
            told from another in the next process.
        ValueError
            If `X` is empty or misses values, a parameter is out of the model's range, "auto"
            lacks a y that it can use, or "blend" is given one that it cannot. If the model reads
            no texts, or has no state for each token.
        OSError
            If the model cannot be found or reached, or is not whole; the message says what it is.
        """
        self._fit(X, y, progress=bool(self.verbose))
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
            One block for each layer and pooling, poolings varying fastest; with "auto" the chosen
            one, with ``layer="mean"`` one per pooling, with ``layer="blend"`` a single one of
            shape (n_texts, n_components). See `output_indices_`. Always finite and C-contiguous.

        Raises
        ------
        TypeError
            If `X` is not a container of texts, or a tokenizer gives something else than ids.
        ValueError
            If `X` misses values, a vector is not finite, the model has changed since `fit`, or
            the tokenizer gives ids that the model has no row for.
        OSError
            If the model's weights are needed and cannot be found or reached.

        Warns
        -----
        TruncationWarning
            If texts were cut: once per call that computes them, and once per process for texts
            whose vectors are stored.
        StoreWarning
            If vectors cannot be stored, or some were found damaged.
        """
        check_is_fitted(self)
        self._counts.update(NO_COUNTS)
        texts, progress = check_texts(X, missing=self.missing), bool(self.verbose)
        model = self.model
        if isinstance(model, Backbone) and not model._looks_like(self._spec.identity):
            self._source_again()  # stored vectors may be of what the model was
        columns = (vectors for _, vectors in self._read(texts, progress))
        if self._blend is not None:
            vectors = self._blend(columns, len(texts))
        elif self._averages:
            scales = self.layer_means_, self.layer_stds_
            vectors = mean_over_layers(columns, len(texts), scales, len(self.poolings_))
        else:
            vectors = self._encode(texts, self._columns(), self._stored, progress)
        return self._normalized(vectors, self._block_width())

    def precompute(self, X: ArrayLike, y: Any = None, *, verbose: int = 1) -> LLMLayerEmbedder:
        """Fill the store with the vectors of texts, showing a progress bar.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts, as in `fit`.
        y : array-like or None, default=None
            As in `fit`, which is called if it has not been.
        verbose : int, default=1
            0 hides the bar.

        Returns
        -------
        LLMLayerEmbedder
            Itself; fitted, if it was not.
        """
        if self.__sklearn_is_fitted__():
            self._counts.update(NO_COUNTS)
        else:
            self._validate_params()
            self._fit(X, y, progress=bool(verbose))
        texts = check_texts(X, missing=self.missing)
        if self.store_._writes:
            for _ in self._read(texts, bool(verbose)):
                pass
        return self

    def count_tokens(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return how many tokens of each text the model reads, cut texts as they are cut.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts, as in `fit`.

        Returns
        -------
        ndarray of int64, shape (n_texts,)
            Special tokens and the prompt's are counted.
        """
        check_is_fitted(self)
        texts = check_texts(X, missing=self.missing)
        return self._spec.tokenize(self._load(), texts).lengths()

    def estimate(self, X: ArrayLike) -> Estimate:
        """Say what embedding texts will take, before it is done; printed, in words.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts, as in `fit`. Of these 32 at most are embedded, and stored, to tell by.

        Returns
        -------
        Estimate
            With the attributes `n_texts` (different ones), `n_tokens`, `n_missing` (texts that are
            not stored), `seconds` and `n_bytes`.
        """
        check_is_fitted(self)
        return estimate(self, check_texts(X, missing=self.missing))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names ``layer{k}_{pooling}_{i}`` or ``layerblend_{i}`` of the columns.

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
        width = range(self._block_width())
        names = [f"{block}_{i}" for block in self.output_indices_ for i in width]
        return np.array(names, dtype=object)

    @property
    def n_truncated_(self) -> int:
        """How many texts of the last call were cut."""
        return self._counts["truncated"]

    def _scope(self) -> tuple[str, dict[str, Any]]:
        spec, *scope = self._held.get("scope", (None,))
        if spec is not self._spec:  # a text at a time, the hash is much of what is not the model
            scope = [self._spec.fingerprint(), self._spec.about()]
            self._held["scope"] = self._spec, *scope
        return scope[0], scope[1]

    def _fit(self, X: ArrayLike, y: Any, *, progress: bool) -> None:
        """Do the work of `fit`."""
        texts = check_texts(X, missing=self.missing)
        if not texts:
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        source = resolve(
            self.model, revision=self.revision, trust_remote_code=self.trust_remote_code
        )
        memory, n_layers = self._memory(), source.n_layers
        memory._check()
        spec = Spec.of(
            source,
            prompt=None if self.prompt is None else encodable(self.prompt),
            max_length=self.max_length,
            dtype=self.dtype,
            device=self.device,
            model_kwargs=self.model_kwargs,
            store_dtype=memory.dtype,
        )
        layers, poolings, stored = resolve_columns(
            self.layer, self.pooling, memory.layers, memory.poolings, n_layers
        )
        if self._needs_y():
            why = "'auto' chooses by it. Pass y to fit, or use layer='mean', the mean over layers"
            require_y(y, self, f"{why}, which needs none")
        targets = None
        if self._chooses():  # said before the texts pass through the model
            targets = read_criterion_targets(self.layer_criterion, y, len(texts), task=self.task)
        elif self._blends() and y is not None:  # weighed by ridge regression, too
            targets = read_criterion_targets("ridge", y, len(texts), task=self.task)
        for name in _BY_TEXTS:
            self.__dict__.pop(name, None)
        self.layers_, self.poolings_ = layers, poolings
        self.n_layers_, self.hidden_size_ = n_layers, source.width
        self._counts, self._held = dict(NO_COUNTS), {}
        self._stored, self._spec = stored, spec
        self._averages = is_word(self.layer, "mean")
        if self._chooses():
            self._choose(texts, targets, progress)
        elif self._blends():
            self._weigh(texts, targets, progress)
        elif self._averages:
            columns = (vectors for _, vectors in self._read(texts, progress))
            self.layer_means_, self.layer_stds_ = column_scales(columns)
        self.output_indices_ = self._layout()

    def _layout(self) -> dict[str, slice]:
        """Return the columns of each block of the output."""
        if self._blend is not None:
            return {"layerblend": slice(0, self._blend.n_components)}
        names: list[Any] = ["mean"] if self._averages else self.layers_
        width = self.hidden_size_
        return {
            _block_name(column): slice(i * width, (i + 1) * width)
            for i, column in enumerate(product(names, self.poolings_))
        }

    def _choose(self, texts: list[str], targets: Targets | None, progress: bool) -> None:
        """Put the best layer and pooling in place of all that were looked at."""
        columns = self._columns()
        width = self.hidden_size_
        read = self._read(texts, progress)
        named = ((_block_name(c), self._normalized(v, width)) for c, v in read)
        found = score_layers(named, targets, self.layer_criterion)
        best = found.shallowest(*zip(*columns, strict=True))
        self.layer_, self.pooling_ = columns[found.names.index(best)]
        self.layers_, self.poolings_ = [self.layer_], [self.pooling_]
        self.layer_scores_ = dict(zip(found.names, found.scores.tolist(), strict=True))
        self.layer_ties_ = list(found.ties)
        if found.standard_errors is not None:
            errors = found.standard_errors.tolist()
            self.layer_errors_ = dict(zip(found.names, errors, strict=True))

    def _weigh(self, texts: list[str], targets: Targets | None, progress: bool) -> None:
        """Weigh all that is looked at, and keep what counts."""
        if targets is not None:
            targets = without_repeats(targets, texts)
        columns, rng = self._columns(), check_random_state(self.random_state)
        read = self._reader(texts, columns, progress)
        blend, shares = fit_blend(read, columns, targets, self.n_components, rng)
        self._blend = blend
        layers, poolings = map(set, zip(*blend.columns, strict=True))
        self.layers_ = [layer for layer in self.layers_ if layer in layers]
        self.poolings_ = [pooling for pooling in self.poolings_ if pooling in poolings]
        names = map(_block_name, columns)
        self.layer_weights_ = dict(zip(names, shares.tolist(), strict=True))

    def _chooses(self) -> bool:
        chosen = is_word(self.layer, "auto") or is_word(self.pooling, "auto")
        return chosen and not self._blends()

    def _blends(self) -> bool:
        return is_word(self.layer, "blend")

    def _needs_y(self) -> bool:
        return self._chooses() and self.layer_criterion != "effective_rank"

    def _columns(self) -> list[Column]:
        """Return what the output is made of."""
        if self._blend is not None:
            return list(self._blend.columns)
        return list(product(self.layers_, self.poolings_))

    def _block_width(self) -> int:
        width: int = next(iter(self.output_indices_.values())).stop
        return width

    def _source_again(self) -> Source:
        return resolve_again(
            self._spec.identity,
            self.model,
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,
        )

    def _load(self) -> Backbone:
        """Load the weights; called only when a text is not stored.

        All that is opened, the parameters name; what `fit` saw is only compared with.
        """
        spec, trust = self._spec, self.trust_remote_code
        described = describe_kwargs(self.model_kwargs, trust)
        key = (self.model, self.revision, trust, described, self.device, spec.identity)
        if self._held.get("key") == key:
            held: Backbone = self._held["model"]
            return held
        source = self._source_again()
        if isinstance(self.model, Backbone):
            return self.model
        if (trust, described) != (spec.trust_remote_code, spec.model_kwargs):
            raise ValueError(
                "trust_remote_code or model_kwargs has changed since fit. Call fit again."
            )
        device = resolve_device(self.device)
        model = load(source, device=device, dtype=spec.dtype, model_kwargs=self.model_kwargs)
        if self.memory is False:  # it runs in each call, perhaps in turns with other models
            self._held.update(key=key, model=model)
        return model

    def _reader(self, texts: list[str], columns: list[Column], progress: bool) -> Read:
        """Return what reads columns again and again, of memory where they all have room there."""
        if len(columns) <= self._most_columns(texts):
            vectors = dict(self._read(texts, progress))
            return lambda wanted: map(vectors.__getitem__, wanted)
        return lambda wanted: (vectors for _, vectors in self._read(texts, progress, wanted))

    def _most_columns(self, texts: list[str]) -> int:
        return max(1, _READ_BYTES // (4 * self.hidden_size_ * max(1, len(texts))))

    def _read(
        self, texts: list[str], progress: bool, columns: Sequence[Column] | None = None
    ) -> Iterator[tuple[Column, NDArray[np.float32]]]:
        """Yield the vectors of one column after the other, after at most one pass for all."""
        known = self._columns()
        columns = known if columns is None else columns
        stored = [*known, *self._stored]
        step = self._most_columns(texts)
        for start in range(0, len(columns), step):
            part = list(columns[start : start + step])
            vectors = self._encode(texts, part, stored, progress)
            yield from zip(part, np.split(vectors, len(part), axis=1), strict=True)

    def _encode(
        self, texts: list[str], columns: list[Column], stored: list[Column], progress: bool
    ) -> NDArray[np.float32]:
        store = self.store_
        encoded = encode(
            texts,
            columns=columns,
            stored=stored if store._writes else [],
            spec=self._spec,
            store=store,
            load=self._load,
            batch_tokens=self.batch_tokens,
            progress=progress,
        )
        self._count(encoded)
        # A search reads the same cut texts from the store hundreds of times: of those it is
        # enough to hear once per process.
        heard = store._fingerprint in _WARNED
        if encoded.newly_truncated or (encoded.n_truncated and not heard):
            _WARNED.add(store._fingerprint)
            limit = self._spec.max_length or "the model's limit"
            warnings.warn(
                f"{encoded.n_truncated} of {len(texts)} texts were longer than max_length "
                f"({limit} tokens) and were cut.",
                TruncationWarning,
                stacklevel=3,
            )
        return encoded.vectors

    @property
    def _n_features_out(self) -> int:
        return len(self.output_indices_) * self._block_width()

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "output_indices_")  # set when the choice has been made

    def __getstate__(self) -> Mapping[str, Any]:
        state = super().__getstate__()
        return {**state, "_held": {}} if "_held" in state else state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        spec = state.get("_spec")
        names = Spec.__dataclass_fields__.keys()
        if spec is not None and not (type(spec) is Spec and vars(spec).keys() == names):
            raise TypeError(f"The state of this {type(self).__name__} has no whole Spec: {spec!r}")
        super().__setstate__({**state, "_held": {}} if "_held" in state else state)
        if multiprocessing.current_process().name.startswith("LokyProcess"):
            # loky takes what a worker loads after its first task for a leak, and ends the worker.
            import torch  # noqa: F401

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self._needs_y()
        return tags


def _block_name(column: tuple[Any, str]) -> str:
    layer, pooling = column
    return f"layer{layer}_{pooling}"
