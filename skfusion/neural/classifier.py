"""`FusionMLPClassifier`: projections, operator and head trained together, for classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.class_weight import compute_sample_weight

from .._targets import CLASSES, LABELS, Targets, read_targets
from .base import BaseFusionMLP


class FusionMLPClassifier(ClassifierMixin, BaseFusionMLP):
    """Classify embedding blocks with a network that projects, fuses and classifies.

    It takes `EmbeddingBlocks` straight from `EmbedderUnion` and trains projections, operator and
    head together, as the paper does.

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
        where there are more rows than columns, and every class can spare a row and all
        together ten; a third at a time, all in turn, where they are fewer. With False "auto" is
        trained until it fits its rows closely enough, and nothing asks whether that gains.
    validation_fraction : float, default=0.1
        Share of each class, or set of labels, that is held out. One row of each at least is
        trained on, and a class that is too small for the share keeps all rows.
    class_weight : dict, "balanced" or None, default=None
        Weight of each class. "balanced" makes the classes count the same.
    label_smoothing : float, default=0.0
        Share of each target that is spread over all classes.
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
        classes are the positions of the outputs, 0, 1, ..., and equal rows count once. Callbacks
        that monitor a validation loss or score run only while there is one. An `EarlyStopping`
        ends the search for the number of epochs; a `Checkpoint` keeps the best network of the
        search.
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
    classes_ : ndarray of shape (n_classes,)
        The classes; for a multilabel indicator the labels 0, 1, ....
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
        In `fit`, if `X` is not finite, y has one class only, or parameters do not fit the blocks.
    FloatingPointError
        In `fit`, if the loss is not finite any more.

    See Also
    --------
    FusionTransformer : Fuses without a network, for any classifier.

    Notes
    -----
    ``solver="auto"`` adds a linear part to the paper's network: logits are a linear map of the
    scaled blocks plus what the layers say. Rows that are equal in input and target are made one,
    with their weights added, so that no text is on both sides of a split. Neither the order in
    which rows are given nor rounding of the inputs matters.

    - The linear part is penalised logistic regression, solved first. Rows weigh the square root
      of the balanced weights, so that rare classes are found, unless ``class_weight="balanced"``.
      The penalty has the least log-loss on held-out rows, each weighing as it was given; what
      these do not bear out of the rare classes' higher odds is taken back, so that probabilities
      stay calibrated.
    - The last layer starts at zero, and the layers are trained beside the linear part, which
      stays as it is. They are kept where the loss on rows held out falls by more than a standard
      error and a hundredth, and trained anew on all rows for the best number of epochs. Otherwise
      the linear part stays alone; `linear_only_` says so.
    - With ``early_stopping=False`` no row is held out: training ends at a loss of τ max(1/2,
      τ / κ), with τ the regression's loss on its own rows and κ that on held-out ones.

    The losses that decide about the layers weigh rows in the same way. Those of
    ``solver="paper"`` with rows held out, and of labels, make classes, or sets of labels, count
    the same whatever their size.

    A class whose rows all have weight 0 is never predicted: its probability is 0.

    Ctrl-C ends the training, and `fit` returns with the weights that there are, those of the best
    epoch while rows are held out.

    References
    ----------
    Gwak and Jung, "Beyond Single Representations: Multi-Model Embedding Fusion for Stable Text
    Classification", ACL 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import EmbeddingBlocks, FusionMLPClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["no", "yes"], 30)
    >>> signal = (y == "yes")[:, None] * 2.0
    >>> X = EmbeddingBlocks(
    ...     {"a": signal + rng.normal(size=(60, 8)), "b": signal + rng.normal(size=(60, 6))}
    ... )
    >>> clf = FusionMLPClassifier("hadamard", residual="concat", n_components=16, random_state=0)
    >>> clf.fit(X, y).score(X, y) > 0.9
    True
    >>> clf.predict_proba(X[:2]).shape
    (2, 2)
    """

    _parameter_constraints: dict[str, Any] = {
        **BaseFusionMLP._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "label_smoothing": [Interval(Real, 0, 1, closed="left")],
    }

    classes_: NDArray[Any]
    _known: NDArray[Any] | None
    _multilabel: bool

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
        class_weight: Mapping[Any, float] | str | None = None,
        label_smoothing: float = 0.0,
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
        self.class_weight = class_weight
        self.label_smoothing = label_smoothing

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> FusionMLPClassifier:
        """Train the network.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Blocks of the training rows. A frame with columns ``block__feature`` has blocks too.
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
            Classes, or a multilabel indicator.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows, 0 or more.

        Returns
        -------
        FusionMLPClassifier
            Itself.

        Raises
        ------
        ValueError, FloatingPointError
            See the class.
        """
        self._known = None  # only partial_fit is told classes
        self._fit(X, y, sample_weight)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> FusionMLPClassifier:
        """Train for one pass over some rows, from where the network is.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Rows. Those of the first call decide the scaling.
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
            Their classes.
        classes : array-like or None, default=None
            All classes that there will be; needed in the first call.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows.

        Returns
        -------
        FusionMLPClassifier
            Itself.

        Raises
        ------
        ValueError
            If `classes` is missing in the first call or changes, or y holds others.
        """
        if not hasattr(self, "net_"):
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            self._known = np.unique(np.asarray(classes))
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes={list(np.unique(classes))} are not those of the first call, "
                f"{list(self.classes_)}."
            )
        self._partial_fit(X, y, sample_weight)
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the logits of rows.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            For two classes how much the logit of ``classes_[1]`` is above the other.
        """
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if self._is_binary() else logits

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probabilities of classes or labels.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns in the order of ``classes_``. Those of labels do not add up to 1.
        """
        logits = self._logits(X)
        probabilities: NDArray[np.float64] = (
            expit(logits) if self._multilabel else softmax(logits, axis=1)
        )
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest class of rows, or the labels with a probability above a half.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_labels)
            Classes, or an indicator of labels.
        """
        logits = self._logits(X)
        if self._multilabel:
            return (logits > 0).astype(int)
        predicted: NDArray[Any] = self.classes_[logits.argmax(axis=1)]
        return predicted

    def _logits(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the logits of all classes; of those that were not trained on -inf."""
        outputs = self._outputs(X)
        if len(self._trained) == len(self.classes_):
            return outputs
        logits = np.full((len(outputs), len(self.classes_)), -np.inf)
        logits[:, self._trained] = outputs
        return logits

    def _is_binary(self) -> bool:
        return len(self.classes_) == 2 and not self._multilabel

    def _read_targets(self, y: Any, *, reset: bool) -> Targets:
        why = (
            f"{type(self).__name__} takes classes or a 0/1 indicator of labels; "
            f"MultiOutputClassifier takes several sets of classes"
        )
        known = self._known if reset else self.classes_
        if not reset and self._multilabel:
            known = None  # labels have no names
        targets = read_targets(y, CLASSES | LABELS, why, classes=known)
        multilabel = targets.kind in LABELS
        assert targets.classes is not None
        if reset:
            self.classes_, self._multilabel = targets.classes, multilabel
        elif multilabel != self._multilabel or len(targets.classes) != len(self.classes_):
            raise ValueError("y is not of the kind of the first fit: classes or labels changed.")
        return targets

    def _class_factors(
        self, targets: Targets, y: Any, counts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        if self.class_weight is None:
            return np.ones(len(counts))
        factors: NDArray[np.float64]
        if self.class_weight == "balanced" and not self._multilabel:
            # By weight, not by number, so that weight 2 is the same as two rows.
            factors = targets.balance(counts)
        else:
            factors = compute_sample_weight(self.class_weight, np.asarray(y))
        return factors

    def _even_out(
        self, targets: Targets, counts: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        is_even = self._multilabel or self.class_weight == "balanced"
        return None if is_even else np.sqrt(targets.balance(counts))

    def _transform_targets(
        self, matrix: NDArray[np.float64], weights: NDArray[np.float64], *, reset: bool
    ) -> NDArray[np.float64]:
        n = matrix.shape[1]
        if reset:
            keep_all = self._multilabel or self._known is not None
            self._trained = np.arange(n) if keep_all else np.flatnonzero(weights @ matrix)
            if len(self._trained) < 2 and not self._multilabel:
                raise ValueError(
                    "y must hold two classes at least to learn from, got 1 class with a weight "
                    "above 0."
                )
        matrix = matrix[:, self._trained]
        spread = 0.5 if self._multilabel else 1 / matrix.shape[1]
        smooth: NDArray[np.float64] = (
            1 - self.label_smoothing
        ) * matrix + self.label_smoothing * spread
        return smooth

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
