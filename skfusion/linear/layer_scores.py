"""`layer_scores`: how well each layer will serve a classifier, without training one per layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array, compute_sample_weight
from sklearn.utils.validation import _check_sample_weight

from .._blocks import EmbeddingBlocks, densify
from .._targets import CLASSES, LABELS, NUMBERS, TASKS, Targets, Task, read_targets
from .criteria import CRITERIA

Floats = NDArray[np.float64]

#: How far behind the best a shallower layer may be, in nats per row: a hundredth of a bit.
TOLERANCE = 0.01 * float(np.log(2))
#: Poolings that take all tokens alike.
MEANS = ("mean", "mean_no_first")
#: By how many standard errors another pooling must beat them.
CLEARLY = 3.0


@dataclass(frozen=True, eq=False)
class LayerScores:
    """Scores of layers, the higher the better.

    Parameters
    ----------
    criterion : str
        What they are of.
    names : tuple of str
        The layers.
    scores : ndarray of float64, shape (n_layers,)
        Of "balanced" and "ridge", minus the mean log-loss of rows that were left out; of
        "balanced" the mean over classes of their rows' means. Of "logme", mean log evidence per
        row and output. All are in nats.
    standard_errors : ndarray of float64, shape (n_layers,), or None
        Of each score's difference to the best, from the rows' own differences. None where the
        criterion does not speak of rows.
    row_losses : ndarray of float64, shape (n_samples, n_layers), or None
        The losses behind the scores, in the order of the rows that have weight.
    row_shares : ndarray of float64, shape (n_samples,), or None, default=None
        What each row counts in the scores; None where all count the same.

    Raises
    ------
    ValueError
        If a score is NaN or infinity, or all are minus infinity.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import LayerScores
    >>> scores = np.array([-0.6, -0.505, -0.5])
    >>> found = LayerScores("logme", ("a", "b", "c"), scores, None, None)
    >>> found.best, found.shallowest([1, 2, 3])
    ('c', 'b')
    """

    criterion: str
    names: tuple[str, ...]
    scores: Floats
    standard_errors: Floats | None
    row_losses: Floats | None
    row_shares: Floats | None = None

    def __post_init__(self) -> None:
        """Refuse scores by which no layer can be chosen; -inf is one that never is."""
        usable = np.isfinite(self.scores) | (self.scores == -np.inf)
        first = int(np.argmin(usable if not usable.all() else np.isfinite(self.scores)))
        if not usable.all() or not np.isfinite(self.scores).any():
            raise ValueError(
                f"The {self.criterion!r} score of {self.names[first]!r} is {self.scores[first]}, "
                f"by which no layer can be chosen. Leave it out, or use another criterion."
            )

    @property
    def best(self) -> str:
        """The layer with the highest score."""
        return self.names[int(np.argmax(self.scores))]

    @property
    def ties(self) -> tuple[str, ...]:
        """The layers within one standard error of the best, which the rows cannot tell from it."""
        margins = 0.0 if self.standard_errors is None else self.standard_errors
        near = self.scores >= self.scores.max() - margins
        return tuple(name for name, tied in zip(self.names, near, strict=True) if tied)

    def shallowest(self, depths: Sequence[int], poolings: Sequence[str] | None = None) -> str:
        """Follow the best layer toward the shallower ones, as long as they are as good.

        As good is what lies within a hundredth of a bit per row of the best, by the criteria that
        are in nats; by others, what scores the same. A shallower layer costs less to compute. The
        way ends before a stretch of more than a tenth of the depths at which no layer is as good.

        The rule of one standard error (Breiman et al. 1984) is not used: with few rows nearly all
        layers are within one. `benchmarks/layer_choice.py` has what that costs.

        Parameters
        ----------
        depths : sequence of int, of length n_layers
            How deep each layer lies. Of equally deep ones the better is taken.
        poolings : sequence of str, of length n_layers, or None, default=None
            The pooling of each. Where scores have standard errors, another than "mean" and
            "mean_no_first" is looked at only if its best layer beats theirs by three of them: with
            few rows one that knows a frequent class by its last word may look better by chance.

        Returns
        -------
        str
            The name of the last layer on the way.
        """
        margin = TOLERANCE if CRITERIA[self.criterion].in_nats else 0.0
        scores = self.scores if poolings is None else self._without_lucky(np.array(poolings))
        near = scores >= scores.max() - margin
        chosen, passed = int(np.argmax(scores)), 0
        for depth in sorted({d for d in depths if d < depths[chosen]}, reverse=True):
            there = [i for i, d in enumerate(depths) if d == depth and near[i]]
            passed = 0 if there else passed + 1
            if passed > len(set(depths)) // 10:
                break
            chosen = max(there, key=lambda i: float(scores[i]), default=chosen)
        return self.names[chosen]

    def _without_lucky(self, poolings: NDArray[np.str_]) -> Floats:
        """Return the scores, -inf of poolings that do not clearly beat the means."""
        means = np.isin(poolings, MEANS)
        if self.row_losses is None or not means.any():
            return self.scores
        base = int(np.argmax(np.where(means, self.scores, -np.inf)))
        errors = _standard_errors(self.row_losses, base, self.row_shares)
        kept = means.copy()
        for pooling in set(poolings[~means]):
            own = poolings == pooling
            best = int(np.argmax(np.where(own, self.scores, -np.inf)))
            if self.scores[best] - self.scores[base] > CLEARLY * errors[best]:
                kept |= own
        return np.where(kept, self.scores, -np.inf)


def layer_scores(
    blocks: EmbeddingBlocks | Mapping[str, Any] | NDArray[Any],
    y: Any = None,
    *,
    criterion: str = "balanced",
    task: Task = "auto",
    class_weight: Mapping[Any, float] | str | None = None,
    sample_weight: Any = None,
) -> LayerScores:
    """Score layers by how well a linear classifier will do on them.

    Every layer is standardised first, as by `StandardScaler`. The scores are those of training
    rows: choosing by them and then testing on the same rows flatters the choice.

    Parameters
    ----------
    blocks : EmbeddingBlocks, mapping of str to array, or array of shape (n_layers, n_samples, n)
        The layers over the same rows, each of shape (n_samples, n_features); float32 is not
        widened. Layers of an array are named "layer0", "layer1" and so on.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs), or None, default=None
        Classes, a label indicator matrix or, for "balanced", "ridge" and "logme", numbers. Labels
        or outputs that are the same in all rows are left out.
    criterion : str, default="balanced"
        "balanced": leave-one-out log-loss of ridge classification, in closed form, at the layer's
        own best penalty, with classes counted alike however many rows they have; a class of one
        row counts nothing. Of labels and numbers the same as "ridge". "ridge": the same with rows
        counted alike. "logme": exact log evidence of a linear model, rows counted alike, which
        follows the frequent classes where some are rare. "h_score": the shrunk H-score.
        "variability": variance between classes over variance within. "effective_rank": how many
        directions are in use, which takes no y.
    task : {"auto", "classification", "regression"}, default="auto"
        How y is read. By "auto" strings, booleans and whole numbers (also as floats) are classes
        where they have at most 20 values, or no more values than a fifth of the rows, and a 0/1
        matrix holds labels; other numbers are a regression.
    class_weight : dict, "balanced" or None, default=None
        As in `LogisticRegression`; for "ridge".
    sample_weight : array-like of shape (n_samples,) or None, default=None
        Weights per row; for "balanced", within each class, and "ridge".

    Returns
    -------
    LayerScores
        Names, scores, and for "balanced" and "ridge" standard errors and losses of rows.

    Raises
    ------
    TypeError
        If `blocks` is none of these.
    ValueError
        If the criterion is unknown or does not go with `y` or with weights, if y misses values
        or is the same in all rows, or if the layers hold NaN or have different numbers of rows.

    Warns
    -----
    UserWarning
        If a layer fits y exactly with fewer directions than rows, where "logme" has no maximum:
        its score is then that with noise of a millionth of the variance of y.

    See Also
    --------
    skfusion.LLMLayerEmbedder : Its ``layer="auto"`` chooses by these scores in `fit`.

    References
    ----------
    Golub, Heath and Wahba, "Generalized Cross-Validation as a Method for Choosing a Good Ridge
    Parameter", Technometrics 1979. You et al., "LogME: Practical Assessment of Pre-trained Models
    for Transfer Learning", ICML 2021. Ibrahim et al., "Newer is not always better: Rethinking
    transferability metrics, their peculiarities, stability and performance", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion import layer_scores
    >>> rng = np.random.default_rng(0)
    >>> y = np.tile(["neg", "pos"], 30)
    >>> noise = rng.normal(size=(60, 4))
    >>> signal = noise + (y == "pos")[:, None]
    >>> found = layer_scores({"first": noise, "second": signal}, y)
    >>> found.best
    'second'
    >>> losses = layer_scores({"first": noise, "second": signal}, y, criterion="ridge")
    >>> dict(zip(losses.names, losses.scores.round(2).tolist(), strict=True))
    {'first': -0.69, 'second': -0.54}
    >>> layer_scores(np.stack([noise, noise[:, [0] * 4]]), criterion="effective_rank").best
    'layer0'
    """
    layers = _name_layers(blocks)
    n_rows = next(iter(layers.values())).shape[0]
    targets = read_criterion_targets(
        criterion, y, n_rows, task=task, class_weight=class_weight, sample_weight=sample_weight
    )
    return score_layers(layers.items(), targets, criterion)


def read_criterion_targets(
    criterion: str,
    y: Any,
    n_rows: int,
    *,
    task: Task = "auto",
    class_weight: Any = None,
    sample_weight: Any = None,
) -> Targets | None:
    """Return the targets that a criterion scores by, or None where it takes none."""
    if criterion not in CRITERIA:
        raise ValueError(f"criterion={criterion!r} must be one of {', '.join(CRITERIA)}.")
    rule = CRITERIA[criterion]
    if rule.shares is None and (class_weight is not None or sample_weight is not None):
        raise ValueError(
            f"criterion={criterion!r} takes no class_weight and no sample_weight; "
            f"criterion='ridge' does."
        )
    if criterion == "balanced" and class_weight is not None:
        raise ValueError(
            f"criterion='balanced' counts classes alike, and takes no class_weight; got "
            f"{class_weight!r}. criterion='ridge' does."
        )
    if not rule.kinds:
        return None
    if y is None:
        raise ValueError(
            f"criterion={criterion!r} requires y to be passed, but the target y is None. "
            f"criterion='effective_rank' takes none."
        )
    why = "layers can be scored with classes, a label indicator matrix, or numbers"
    if task not in TASKS:
        raise ValueError(f"task={task!r} must be one of {', '.join(TASKS)}.")
    targets = read_targets(y, CLASSES | LABELS | NUMBERS, why, n_rows=n_rows, task=task)
    if targets.kind not in rule.kinds:
        holds = "numbers" if targets.kind in NUMBERS else "labels"
        hint = ""
        if targets.kind in NUMBERS and task == "auto":
            hint = ", and task='classification' takes whole numbers for classes"
        raise ValueError(
            f"criterion={criterion!r} takes classes, but y is {targets.kind!r}: {holds}. "
            f"criterion='ridge' takes them{hint}."
        )
    return targets.weighted(_row_weights(targets, class_weight, sample_weight)).varying()


def _row_weights(targets: Targets, class_weight: Any, sample_weight: Any) -> Floats:
    """Return weights per row, 1 in the mean of those above 0."""
    weights: Floats = _check_sample_weight(
        sample_weight, targets.matrix, dtype=np.float64, ensure_non_negative=True
    )
    if class_weight is not None:
        if targets.kind not in CLASSES:
            raise ValueError(
                f"class_weight={class_weight!r} needs classes, but y is {targets.kind!r}."
            )
        assert targets.classes is not None
        weights *= compute_sample_weight(class_weight, targets.classes[targets.codes])
    positive = weights[weights > 0]
    if len(positive) < 2:
        raise ValueError(
            f"Layers are scored by leaving rows out, which takes two rows of positive weight at "
            f"least; got n_samples={len(positive)}."
        )
    weights /= positive.mean()
    return weights


def score_layers(
    layers: Iterable[tuple[str, Any]], targets: Targets | None, criterion: str
) -> LayerScores:
    """Score named layers one after the other, so that they need not be in memory together."""
    rule = CRITERIA[criterion]
    rows = None
    if targets is not None and not targets.weights.all():
        rows = np.flatnonzero(targets.weights)
        targets = targets.take(rows)
    names, made = [], []
    for name, layer in layers:
        array = check_array(
            densify(layer), dtype=[np.float32, np.float64], input_name=name, ensure_min_samples=2
        )
        kept = array if rows is None else array[rows]
        scaler = StandardScaler().fit(kept)
        if not np.isfinite(scaler.var_).all():
            raise ValueError(f"{name!r} holds values too large to be standardised. Scale it.")
        features = scaler.transform(kept)
        names.append(name)
        made.append(rule.of(features, targets))
    if rule.shares is None or targets is None:
        return LayerScores(criterion, tuple(names), np.array(made), None, None)
    losses, shares = np.stack(made, axis=1), rule.shares(targets)
    scores = -(shares @ losses)
    errors = _standard_errors(losses, int(np.argmax(scores)), shares)
    return LayerScores(criterion, tuple(names), scores, errors, losses, shares)


def _standard_errors(losses: Floats, base: int, shares: Floats | None) -> Floats:
    """Return those of weighted mean differences to one column; of equal weights, std / √n."""
    n = len(losses)
    shares = np.full(n, 1 / n) if shares is None else shares
    differences = losses - losses[:, [base]]
    around = differences - shares @ differences
    errors: Floats = np.sqrt(shares**2 @ around**2 * n / (n - 1))
    return errors


def _name_layers(blocks: Any) -> Mapping[str, Any]:
    if isinstance(blocks, EmbeddingBlocks):
        return blocks.blocks
    if isinstance(blocks, Mapping):
        return EmbeddingBlocks(blocks).blocks
    array = np.asarray(blocks)
    if array.ndim != 3 or not len(array):
        raise TypeError(
            f"blocks must be EmbeddingBlocks, a mapping of names to 2-D arrays, or an array of "
            f"shape (n_layers, n_samples, n_features); got {type(blocks).__name__} of shape "
            f"{array.shape}."
        )
    return {f"layer{i}": layer for i, layer in enumerate(array)}
