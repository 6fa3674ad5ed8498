"""`FusionHead`: a linear classifier, or a network, that sets itself from its training rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.metrics import check_scoring, get_scorer_names
from sklearn.utils import Tags, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from .._targets import CLASSES, Targets, read_targets, require_y
from ..linear.logistic import log_chances
from ..neural.classifier import FusionMLPClassifier
from .linear_head import Linear, Rotated, deal_folds, fit_logistic, fit_ridge

Floats = NDArray[np.float64]

_LEAST_NETWORK_ROWS = 2000  # below, a network that gains over a linear classifier is luck
#: By how many times its log share a class is helped in decisions.
STRENGTHS = {None: 0.0, "sqrt": 0.5, "balanced": 1.0}
_TRIED = (0.0, 0.5, 1.0, 1.5)
_CLEARLY = 2.0  # standard errors by which another strength must be better
_N_GROUPS = 10  # of rows, for the standard error of a score
_FLOATS = [np.float64, np.float32]
_TINY = float(np.finfo(np.float64).tiny)


class FusionHead(ClassifierMixin, BaseEstimator):
    """Classify rows with probabilities that are calibrated and decisions that suit a score.

    The last step of what `FusionClassifier` builds, for any numeric rows. The penalty comes from
    held-out rows. Classes count as they come, so that probabilities are those of the rows. For
    the decision, a multiple of each class's log share is taken off its log-probability: once is
    what balanced class weights aim at, half of it their square root.

    Parameters
    ----------
    kind : {"auto", "logistic", "ridge", "network"}, default="auto"
        What is trained. "auto" takes logistic regression, and from 2,000 rows on
        `FusionMLPClassifier` where a fifth of the rows, held out, is predicted better by more
        than one standard error.
    scoring : str or callable, default="f1_macro"
        What decisions should be good at, as for `GridSearchCV`. For scores that count all classes
        the same ("macro" or "balanced" in their name) decisions start as those of balanced
        weights, for others as the likeliest class; another strength is taken where it is better
        on held-out rows by more than two standard errors.
    class_weight : {"auto", "sqrt", "balanced"}, dict or None, default="auto"
        Sets that strength itself: None predicts the likeliest class. A dict has the factor of
        each class, 1 where it names none, that its probability is multiplied by.
    cv : int, default=5
        How many folds are held out in turn.
    random_state : int, RandomState instance or None, default=None
        For the folds and the network.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes.
    kind_ : str
        What was trained.
    strength_ : float
        How many times the log shares are taken off; NaN where `class_weight` is a dict.
    offsets_ : ndarray of shape (n_classes,)
        What is added to log-probabilities in `predict`; 0 in the mean.
    coef_, intercept_ : ndarray of shape (n_classes, n_features) and (n_classes,)
        Of a linear classifier: logits of the probabilities.
    penalty_ : float
        Its penalty, where rows have mean squared norm 1.
    network_ : FusionMLPClassifier
        Of the network.
    log_loss_ : float
        The log-loss of held-out rows; NaN where none could be held out.
    n_features_in_ : int
        Number of input columns.
    feature_names_in_ : ndarray of str
        Names of the input columns, where they have any.

    Raises
    ------
    ValueError
        In `fit`, if y has one class only or holds labels or numbers.

    See Also
    --------
    FusionClassifier : Builds the whole pipeline.

    References
    ----------
    Menon et al., "Long-tail learning via logit adjustment", ICLR 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import FusionHead
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["often", "rare"], [50, 10])
    >>> X = rng.normal(size=(60, 2)) + 2 * (y == "rare")[:, None]
    >>> head = FusionHead(random_state=0).fit(X, y)
    >>> head.strength_, head.offsets_.round(2)
    (1.0, array([-0.8,  0.8]))
    >>> head.predict_proba(X).mean(axis=0).round(1)
    array([0.8, 0.2])
    """

    _parameter_constraints: dict[str, Any] = {
        "kind": [StrOptions({"auto", "logistic", "ridge", "network"})],
        "scoring": [StrOptions(set(get_scorer_names())), callable],
        "class_weight": [StrOptions({"auto", "sqrt", "balanced"}), dict, None],
        "cv": [Interval(Integral, 2, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        kind: str = "auto",
        *,
        scoring: str | Callable[..., Any] = "f1_macro",
        class_weight: Mapping[Any, float] | str | None = "auto",
        cv: int = 5,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kind = kind
        self.scoring = scoring
        self.class_weight = class_weight
        self.cv = cv
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> FusionHead:
        """Choose penalty, kind and decisions by held-out rows, and train on all.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,)
            Classes.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows, 0 or more.

        Returns
        -------
        FusionHead
            Itself.

        Raises
        ------
        ValueError
            See the class.
        """
        require_y(y, self)
        X = validate_data(self, X, dtype=_FLOATS)
        why = (
            f"{type(self).__name__} takes one column of classes; MultiOutputClassifier takes "
            f"several, or labels"
        )
        targets = read_targets(y, CLASSES, why, n_rows=len(X))
        weights = _check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True
        )
        kept = np.flatnonzero(weights)
        if len(kept) < len(X):  # classes without weight are none
            assert targets.classes is not None
            X, y = X[kept], targets.classes[targets.codes[kept]]
            targets = read_targets(y, CLASSES, why)
        targets = targets.weighted(weights[kept])
        assert targets.classes is not None
        self.classes_ = targets.classes
        rng = check_random_state(self.random_state)
        folds = deal_folds(targets.codes, self.cv, rng)
        for name in ("network_", "coef_", "intercept_", "penalty_"):
            self.__dict__.pop(name, None)
        rows = Rotated.of(X, targets)
        if self.kind == "ridge":
            best = fit_ridge(rows, targets)
        else:
            best = fit_logistic(rows, targets, folds)
        self.kind_, self.penalty_, self.log_loss_ = best.kind, best.penalty, best.loss
        self.coef_, self.intercept_ = best.coefficients.T, best.intercept
        self.strength_ = self._choose_strength(best.held_out, targets)
        self._try_network(X, targets, folds, best, int(rng.randint(2**31 - 1)))
        self.offsets_ = self._offsets(targets)
        return self

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probabilities of classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns in the order of ``classes_``; the offsets do not count.
        """
        chances: Floats = np.exp(self.predict_log_proba(X))
        return chances

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Return the logarithms of probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns in the order of ``classes_``.
        """
        check_is_fitted(self)
        rows: NDArray[Any] = validate_data(self, X, reset=False, dtype=_FLOATS)
        if self.kind_ == "network":
            chances: Floats = np.log(np.maximum(self.network_.predict_proba(rows), _TINY))
            return chances
        return log_chances(rows @ self.coef_.T + self.intercept_)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return log-probabilities with the offsets, by which `predict` decides.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            For two classes by how much ``classes_[1]`` is ahead.
        """
        decision = self.predict_log_proba(X) + self.offsets_
        binary = len(self.classes_) == 2
        ahead: Floats = decision[:, 1] - decision[:, 0] if binary else decision
        return ahead

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class with the highest log-probability plus offset.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Classes.
        """
        decision = self.predict_log_proba(X) + self.offsets_
        predicted: NDArray[Any] = self.classes_[decision.argmax(axis=1)]
        return predicted

    def _offsets(self, targets: Targets) -> Floats:
        """Return the logarithms of the factors of classes, 0 in the mean."""
        if isinstance(self.class_weight, Mapping):
            factors = [self.class_weight.get(c, 1.0) for c in self.classes_.tolist()]
            offsets = np.log(np.maximum(factors, _TINY))
        else:
            offsets = -self.strength_ * np.log(targets.shares @ targets.matrix)
        centred: Floats = offsets - offsets.mean()
        return centred

    def _choose_strength(self, held_out: Floats, targets: Targets) -> float:
        """Return the usual strength, or another that is clearly better."""
        if isinstance(self.class_weight, Mapping):
            return float("nan")
        if self.class_weight != "auto":
            return STRENGTHS[self.class_weight]
        name = self.scoring if isinstance(self.scoring, str) else ""
        usual = 1.0 if "macro" in name or "balanced" in name else 0.0
        log_shares = np.log(targets.shares @ targets.matrix)
        if len(set(log_shares)) == 1 or not np.isfinite(held_out).all():
            return usual
        decided = _Decided(held_out, log_shares, self.classes_)
        scorer = check_scoring(decided, scoring=self.scoring)
        y = self.classes_[targets.codes]

        def score(strength: float, rows: NDArray[Any]) -> float:
            decided.strength = strength
            return float(scorer(decided, rows, y[rows]))

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of classes that few rows lack
                return clearly_better(score, usual, _TRIED, targets.codes)
        except ValueError:  # a score that these rows do not have, such as an area of one class
            return usual

    def _try_network(
        self,
        X: NDArray[Any],
        targets: Targets,
        folds: NDArray[np.intp],
        best: Linear,
        seed: int,
    ) -> None:
        """Put a network in the place of the linear classifier where that pays or is asked for."""
        if self.kind not in ("auto", "network"):
            return
        if self.kind == "auto" and len(X) < _LEAST_NETWORK_ROWS:
            return
        network = FusionMLPClassifier(scale=None, block_sizes="single", random_state=seed)
        y, weights, held = self.classes_[targets.codes], targets.weights, folds == 0
        known = np.isin(targets.codes, targets.codes[~held])
        held &= known
        if self.kind == "auto" and held.any():
            network.fit(X[~held & known], y[~held & known], sample_weight=weights[~held & known])
            column = np.searchsorted(network.classes_, y[held])
            chances = network.predict_proba(X[held])[np.arange(len(column)), column]
            gains = best.losses[held] + np.log(np.maximum(chances, _TINY))
            gains = gains[np.isfinite(gains)]
            if len(gains) < 2 or gains.mean() <= gains.std(ddof=1) / np.sqrt(len(gains)):
                return
        self.network_ = network.fit(X, y, sample_weight=weights)
        self.kind_ = "network"
        del self.coef_, self.intercept_, self.penalty_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = False
        return tags


class _Decided(ClassifierMixin, BaseEstimator):
    """Held-out log-probabilities as a classifier of the rows' positions, for a scorer."""

    def __init__(self, held_out: Floats, log_shares: Floats, classes: NDArray[Any]) -> None:
        self.held_out, self.log_shares, self.classes_ = held_out, log_shares, classes
        self.strength = 0.0

    def predict_proba(self, rows: NDArray[np.intp]) -> Floats:
        chances: Floats = np.exp(self.held_out[rows])
        return chances

    def predict(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        decision = self.held_out[rows] - self.strength * self.log_shares
        predicted: NDArray[Any] = self.classes_[decision.argmax(axis=1)]
        return predicted


def clearly_better(
    score: Callable[[float, NDArray[Any]], float],
    usual: float,
    tried: tuple[float, ...],
    codes: NDArray[np.intp],
) -> float:
    """Return the value that beats the usual one by the most jackknife standard errors above 2.

    One is too few: with 50 rows the usual value is better than what is chosen then.
    """
    everything = np.arange(len(codes))
    order = np.argsort(codes, kind="stable")
    groups = np.empty(len(codes), dtype=np.intp)
    n_groups = min(_N_GROUPS, len(codes))
    groups[order] = everything % n_groups
    parts = [np.flatnonzero(groups != g) for g in range(n_groups)]
    base, base_parts = score(usual, everything), np.array([score(usual, p) for p in parts])
    best, found = _CLEARLY, usual
    for value in tried:
        gain = score(value, everything) - base
        if not gain > 0:
            continue
        gains = np.array([score(value, p) for p in parts]) - base_parts
        error = np.sqrt((n_groups - 1) * gains.var())
        if gain > best * error:
            best, found = gain / max(error, _TINY), value
    return found
