"""`FusionClassifier` and `FusionRegressor`: texts and labels in, a fitted pipeline out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    ClassifierMixin,
    RegressorMixin,
    _fit_context,
    is_classifier,
    is_regressor,
)
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _ensure_no_complex_data

from ._targets import CLASSES, Targets, Task, read_targets
from .embed.pooling import BLENDED_POOLINGS
from .embed.stored import Memory
from .neural.regressor import FusionMLPRegressor
from .selection.head import FusionHead
from .selection.recipe_base import BaseFusion, last_has

#: Of ridge regression on columns of variance 1 in the mean, of which there are up to 1,000.
_PENALTIES = np.logspace(-2, 6, 17)


class FusionClassifier(ClassifierMixin, BaseFusion):
    """Classify texts with language models: nothing has to be chosen.

    `fit` embeds the texts with all models, weighs their layers and poolings, adds TF-IDF where
    that pays, fuses all into the principal components of the weighted whole, leaves out models
    that do not pay, and trains a classifier on top. What it has built is `pipeline_`, an ordinary
    `Pipeline`; `summary` says why.

    Parameters
    ----------
    models : str, path-like, Backbone, transformer, or list of these or of (str, model)
        Hub ids, folders or models in memory, whose layers are blended; `LLMLayerEmbedder` and
        other transformers of texts, which stay as they are; or transformers of data frames, such
        as a `ColumnTransformer` that scales columns of numbers and embeds one of texts. A pair
        gives a name.
    layer : int, float, list of these, "auto", "blend" or "mean", default="blend"
        For models by id or folder, as for `LLMLayerEmbedder`.
    pooling : str, sequence of str or "auto", default=("mean", "mean_no_first", "last")
        For models by id or folder. With ``layer="blend"`` several and "auto" are blended.
    max_length : int or None, default=None
        For models by id or folder: most tokens of a text.
    tfidf : {"auto", True, False}, default="auto"
        Whether TF-IDF of words and pairs of words is one more model: where it pays, always, or
        never. Texts only.
    head : {"auto", "logistic", "ridge", "network"} or classifier, default="auto"
        The last step: `FusionHead` of this kind, or a classifier that is taken as it is.
    scoring : str or callable, default="f1_macro"
        What the classifier should be good at; see `FusionHead`. Probabilities do not depend on it.
    class_weight : {"auto", "sqrt", "balanced"}, dict or None, default="auto"
        How much `predict` helps rare classes, or each class; "auto" finds what suits `scoring`.
    subset : {"auto", "all"}, default="auto"
        Whether to leave out models whose own leave-one-out predictions are not better than chance
        by more than one paired standard error.
    cv : int or None, default=5
        Folds of the cross-validation that `summary` reports, and of the head's own. All of `fit`
        is repeated without the rows of each fold; None reports none, and is several times as fast.
    time_budget : float or None, default=None
        Seconds for what comes after the first complete fit: choosing models and cross-validation.
        0 skips both.
    memory : path-like, joblib.Memory, VectorStore, None or False, default=None
        Where vectors are stored, as for `LLMLayerEmbedder`.
    n_jobs : int or None, default=None
        How many models embed at the same time, through joblib.
    random_state : int, RandomState instance or None, default=None
        For folds and whatever is drawn.
    verbose : int, default=0
        Above 0, progress bars of the language models.

    Attributes
    ----------
    pipeline_ : Pipeline
        The fitted steps "embed" (`EmbedderUnion`), "fuse" (`FusionTransformer`) and "clf".
    classes_ : ndarray of shape (n_classes,)
        The classes.
    model_weights_ : dict of str to float
        The share of each model in the variance of what "clf" sees; 0 of one that was left out.
    scores_, baseline_scores_ : ndarray of shape (n_folds,)
        Scores of the folds, and of `baseline_name_` on the same. Empty where time was up.
    baseline_name_ : str
        TF-IDF with logistic regression; for tables the most frequent class.
    seconds_ : dict of str to float
        What the parts of `fit` took.
    n_rows_ : int
        Number of training rows.
    n_features_in_, feature_names_in_ : int and ndarray of str
        Of tables; texts have none.

    Raises
    ------
    TypeError
        In `fit`, if a model is none.
    ValueError
        In `fit`, if y has one class only, or holds labels or numbers.

    See Also
    --------
    FusionHead : The last step.
    ModelSubsetSearchCV : Compares subsets of models by cross-validation.

    Notes
    -----
    Rows of `fit` alone decide everything, so that cross-validation of this estimator is honest;
    the scores that it reports are those of rows that had no part in any choice.

    Examples
    --------
    >>> from skfusion import FusionClassifier
    >>> texts = ["good film", "bad film", "good plot", "bad plot", "good scene", "bad scene"]
    >>> clf = FusionClassifier(tiny_model, cv=2, random_state=0)
    >>> clf.fit(texts, ["pos", "neg"] * 3).predict_proba(["good film"]).shape
    (1, 2)
    >>> [name for name, _ in clf.pipeline_.steps]
    ['embed', 'fuse', 'clf']
    >>> print(clf.summary().splitlines()[0])
    FusionClassifier fitted on 6 rows
    """

    _parameter_constraints: dict[str, Any] = {
        **BaseFusion._parameter_constraints,
        "head": [
            StrOptions({"auto", "logistic", "ridge", "network"}),
            HasMethods(["fit", "predict"]),
        ],
        "class_weight": FusionHead._parameter_constraints["class_weight"],
    }
    _step: ClassVar[str] = "clf"
    _task: ClassVar[Task] = "classification"

    def __init__(
        self,
        models: Any,
        *,
        layer: int | float | list[int | float] | str = "blend",
        pooling: str | Sequence[str] = BLENDED_POOLINGS,
        max_length: int | None = None,
        tfidf: bool | str = "auto",
        head: Any = "auto",
        scoring: str | Callable[..., Any] = "f1_macro",
        class_weight: Mapping[Any, float] | str | None = "auto",
        subset: str = "auto",
        cv: int | None = 5,
        time_budget: float | None = None,
        memory: Memory = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            models=models,
            layer=layer,
            pooling=pooling,
            max_length=max_length,
            tfidf=tfidf,
            head=head,
            scoring=scoring,
            subset=subset,
            cv=cv,
            time_budget=time_budget,
            memory=memory,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> FusionClassifier:
        """Embed, blend, fuse and train.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,), or what the models take
            Texts, or a data frame where the models are transformers of data frames.
        y : array-like of shape (n_texts,)
            Classes.
        sample_weight : array-like of shape (n_texts,) or None, default=None
            Weights of the rows, for the last step alone.

        Returns
        -------
        FusionClassifier
            Itself.

        Raises
        ------
        TypeError, ValueError
            See the class.
        """
        self._fit(X, y, sample_weight)
        return self

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes."""
        self._fitted_union()
        classes: NDArray[Any] = self.pipeline_.classes_
        return classes

    @available_if(last_has("predict_proba"))
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probabilities of classes, which do not depend on `scoring`.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,), or what the models take
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_texts, n_classes)
            Columns in the order of ``classes_``.
        """
        chances: NDArray[np.float64] = self._call("predict_proba", X)
        return chances

    @available_if(last_has("decision_function"))
    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return what `predict` decides by.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,), or what the models take
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_texts,) or (n_texts, n_classes)
            For two classes by how much ``classes_[1]`` is ahead.
        """
        decision: NDArray[np.float64] = self._call("decision_function", X)
        return decision

    def _read_targets(self, y: Any) -> Targets:
        why = (
            f"{type(self).__name__} takes one column of classes; MultiOutputClassifier takes "
            f"several, or labels, and FusionRegressor numbers"
        )
        return read_targets(y, CLASSES, why)

    def _make_head(self, seed: int) -> Any:
        if not isinstance(self.head, str):
            if not is_classifier(self.head):
                raise ValueError(f"head={self.head!r} is no classifier.")
            return self.head
        return FusionHead(
            self.head,
            scoring=self.scoring,
            class_weight=self.class_weight,
            cv=5 if self.cv is None else self.cv,
            random_state=seed,
        )

    def _make_baseline(self, texts: bool) -> tuple[str, Any]:
        if not texts:
            return "most frequent class", DummyClassifier()
        # The penalty that suits rows of length 1 and hardly matters.
        linear = LogisticRegression(C=10.0, class_weight="balanced", max_iter=1000)
        return "TF-IDF + logistic regression", make_pipeline(TfidfVectorizer(), linear)


class FusionRegressor(RegressorMixin, BaseFusion):
    """Predict numbers from texts with language models: nothing has to be chosen.

    As `FusionClassifier`, with ridge regression on top.

    Parameters
    ----------
    models, layer, pooling, max_length, tfidf : see FusionClassifier
        The same.
    head : {"auto", "ridge", "network"} or regressor, default="auto"
        The last step: `RidgeCV`, its penalty by leave-one-out errors ("auto" is the same), or
        `FusionMLPRegressor`, or a regressor that is taken as it is.
    scoring : str or callable, default="r2"
        What `summary` reports.
    subset, cv, time_budget, memory, n_jobs, random_state, verbose : see FusionClassifier
        The same.

    Attributes
    ----------
    pipeline_ : Pipeline
        The fitted steps "embed" (`EmbedderUnion`), "fuse" (`FusionTransformer`) and "reg".
    model_weights_, scores_, baseline_scores_, baseline_name_, seconds_, n_rows_
        As those of `FusionClassifier`. The baseline is TF-IDF with ridge regression; for tables
        the mean.
    n_features_in_, feature_names_in_ : int and ndarray of str
        Of tables; texts have none.

    Raises
    ------
    TypeError
        In `fit`, if a model is none.
    ValueError
        In `fit`, if y holds something else than numbers, or more than one column.

    See Also
    --------
    FusionClassifier : The same for classes.

    Examples
    --------
    >>> from skfusion import FusionRegressor
    >>> texts = ["good film", "bad film", "good plot", "bad plot", "good scene", "bad scene"]
    >>> reg = FusionRegressor(tiny_model, cv=2, random_state=0)
    >>> reg.fit(texts, [4.5, 1.0, 4.0, 1.5, 5.0, 0.5]).predict(["good film"]).shape
    (1,)
    """

    _parameter_constraints: dict[str, Any] = {
        **BaseFusion._parameter_constraints,
        "head": [StrOptions({"auto", "ridge", "network"}), HasMethods(["fit", "predict"])],
    }
    _step: ClassVar[str] = "reg"
    _task: ClassVar[Task] = "regression"

    def __init__(
        self,
        models: Any,
        *,
        layer: int | float | list[int | float] | str = "blend",
        pooling: str | Sequence[str] = BLENDED_POOLINGS,
        max_length: int | None = None,
        tfidf: bool | str = "auto",
        head: Any = "auto",
        scoring: str | Callable[..., Any] = "r2",
        subset: str = "auto",
        cv: int | None = 5,
        time_budget: float | None = None,
        memory: Memory = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            models=models,
            layer=layer,
            pooling=pooling,
            max_length=max_length,
            tfidf=tfidf,
            head=head,
            scoring=scoring,
            subset=subset,
            cv=cv,
            time_budget=time_budget,
            memory=memory,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
        )

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> FusionRegressor:
        """Embed, blend, fuse and train.

        Parameters
        ----------
        X : sequence of str of shape (n_texts,), or what the models take
            Texts, or a data frame where the models are transformers of data frames.
        y : array-like of shape (n_texts,)
            Numbers.
        sample_weight : array-like of shape (n_texts,) or None, default=None
            Weights of the rows, for the last step alone.

        Returns
        -------
        FusionRegressor
            Itself.

        Raises
        ------
        TypeError, ValueError
            See the class.
        """
        self._fit(X, y, sample_weight)
        return self

    def _read_targets(self, y: Any) -> Targets:
        why = f"{type(self).__name__} takes one column of numbers"
        _ensure_no_complex_data(np.asarray(y))
        return read_targets(y, {"continuous"}, why)

    def _make_head(self, seed: int) -> Any:
        if self.head == "network":
            return FusionMLPRegressor(scale=None, block_sizes="single", random_state=seed)
        if isinstance(self.head, str):
            return RidgeCV(_PENALTIES)
        if not is_regressor(self.head):
            raise ValueError(f"head={self.head!r} is no regressor.")
        return self.head

    def _make_baseline(self, texts: bool) -> tuple[str, Any]:
        if not texts:
            return "mean", DummyRegressor()
        return "TF-IDF + ridge regression", make_pipeline(TfidfVectorizer(), Ridge())
