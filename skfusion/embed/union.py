"""`EmbedderUnion`: several models over the same texts, side by side, their boundaries kept."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import TransformerMixin, _fit_context, clone
from sklearn.utils import Bunch, _safe_indexing, get_tags
from sklearn.utils._repr_html.estimator import _VisualBlock
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import _BaseComposition
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from .._blocks import EmbeddingBlocks, to_slices
from .embedder import LLMLayerEmbedder
from .stored import MEMORY, Memory, StoredEmbedder
from .texts import as_sequence

if TYPE_CHECKING:
    pass


class EmbedderUnion(TransformerMixin, _BaseComposition):
    """Embed texts with several models and keep the boundaries between them.

    Each embedder's parameters are parameters of the union (``smol__layer``), and an embedder may
    itself be replaced in a search, by "drop" or by any transformer of texts. Unlike
    `FeatureUnion`, fitting changes no parameter, and the result says where each model's columns
    are.

    Parameters
    ----------
    embedders : list of (str, transformer)
        Names and transformers of texts: `LLMLayerEmbedder`, `TfidfVectorizer`, a pipeline,
        another union, or "drop". They are cloned in `fit`.
    memory : path-like, joblib.Memory, VectorStore, None or False, default=None
        Handed to every `LLMLayerEmbedder` and `CallableEmbedder` in the union that has none.
    n_jobs : int or None, default=None
        How many embedders run at the same time, through joblib. By default they run one after
        another, and a model's weights are let go when the next ones are loaded.
    verbose : int, default=0
        Handed to every `LLMLayerEmbedder` whose own is 0.

    Attributes
    ----------
    embedders_ : list of (str, transformer)
        The fitted embedders, without those that are dropped.
    named_embedders_ : Bunch
        The same by name.
    output_indices_ : dict of str to slice
        Columns of each block of the output. The only block of an embedder has the embedder's
        name; with several layers or poolings they are ``{name}_layer{k}_{pooling}``.

    See Also
    --------
    skfusion.FusionTransformer : Makes one embedding of the blocks.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import TfidfVectorizer
    >>> from skfusion import EmbedderUnion, LLMLayerEmbedder
    >>> union = EmbedderUnion([
    ...     ("tiny", LLMLayerEmbedder(tiny_model, layer=2)),
    ...     ("words", TfidfVectorizer()),
    ... ])
    >>> union.fit_transform(["a good film", "a dull film"])
    EmbeddingBlocks(tiny: 16, words: 3; shape=(2, 19), dtype=float64)
    >>> union.set_params(tiny__layer=[1, 2], words="drop").fit_transform(["a good film"])
    EmbeddingBlocks(tiny_layer1_mean: 16, tiny_layer2_mean: 16; shape=(1, 32), dtype=float32)
    """

    _parameter_constraints: dict[str, Any] = {
        "embedders": [list],
        "memory": MEMORY,
        "n_jobs": [Integral, None],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        embedders: list[tuple[str, Any]],
        *,
        memory: Memory = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.embedders = embedders
        self.memory = memory
        self.n_jobs = n_jobs
        self.verbose = verbose

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Get parameters, with `deep` those of the embedders too.

        Parameters
        ----------
        deep : bool, default=True
            Whether to include ``{name}`` and ``{name}__{parameter}``.

        Returns
        -------
        dict
            Parameters by name.
        """
        params: dict[str, Any] = self._get_params("embedders", deep=deep)
        return params

    def set_params(self, **params: Any) -> EmbedderUnion:
        """Set parameters, replace an embedder by name, or set one of its parameters.

        Parameters
        ----------
        **params : dict
            ``{name}=transformer`` or ``"drop"``, ``{name}__{parameter}=value``, or a parameter
            of the union.

        Returns
        -------
        EmbedderUnion
            Itself.
        """
        self._set_params("embedders", **params)
        return self

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: ArrayLike, y: Any = None, **params: Any) -> EmbedderUnion:
        """Fit every embedder; a language model reads its config alone, unless it looks at layers.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts.
        y : array-like of shape (n_texts,) or None, default=None
            Targets, for embedders that use them.
        **params : dict
            Metadata for the embedders, where routing is enabled.

        Returns
        -------
        EmbedderUnion
            Itself.

        Raises
        ------
        ValueError
            If no embedder is left, names clash, or an embedder is no transformer.
        """
        routed = process_routing(self, "fit", **params)
        chosen, rows = self._chosen(), self._read(X)
        fitted = Parallel(n_jobs=self.n_jobs)(
            delayed(embedder.fit)(rows, y, **routed[name].fit) for name, embedder in chosen
        )
        self._keep(fitted)
        self._set_blocks([_block_widths(embedder, rows) for embedder in fitted])
        return self

    @_fit_context(prefer_skip_nested_validation=False)
    def fit_transform(self, X: ArrayLike, y: Any = None, **params: Any) -> Any:
        """Fit every embedder and embed the texts with it before the next one is loaded.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts.
        y : array-like of shape (n_texts,) or None, default=None
            Targets, for embedders that use them.
        **params : dict
            Metadata for the embedders, where routing is enabled.

        Returns
        -------
        EmbeddingBlocks of shape (n_texts, n_features)
            One block per embedder, or as many as it has.
        """
        routed = process_routing(self, "fit_transform", **params)
        chosen, rows = self._chosen(), self._read(X)
        made = Parallel(n_jobs=self.n_jobs)(
            delayed(_fit_transform)(embedder, rows, y, routed[name]) for name, embedder in chosen
        )
        self._keep([embedder for embedder, _ in made])
        outputs = [output for _, output in made]
        self._set_blocks(
            [
                _block_widths(embedder, rows, output)
                for (_, embedder), output in zip(self.embedders_, outputs, strict=True)
            ]
        )
        return self._join(outputs)

    def transform(self, X: ArrayLike, **params: Any) -> Any:
        """Embed texts with every embedder.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,)
            Texts.
        **params : dict
            Metadata for the embedders, where routing is enabled.

        Returns
        -------
        EmbeddingBlocks of shape (n_texts, n_features)
            One block per embedder, or as many as it has. With ``set_output`` a data frame
            whose columns are named ``{block}__{feature}``.
        """
        check_is_fitted(self)
        routed = process_routing(self, "transform", **params)
        rows = self._read(X)
        outputs = Parallel(n_jobs=self.n_jobs)(
            delayed(embedder.transform)(rows, **routed[name].transform)
            for name, embedder in self.embedders_
        )
        return self._join(outputs)

    def select(self, names: Sequence[str]) -> EmbedderUnion:
        """Return a fitted union of some of the embedders, which are shared with this one.

        Parameters
        ----------
        names : sequence of str
            Names in `embedders_`, in any order.

        Returns
        -------
        EmbedderUnion
            With these embedders, in the order of this union.

        Raises
        ------
        ValueError
            If there is no name, or one that is not in `embedders_`.
        """
        check_is_fitted(self)
        unknown = set(names) - {name for name, _ in self.embedders_}
        if unknown or not names:
            raise ValueError(
                f"names={list(names)} must be some of the union's fitted embedders: "
                f"{', '.join(name for name, _ in self.embedders_)}."
            )
        chosen = copy(self)
        chosen.embedders = [pair for pair in self.embedders if pair[0] in names]
        chosen.embedders_ = [pair for pair in self.embedders_ if pair[0] in names]
        sizes = {name: cut.stop - cut.start for name, cut in self.output_indices_.items()}
        columns = np.split(np.array(self._feature_names), np.cumsum(list(sizes.values()))[:-1])
        own = [name for pair in chosen.embedders_ for name in self._blocks_of[pair[0]]]
        chosen.output_indices_ = to_slices({name: sizes[name] for name in own})
        labelled = dict(zip(sizes, columns, strict=True))
        chosen._feature_names = [c for name in own for c in labelled[name].tolist()]
        return chosen

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names ``{block}__{feature}`` of the columns.

        Parameters
        ----------
        input_features : ignored
            Texts have no features.

        Returns
        -------
        ndarray of str objects
            One name per column, for example ``smol__layer15_last_0``.
        """
        check_is_fitted(self)
        return np.array(self._feature_names, dtype=object)

    @property
    def named_embedders_(self) -> Bunch:
        """The fitted embedders by name."""
        return Bunch(**dict(self.embedders_))

    @property
    def n_features_in_(self) -> int:
        """Number of input columns, where the embedders have such a thing (texts do not)."""
        n: int = self.embedders_[0][1].n_features_in_
        return n

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """Names of input columns, where the embedders have such a thing (texts do not)."""
        names: NDArray[np.object_] = self.embedders_[0][1].feature_names_in_
        return names

    def get_metadata_routing(self) -> MetadataRouter:
        """Get how metadata are routed to the embedders.

        Returns
        -------
        MetadataRouter
            Every embedder's requests.
        """
        router = MetadataRouter(owner=self)
        for name, embedder in self.embedders:
            if not is_kept(embedder):
                continue
            own = hasattr(embedder, "fit_transform")
            mapping = MethodMapping().add(caller="fit", callee="fit")
            mapping.add(caller="transform", callee="transform")
            for callee in ("fit_transform",) if own else ("fit", "transform"):
                mapping.add(caller="fit_transform", callee=callee)
            router.add(**{name: embedder}, method_mapping=mapping)
        return router

    def _chosen(self) -> list[tuple[str, Any]]:
        """Check the embedders and clone those that are not dropped."""
        for entry in self.embedders:
            if not (isinstance(entry, tuple | list) and len(entry) == 2):
                raise ValueError(f"embedders must be (name, transformer) pairs, got {entry!r}.")
        self._validate_names([name for name, _ in self.embedders])
        chosen = [(name, embedder) for name, embedder in self.embedders if is_kept(embedder)]
        if not chosen:
            raise ValueError("Every embedder of the union is dropped. Keep at least one.")
        for name, embedder in chosen:
            if not (hasattr(embedder, "fit") and hasattr(embedder, "transform")):
                raise TypeError(
                    f"Embedder {name!r} must be a transformer with fit and transform, or 'drop'; "
                    f"got {embedder!r}."
                )
        return [(name, self._equip(clone(embedder))) for name, embedder in chosen]

    def _equip(self, embedder: Any) -> Any:
        """Hand the union's memory and verbosity to a clone, and to what it is made of."""
        parts = [embedder]
        if hasattr(embedder, "get_params"):
            parts += embedder.get_params(deep=True).values()
        for part in parts:
            if isinstance(part, StoredEmbedder):
                if part.memory is None:
                    part.set_params(memory=self.memory)
                if not part.verbose:
                    part.set_params(verbose=self.verbose)
        return embedder

    def _read(self, X: Any) -> Any:
        """Unwrap a container of texts, which not every transformer of texts can read."""
        return as_sequence(X) if self._takes_texts() else X

    def _takes_texts(self) -> bool:
        return all(t.input_tags.string for t in self._part_tags())

    def _part_tags(self) -> list[Any]:
        return [get_tags(e) for _, e in self.embedders if hasattr(e, "__sklearn_tags__")]

    def _keep(self, fitted: Sequence[Any]) -> None:
        names = [name for name, embedder in self.embedders if is_kept(embedder)]
        self.embedders_ = list(zip(names, fitted, strict=True))

    def _set_blocks(self, widths: Sequence[dict[str, int]]) -> None:
        sizes: dict[str, int] = {}
        names: list[str] = []
        self._blocks_of: dict[str, list[str]] = {}
        for (name, embedder), blocks in zip(self.embedders_, widths, strict=True):
            known = hasattr(embedder, "get_feature_names_out")
            own = iter(embedder.get_feature_names_out() if known else range(sum(blocks.values())))
            for block, width in blocks.items():
                label = f"{name}_{block}" if len(blocks) > 1 else name
                if label in sizes:
                    raise ValueError(f"Two blocks would be named {label!r}. Rename an embedder.")
                sizes[label] = width
                self._blocks_of.setdefault(name, []).append(label)
                names += [f"{label}__{next(own)}" for _ in range(width)]
        self.output_indices_ = to_slices(sizes)
        self._feature_names = names

    def _join(self, outputs: Sequence[Any]) -> Any:
        pieces = chain.from_iterable(map(_pieces, self.embedders_, outputs))
        blocks = dict(zip(self.output_indices_, pieces, strict=True))
        joined = EmbeddingBlocks(blocks, feature_names=self._feature_names)
        # A data frame is made of a plain array.
        plain = _get_output_config("transform", self)["dense"] != "default"
        return np.asarray(joined) if plain else joined

    def _sk_visual_block_(self) -> Any:
        """Return what scikit-learn's diagram shows inside: the embedders, side by side."""
        names, embedders = zip(*getattr(self, "embedders_", self.embedders), strict=True)
        return _VisualBlock("parallel", embedders, names=names)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self._takes_texts():
            tags.input_tags.string = True
            tags.input_tags.two_d_array = False
            tags.input_tags.one_d_array = True
        tags.transformer_tags.preserves_dtype = []
        tags.target_tags.required = any(t.target_tags.required for t in self._part_tags())
        return tags


def is_kept(embedder: Any) -> bool:
    """Whether an embedder of a union is not "drop"."""
    return not (isinstance(embedder, str) and embedder == "drop")


def _fit_transform(embedder: Any, X: Any, y: Any, routed: Bunch) -> tuple[Any, Any]:
    if hasattr(embedder, "fit_transform"):
        return embedder, embedder.fit_transform(X, y, **routed.get("fit_transform", {}))
    embedder = embedder.fit(X, y, **routed.fit)
    return embedder, embedder.transform(X, **routed.transform)


def _block_widths(embedder: Any, X: Any, output: Any = None) -> dict[str, int]:
    """Return the widths of the blocks of one embedder's output, by its own names."""
    indices = getattr(embedder, "output_indices_", None)
    if isinstance(embedder, LLMLayerEmbedder | EmbedderUnion) and indices:
        return {name: cut.stop - cut.start for name, cut in indices.items()}
    if isinstance(output, EmbeddingBlocks):
        return output.block_sizes
    if output is None and hasattr(embedder, "get_feature_names_out"):
        return {"": len(embedder.get_feature_names_out())}
    if output is None:
        return _block_widths(embedder, X, embedder.transform(_safe_indexing(X, slice(1))))
    return {"": output.shape[1]}


def _pieces(named: tuple[str, Any], output: Any) -> list[Any]:
    """Cut one embedder's output into its blocks."""
    if isinstance(output, EmbeddingBlocks):
        return list(output.blocks.values())
    if not isinstance(named[1], LLMLayerEmbedder | EmbedderUnion):
        return [output]
    array = np.asarray(output)
    return [array[:, cut] for cut in named[1].output_indices_.values()]
