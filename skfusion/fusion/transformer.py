"""`FusionTransformer`: scaling, projection and operator as one scikit-learn transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, _fit_context
from sklearn.utils import Tags, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from .._blocks import EmbeddingBlocks, output_layout, output_names
from .._boundaries import SINGLE, read_blocks
from .._targets import CLASSES, LABELS, NUMBERS, TASKS, Targets, Task, read_targets, require_y
from ..linear.blending import blend_shares, fit_components, without_repeats
from ..linear.rotation import even_columns
from ..linear.scaling import fit_scaler
from .operators import Operator, mean
from .projection import (
    Projection,
    add_bias,
    common_width,
    count_sketch,
    pca_projection,
    random_projection,
)
from .registry import SIDE_BY_SIDE, OwnOperatorsMixin, find_operator, uses_own_operators
from .supervised import supervised_projections

#: The part of the shares of "weighted" that does not depend on y: models add to each other also
#: where one of them is clearly the best.
_EVEN = 0.5


class FusionTransformer(OwnOperatorsMixin, TransformerMixin, BaseEstimator):
    """Fuse the embedding blocks of each row into one vector.

    Each block E_i is scaled, projected to a common width d (u_i), and an operator makes one
    vector F of all of them. Everything is learnt from the rows given to `fit`.

    Parameters
    ----------
    operator : str, default="concat"
        How blocks are fused; n > 2 blocks are folded from the left.

        - "concat": [E_1 ‖ ... ‖ E_n], scaled and not projected.
        - "sum", "mean", "hadamard": u_1 + ... + u_n, its mean, the entrywise product.
        - "multiplication": the product of the matrices that u_i are, row-major √d by √d. Needs
          two blocks and a perfect square d. The order of the blocks matters.
        - "quaternion": the Hamilton product, components in four parts [r ‖ i ‖ j ‖ k]. Needs two
          blocks and d a multiple of 4. The order of the blocks matters.
        - "weighted": principal components of [w_1 E_1 ‖ ... ‖ w_n E_n], with w_i >= 0 chosen in
          `fit`: half of the weight is spread evenly, half by how well ridge regression on a
          block predicts rows that are left out, classes counting alike. Takes any y; without one
          all blocks count the same. The components are rotated, so that all columns vary alike:
          their mean variance is 1, and inner products of rows are those of the whole, times the
          number of columns.
        - "bilinear": compact bilinear pooling. u_i is the count sketch of E_i, whatever
          `projection` says, and d may be any number.
        - one that was registered with `register_operator`.

        A single block is passed on by all but "multiplication" and "quaternion", and is
        projected only where `n_components` is set or ``projection="supervised"``.
    residual : {False, "concat", "add"}, default=False
        What is added to F: nothing, the scaled and unprojected blocks before it
        ([E_1 ‖ ... ‖ E_n ‖ F]), or the mean of the projected ones (F + mean(u_i)). "concat" and
        "weighted" hold all of the blocks already, and are not changed.
    projection : {"pca", "random", "supervised", None}, default="pca"
        How blocks come to the common width: their principal components; independent Gaussian
        projections; weights trained together with the operator and a linear classifier on top,
        which is then dropped (needs y, of classes); or not at all, for blocks of one width.
        Products of principal components depend on the components' signs and order, which are
        fixed (the largest entry is positive) but not meaningful.
    n_components : int or None, default=None
        The common width d. None takes the width of the smallest block, rounded down to what the
        operator needs, and at most the n_samples - 1 that PCA can give. Of "weighted" the most
        columns of its output, which has no more than n_samples - 1, than the input has, and, by
        default, than 1,000.
    bias : bool, default=True
        Whether principal components, random projections and count sketches get a bias, as
        trained ones have, where the operator is a product of two blocks or more: e is its
        neutral element, v_i the projection of root mean square 1, and u_i is proportional to
        e + s v_i. F is then a constant plus v_1 + v_2 + s (v_1 ⊗ v_2), with s such that the
        product has a third of the size of v_i. Without it, F holds the interactions of centred
        blocks only and nothing that is linear in one, which two balanced classes mostly differ
        in.
    scale : {"standard", "l2", None}, default="standard"
        What is done to each block first: zero mean and unit variance of its columns (one that
        does not vary is only centred), unit norm of its rows, or nothing. "weighted" gives every
        block the same size afterwards, so that None suits blocks of principal components and of
        TF-IDF; sparse blocks it never standardises, which would make rare words the largest.
    block_sizes : sequence of int, mapping of str to int, "single" or None, default=None
        Width of each block, or "single" to take all columns for one block. None finds the
        blocks of `EmbeddingBlocks`, or of a data frame whose columns are named
        ``block__feature``, as ``FeatureUnion(...).set_output(transform="pandas")`` names them;
        the last "__" counts, so that nested names (``text__minilm__0``) keep the inner block.
    task : {"auto", "classification", "regression"}, default="auto"
        How "weighted" and "supervised" read y. By default strings, booleans and whole numbers
        (also as floats) are classes where they have at most 20 values, or no more values than a
        fifth of the rows; other numbers are a regression.
    class_weight : {"balanced", None}, default=None
        Whether the regressions of "weighted" and the training of "supervised" count all classes
        the same.
    random_state : int, RandomState instance or None, default=None
        For random and supervised projections, count sketches, the randomised PCA of large
        blocks, and the 500 rows that the weights of "weighted" are found from where there are
        more.

    Attributes
    ----------
    block_indices_ : dict of str to slice
        The input's columns of each block.
    output_indices_ : dict of str to slice
        The output's columns of each block that is put side by side, and of the fused part, which
        has the operator's name. In the form of ``ColumnTransformer.output_indices_``.
    scalers_ : dict of str to Scaler
        The scaling of each block.
    projections_ : dict of str to LinearProjection or CountSketch
        The projection of each block; empty where nothing is projected.
    common_width_ : int
        The number of columns that each block is projected to; absent where nothing is projected.
    kernel_weights_ : ndarray of shape (n_blocks,)
        The share of each block in the variance of all components of "weighted"; they add up to
        1, and those below 0.001 are 0.
    blend_ : BlendComponents
        The linear map of each block that has a share in "weighted".
    n_features_in_ : int
        Number of input columns.
    feature_names_in_ : ndarray of str
        Names of the input columns, where they have any.

    Raises
    ------
    ValueError
        In `fit`, if boundaries cannot be found, blocks hold NaN or infinite values, widths do
        not suit the operator, or y is missing where ``projection="supervised"`` needs it. A
        block that does not vary gives zeros. A single training row gives finite results where no
        PCA is asked for, and an error otherwise.

    Warns
    -----
    ProjectionWarning
        In `fit`, if there are too few rows for the default width; once per process, and not in
        every fold of a search.

    See Also
    --------
    register_operator : Adds an operator.
    PAPER_OPERATORS : The nine combinations of operator and residual in the paper.

    References
    ----------
    Gwak and Jung, "Beyond Single Representations: Multi-Model Embedding Fusion for Stable Text
    Classification", ACL 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import EmbeddingBlocks, FusionTransformer
    >>> X = EmbeddingBlocks({"a": np.array([[1.0, 2.0]]), "b": np.array([[3.0, 4.0]])})
    >>> FusionTransformer("hadamard", projection=None, scale=None).fit_transform(X)
    array([[3., 8.]])
    >>> fuse = FusionTransformer("sum", residual="concat", projection=None, scale=None)
    >>> fuse.fit_transform(X)
    array([[1., 2., 3., 4., 4., 6.]])
    >>> fuse.output_indices_
    {'a': slice(0, 2, None), 'b': slice(2, 4, None), 'sum': slice(4, 6, None)}
    """

    _parameter_constraints: dict[str, Any] = {
        "operator": [str],
        "residual": [StrOptions({"concat", "add"}), "boolean"],
        "projection": [StrOptions({"pca", "random", "supervised"}), None],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "bias": ["boolean"],
        "scale": [StrOptions({"standard", "l2"}), None],
        "block_sizes": ["array-like", Mapping, StrOptions({SINGLE}), None],
        "task": [StrOptions(set(TASKS))],
        "class_weight": [StrOptions({"balanced"}), None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        operator: str = "concat",
        *,
        residual: bool | str = False,
        projection: str | None = "pca",
        n_components: int | None = None,
        bias: bool = True,
        scale: str | None = "standard",
        block_sizes: Sequence[int] | Mapping[str, int] | str | None = None,
        task: Task = "auto",
        class_weight: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.operator = operator
        self.residual = residual
        self.projection = projection
        self.n_components = n_components
        self.bias = bias
        self.scale = scale
        self.block_sizes = block_sizes
        self.task = task
        self.class_weight = class_weight
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    @uses_own_operators
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> FusionTransformer:
        """Learn scaling, projections and weights.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            The blocks of the training rows, float32 or float64; others become float64.
        y : array-like of shape (n_samples,) or None, default=None
            Targets, read as `task` says; used by ``operator="weighted"`` and needed by
            ``projection="supervised"``.

        Returns
        -------
        FusionTransformer
            Itself.
        """
        if self.residual is True:
            raise ValueError("residual=True is not known. Use 'concat', 'add' or False.")
        operator = None if self.operator == "weighted" else find_operator(self.operator)
        blocks = list(read_blocks(self, X, self.block_sizes, reset=True).values())
        learns = self._needs_y() or (operator is None and y is not None)
        targets = self._read_targets(y, len(blocks[0])) if learns else None
        rng = check_random_state(self.random_state)
        scalers = list(map(fit_scaler, blocks, self._scales(X)))
        scaled = [scale(block) for scale, block in zip(scalers, blocks, strict=True)]
        for name in ("blend_", "common_width_", "kernel_weights_"):
            self.__dict__.pop(name, None)
        projections: list[Projection] = []
        if operator is None:
            self._fit_weights(scaled, targets, rng)
        elif operator.name != "concat":
            projections = self._fit_projections(operator, scaled, targets, rng)
        self.scalers_ = dict(zip(self.block_indices_, scalers, strict=True))
        self.projections_ = dict(zip(self.block_indices_, projections, strict=False))
        self._operator, self._residual = self.operator, self.residual
        plain = self.operator == "concat"
        self.output_indices_ = output_layout(
            self.block_indices_,
            self._fuse([block[:1] for block in scaled]).shape[1],
            None if plain else self.operator,
            with_blocks=plain or (operator is not None and self.residual == "concat"),
        )
        return self

    @uses_own_operators
    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Fuse the blocks of each row.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            The same blocks as in `fit`, or a plain array of the same columns.

        Returns
        -------
        ndarray of float32 or float64, shape (n_samples, n_features_out)
            The fused rows, C-contiguous, in the dtype of `X`; see `output_indices_`.

        Raises
        ------
        ValueError
            If `X` has other blocks than in `fit`, or holds NaN or infinite values.
        """
        check_is_fitted(self)
        blocks = read_blocks(self, X, self.block_sizes, reset=False).values()
        scalers = self.scalers_.values()
        scaled = [scale(block) for scale, block in zip(scalers, blocks, strict=True)]
        return np.ascontiguousarray(self._fuse(scaled))

    def get_feature_names_out(
        self, input_features: ArrayLike | None = None
    ) -> NDArray[np.object_]:
        """Name the output's columns.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Names of the input columns, where they were not named in `fit`.

        Returns
        -------
        ndarray of str objects
            Blocks that are put side by side keep the names of the input's columns, or are named
            ``{block}__{i}`` where it has none; fused columns are named ``{operator}{i}``.
        """
        check_is_fitted(self)
        inputs = None
        if input_features is not None or hasattr(self, "feature_names_in_"):
            inputs = list(_check_feature_names_in(self, input_features))
        return output_names(self.block_indices_, self.output_indices_, self._operator, inputs)

    def _needs_y(self) -> bool:
        untrained = (*SIDE_BY_SIDE, "bilinear")
        return self.projection == "supervised" and self.operator not in untrained

    def _read_targets(self, y: Any, n_rows: int) -> Targets:
        require_y(y, self, "projection='supervised' learns from it")
        kinds = CLASSES
        why = "projection='supervised' trains a classifier and needs classes; 'pca' needs no y"
        if self.operator == "weighted":
            kinds = CLASSES | LABELS | NUMBERS
            why = "operator='weighted' needs classes, a label indicator matrix, or numbers"
        targets = read_targets(y, kinds, why, n_rows=n_rows, task=self.task).varying()
        if self.class_weight != "balanced" or targets.kind not in CLASSES:
            return targets
        return targets.weighted(targets.balance(np.ones(n_rows)))

    def _scales(self, X: Any) -> list[str | None]:
        """Return how each block is scaled."""
        whole = self.operator != "weighted" or not isinstance(X, EmbeddingBlocks)
        if whole or self.scale != "standard" or self.block_sizes is not None:
            return [self.scale] * len(self.block_indices_)
        return [None if sparse.issparse(block) else self.scale for block in X.blocks.values()]

    def _fit_weights(
        self, scaled: list[NDArray[Any]], targets: Targets | None, rng: np.random.RandomState
    ) -> None:
        """Learn the shares of "weighted" and its components."""
        if targets is not None:
            everything = zip(*scaled, strict=True)
            rows = (b"".join(part.tobytes() for part in parts) for parts in everything)
            targets = without_repeats(targets, rows)
        prior = np.full(len(scaled), 1 / len(scaled))
        self.kernel_weights_ = blend_shares(scaled, prior, targets, rng, even=_EVEN)
        kept = list(compress(scaled, self.kernel_weights_))
        shares = self.kernel_weights_[self.kernel_weights_ > 0]
        found = fit_components(lambda: kept, shares, self.n_components, rng)
        projections = tuple(map(even_columns, found.projections))
        self.blend_ = replace(found, projections=projections)

    def _fit_projections(
        self,
        operator: Operator,
        scaled: list[NDArray[Any]],
        targets: Targets | None,
        rng: np.random.RandomState,
    ) -> list[Projection]:
        """Fit one projection per block; none where the blocks are taken as they are."""
        widths = [block.shape[1] for block in scaled]
        how = "sketch" if operator.name == "bilinear" else self.projection
        if len(scaled) < operator.least:
            operator(scaled)  # says what is wrong
        if len(scaled) == 1 and self.n_components is None and how != "supervised":
            return []
        d = common_width(
            operator, widths, self.n_components, projection=how, n_rows=len(scaled[0])
        )
        if how is not None:
            self.common_width_ = d
        if how == "supervised":
            assert targets is not None
            return supervised_projections(
                scaled, targets, operator, n_components=d, residual=self.residual, rng=rng
            )
        projections: list[Projection] = []
        if how == "sketch":
            projections += [count_sketch(width, d, rng) for width in widths]
        elif how == "random":
            projections += [random_projection(width, d, rng) for width in widths]
        elif how == "pca":
            projections += [pca_projection(block, d, rng) for block in scaled]
        return add_bias(projections, scaled, operator) if self.bias else projections

    def _fuse(self, scaled: list[NDArray[Any]]) -> NDArray[Any]:
        if self._operator == "weighted":
            return self.blend_(compress(scaled, self.kernel_weights_))
        if self._operator == "concat":
            return np.concatenate(scaled, axis=1)
        projected = scaled
        if self.projections_:
            pairs = zip(self.projections_.values(), scaled, strict=True)
            projected = [project(block) for project, block in pairs]
        fused = find_operator(self._operator)(projected)
        if self._residual == "add":
            fused = fused + mean(projected)
        if self._residual == "concat":
            return np.concatenate([*scaled, fused], axis=1)
        return fused.copy() if fused is scaled[0] else fused  # never the caller's own memory

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self._needs_y()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
