"""`FusionMLPRegressor`: projections, operator and head trained together, for numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin, _fit_context
from sklearn.utils import Tags

from .._targets import NUMBERS, Targets, read_targets
from .base import BaseFusionMLP


class FusionMLPRegressor(RegressorMixin, BaseFusionMLP):
    """Predict numbers from embedding blocks with a network that projects, fuses and regresses.

    It is `FusionMLPClassifier` with the squared error as its loss.

    Parameters
    ----------
    operator : str, default="concat"
        How the projected blocks u_i become one vector: "concat" (no projection), "sum", "mean",
        "hadamard", "multiplication", "quaternion", "bilinear" or one that was registered, as in
        `FusionTransformer`; or "gated", Σ g_i u_i with softmax weights g computed from all blocks
        of the row.
    residual : {False, "concat", "add"}, default=False
        What is added to the fused vector: nothing, the unprojected blocks before it (the paper's
        (R)), or the mean of the projected ones.
    layer : {"mix", None}, default=None
        "mix" first makes one block of the layers of each model, Σ_k s_k E_k with learned softmax
        weights s (the scalar mix of Peters et al., 2018). The blocks must come from
        `EmbedderUnion` over ``LLMLayerEmbedder(layer=[...])``.
    n_components : int, default=1024
        The common width d. Every block has its own `torch.nn.Linear` to it.
    hidden_layer_sizes : sequence of int, default=(1024, 256)
        Widths of the hidden ReLU layers.
    dropout : float, sequence of float or None, default=None
        Dropout behind each of them; None is the paper's, 0.5 behind the first and 0.3 behind
        every other.
    solver : {"auto", "paper"}, default="auto"
        "paper" is the recipe of the paper to the letter: inputs as they are, random weights, Adam
        for `max_epochs` passes. With few rows that is few steps, and the result then depends on
        the scale and the width of the inputs more than on their content: on 200 unit-norm vectors
        of width 1,024 in three classes that ridge regression tells apart without an error it
        reaches a macro-F1 near 0.73. "auto" is meant to be good at 50 rows and at 50,000; see
        Notes.
    lr : float, default=1e-4
        Step size of Adam; "auto" takes ten times that, because its steps are fewer.
    batch_size : int, default=1024
        Rows of a step.
    max_epochs : int or None, default=None
        The most passes over the rows that a training takes; "paper" takes them all. None is 120,
        the paper's, and for "auto" up to eight times that where a pass is less than eight steps:
        as many as make 960 steps.
    weight_decay : float, default=0.0
        Adam's.
    early_stopping : {"auto", True, False}, default="auto"
        Whether rows are held out to find the number of epochs; the network is then trained anew
        on all rows for that number. "auto" does so with ``solver="auto"``: a share of the rows
        where there are more rows than columns, and they can spare ten; a third at a
        time, all in turn, where they are fewer. With False "auto" is trained until it fits its
        rows closely enough, and nothing asks whether that gains.
    validation_fraction : float, default=0.1
        Share of the rows that is held out; one at least is trained on.
    scale : {"standard", "l2", None}, default="standard"
        What "auto" does to each block first: zero mean and unit variance of its columns, unit
        norm of its rows, or nothing. The paper's recipe has no scaling.
    block_sizes : sequence of int, mapping of str to int, "single" or None, default=None
        Width of each block, or "single" to take all columns for one block. None finds the
        blocks of `EmbeddingBlocks`, or of a data frame whose columns are named
        ``block__feature``, as ``FeatureUnion(...).set_output(transform="pandas")`` names them;
        the last "__" counts, so that nested names (``text__minilm__0``) keep the inner block.
    block_dropout : float, default=0.0
        Chance that a block is left out of a row in training, so that the network learns to do
        without. Only then may `EmbeddingBlocks` lack blocks after `fit`.
    device : str, torch.device or None, default=None
        Where to train and predict; None takes a cuda device where there is one.
    dtype : {"float32", "float64"}, default="float32"
        Of weights and inputs. Inputs of which rounding to it would blur a column stay as they are.
    callbacks : list of skorch callbacks or of (name, callback), or None, default=None
        They are copied for each training. Histories hold "train_loss", "valid_loss" where there
        are rows for it (those held out, or with ``solver="auto"`` and ``early_stopping=False``
        all rows without dropout), the scores of `EpochScoring`, and with each "_best". In scorers
        y is standardised with ``solver="auto"``, and equal rows count once. Callbacks that
        monitor a validation loss or score run only while there is one. An `EarlyStopping` ends
        the search for the number of epochs; a `Checkpoint` keeps the best network of the search.
    warm_start : bool, default=False
        Whether `fit` goes on with the network of the last `fit`.
    random_state : int, RandomState instance or None, default=None
        For weights, order of rows, dropout and held-out rows. An int makes results the same on
        one machine and number of threads, and no global generator is touched; None draws one
        seed from numpy's.
    verbose : int, default=0
        Above 0, a progress bar counts epochs.

    Attributes
    ----------
    n_outputs_ : int
        Number of columns of y.
    target_mean_, target_scale_ : ndarray of shape (n_outputs,)
        What "auto" takes off y and divides by.
    net_ : skorch.NeuralNet
        The network: ``net_.module_`` is the `torch.nn.Module`, ``net_.module_.linear`` the linear
        part that "auto" gives it, ``net_.history`` its training on all rows.
    n_iter_ : int
        Number of epochs of that training; 0 where `linear_only_`.
    loss_curve_ : list of float
        Its mean training loss, with dropout, after each epoch.
    validation_losses_ : list of float
        The losses after each epoch that decided when to stop: of the held-out rows, or of all
        rows without dropout. Empty where the number of epochs was given.
    search_history_ : list of dict
        Where rows were held out, skorch's history of the search for the number of epochs: losses
        of each epoch and what callbacks note beside them; of one search after the other where
        rows were held out in turn. Otherwise empty.
    linear_only_ : bool
        Whether the network is its linear part alone, because held-out rows did not say that the
        other layers gain anything. Their last layer is then zero, so `partial_fit` and
        `warm_start` may still train it. Always False with ``solver="paper"``.
    gain_ : float
        By how much the other layers lower the loss on rows held out, at the best number of
        epochs; 0 where no number of epochs lowers it, and NaN where no row was held out.
    gates_ : ndarray of shape (n_blocks,)
        Mean weight of each block over the training rows, with ``operator="gated"``; see
        `compute_gates`.
    block_indices_ : dict of str to slice
        The input's columns of each block.
    scalers_ : dict of str to Scaler
        The scaling of each block.
    n_features_in_ : int
        Number of input columns.
    feature_names_in_ : ndarray of str
        Names of the input columns, where they have any.

    Raises
    ------
    ValueError
        In `fit`, if `X` or y is not finite, or parameters do not fit the blocks.
    FloatingPointError
        In `fit`, if the loss is not finite any more.

    See Also
    --------
    FusionMLPClassifier : The same for classes.

    Notes
    -----
    ``solver="auto"`` adds a linear part to the paper's network: what it predicts is a linear map
    of the scaled blocks plus what the layers say. Rows that are equal in input and target are
    made one, with their weights added, so that no text is on both sides of a split. Neither the
    order in which rows are given nor rounding of the inputs matters.

    - The linear part is ridge regression, solved first, with the penalty that has the least loss
      on held-out rows.
    - The last layer starts at zero, and the layers are trained beside the linear part, which
      stays as it is. They are kept where the loss on rows held out falls by more than a standard
      error and a hundredth, and trained anew on all rows for the best number of epochs. Otherwise
      the linear part stays alone; `linear_only_` says so.
    - With ``early_stopping=False`` no row is held out: training ends at a loss of τ max(1/2,
      τ / κ), with τ the regression's loss on its own rows and κ that on held-out ones.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import EmbeddingBlocks, FusionMLPRegressor
    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.normal(size=(80, 5)), rng.normal(size=(80, 4))
    >>> X = EmbeddingBlocks({"a": a, "b": b})
    >>> reg = FusionMLPRegressor(random_state=0).fit(X, 3 * a[:, 0] + b[:, 1])
    >>> reg.score(X, 3 * a[:, 0] + b[:, 1]) > 0.95
    True
    """

    def __init__(
        self,
        operator: str = "concat",
        *,
        residual: bool | str = False,
        layer: str | None = None,
        n_components: int = 1024,
        hidden_layer_sizes: Sequence[int] = (1024, 256),
        dropout: Sequence[float] | float | None = None,
        solver: str = "auto",
        lr: float = 1e-4,
        batch_size: int = 1024,
        max_epochs: int | None = None,
        weight_decay: float = 0.0,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        scale: str | None = "standard",
        block_sizes: Sequence[int] | Mapping[str, int] | str | None = None,
        block_dropout: float = 0.0,
        device: str | torch.device | None = None,
        dtype: str = "float32",
        callbacks: list[Any] | None = None,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            operator=operator,
            residual=residual,
            layer=layer,
            n_components=n_components,
            hidden_layer_sizes=hidden_layer_sizes,
            dropout=dropout,
            solver=solver,
            lr=lr,
            batch_size=batch_size,
            max_epochs=max_epochs,
            weight_decay=weight_decay,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            scale=scale,
            block_sizes=block_sizes,
            block_dropout=block_dropout,
            device=device,
            dtype=dtype,
            callbacks=callbacks,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
        )

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> FusionMLPRegressor:
        """Train the network.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Blocks of the training rows. A frame with columns ``block__feature`` has blocks too.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Numbers.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows, 0 or more.

        Returns
        -------
        FusionMLPRegressor
            Itself.

        Raises
        ------
        ValueError, FloatingPointError
            See the class.
        """
        self._fit(X, y, sample_weight)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> FusionMLPRegressor:
        """Train for one pass over some rows, from where the network is.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Rows. Those of the first call decide the scaling, of y too.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their numbers.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows.

        Returns
        -------
        FusionMLPRegressor
            Itself.
        """
        self._partial_fit(X, y, sample_weight)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict the numbers of rows.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            As y was in `fit`.
        """
        predicted = self._outputs(X) * self.target_scale_ + self.target_mean_
        return predicted[:, 0] if self._flat else predicted

    def _read_targets(self, y: Any, *, reset: bool) -> Targets:
        targets = read_targets(y, NUMBERS, f"{type(self).__name__} takes numbers")
        flat = targets.kind == "continuous"
        n_outputs = targets.matrix.shape[1]
        if reset:
            self.n_outputs_, self._flat = n_outputs, flat
        elif n_outputs != self.n_outputs_:
            raise ValueError(
                f"y has {n_outputs} columns, but the first fit had {self.n_outputs_}."
            )
        return targets

    def _transform_targets(
        self, matrix: NDArray[np.float64], weights: NDArray[np.float64], *, reset: bool
    ) -> NDArray[np.float64]:
        if reset:
            self.target_mean_ = np.zeros(matrix.shape[1])
            self.target_scale_ = np.ones(matrix.shape[1])
            if self.solver == "auto":
                self.target_mean_ = np.average(matrix, axis=0, weights=weights)
                variance = np.average((matrix - self.target_mean_) ** 2, axis=0, weights=weights)
                self.target_scale_ = np.where(variance > 0, np.sqrt(variance), 1.0)
        return (matrix - self.target_mean_) / self.target_scale_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
