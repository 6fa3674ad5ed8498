"""`layer_scores`: how well each layer will serve a classifier, without training one a layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array

from .._blocks import EmbeddingBlocks, densify
from .._targets import LayerTargets, read_layer_targets
from .criteria import CRITERIA

Floats = NDArray[np.float64]

#: How far behind the best a shallower layer may be, in nats a row: a hundredth of a bit.
TOLERANCE = 0.01 * float(np.log(2))


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
        Of "logme", mean log evidence a row and target. Of "ridge", minus the mean log-loss of rows
        that were left out. Both are in nats.
    standard_errors : ndarray of float64, shape (n_layers,), or None
        Of each score's difference to the best, from the rows' own differences. None where the
        criterion does not speak of rows.
    row_losses : ndarray of float64, shape (n_samples, n_layers), or None
        The losses behind the scores, in the order of the rows that have weight.

    Examples
    --------
    >>> import numpy as np
    >>> from skfusion.linear.layer_scores import LayerScores
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

    @property
    def best(self) -> str:
        """The layer with the highest score."""
        return self.names[int(np.argmax(self.scores))]

    def shallowest(self, depths: Sequence[int]) -> str:
        """Follow the best layer toward the shallower ones, as long as they are as good.

        As good is what lies within a hundredth of a bit a row of the best, by the criteria that
        are in nats; by others, what scores the same. A shallower layer costs less to compute. The
        way ends before a stretch of more than a tenth of the depths at which no layer is as good.

        The rule of one standard error (Breiman et al. 1984) is not used: with few rows nearly all
        layers are within one. `benchmarks/layer_choice.py` has what that costs.

        Parameters
        ----------
        depths : sequence of int, of length n_layers
            How deep each layer lies. Of equally deep ones the better is taken.

        Returns
        -------
        str
            The name of the last layer on the way.
        """
        margin = TOLERANCE if CRITERIA[self.criterion].in_nats else 0.0
        near = self.scores >= self.scores.max() - margin
        chosen, passed = int(np.argmax(self.scores)), 0
        for depth in sorted({d for d in depths if d < depths[chosen]}, reverse=True):
            there = [i for i, d in enumerate(depths) if d == depth and near[i]]
            passed = 0 if there else passed + 1
            if passed > len(set(depths)) // 10:
                break
            chosen = max(there, key=lambda i: float(self.scores[i]), default=chosen)
        return self.names[chosen]


def layer_scores(
    blocks: EmbeddingBlocks | Mapping[str, Any] | NDArray[Any],
    y: Any = None,
    *,
    criterion: str = "logme",
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
        Classes, a label indicator matrix or, for "ridge" and "logme", numbers.
    criterion : str, default="logme"
        "logme": exact log evidence of a linear model, which of all chooses best where rows are
        few. "ridge": leave-one-out log-loss of ridge classification, in closed form, at the
        layer's own best penalty. "h_score": the shrunk H-score. "variability": variance between
        classes over variance within. "effective_rank": how many directions are in use, which
        takes no y.
    class_weight : dict, "balanced" or None, default=None
        As in `LogisticRegression`; for "ridge".
    sample_weight : array-like of shape (n_samples,) or None, default=None
        What each row counts; for "ridge".

    Returns
    -------
    LayerScores
        Names, scores, and for "ridge" standard errors and losses of rows.

    Raises
    ------
    TypeError
        If `blocks` is none of these.
    ValueError
        If the criterion is unknown or does not go with `y` or with weights, or if the layers
        hold NaN or have different numbers of rows.

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
    >>> from skfusion.linear.layer_scores import layer_scores
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
        criterion, y, n_rows, class_weight=class_weight, sample_weight=sample_weight
    )
    return score_layers(layers.items(), targets, criterion)


def read_criterion_targets(
    criterion: str,
    y: Any,
    n_rows: int,
    *,
    class_weight: Any = None,
    sample_weight: Any = None,
) -> LayerTargets | None:
    """Check that a criterion can use the targets.

    Parameters
    ----------
    criterion, y, class_weight, sample_weight
        As in `layer_scores`.
    n_rows : int
        How many rows the layers have.

    Returns
    -------
    LayerTargets or None
        None for a criterion that takes no targets.

    Raises
    ------
    ValueError
        If it cannot.
    """
    if criterion not in CRITERIA:
        raise ValueError(f"criterion={criterion!r} must be one of {', '.join(CRITERIA)}.")
    rule = CRITERIA[criterion]
    if not rule.by_row and (class_weight is not None or sample_weight is not None):
        raise ValueError(
            f"criterion={criterion!r} takes no class_weight and no sample_weight; "
            f"criterion='ridge' does."
        )
    if not rule.needs:
        return None
    if y is None:
        raise ValueError(
            f"criterion={criterion!r} requires y to be passed, but the target y is None. "
            f"criterion='effective_rank' takes none."
        )
    targets = read_layer_targets(y, n_rows, class_weight=class_weight, sample_weight=sample_weight)
    if targets.kind not in rule.needs:
        raise ValueError(
            f"criterion={criterion!r} takes {' or '.join(rule.needs)}, but y holds "
            f"{targets.kind}. criterion='ridge' takes them."
        )
    return targets


def score_layers(
    layers: Iterable[tuple[str, Any]], targets: LayerTargets | None, criterion: str
) -> LayerScores:
    """Score layers one after the other, so that they need not be in memory together.

    Parameters
    ----------
    layers : iterable of (str, array of shape (n_samples, n_features))
        Names and layers.
    targets : LayerTargets or None
        From `read_criterion_targets`.
    criterion : str
        As in `layer_scores`.

    Returns
    -------
    LayerScores
        Their scores.
    """
    rule = CRITERIA[criterion]
    names, made = [], []
    for name, layer in layers:
        features = _standardise(name, layer, targets)
        names.append(name)
        made.append(rule.of(features, targets))
    if not rule.by_row or targets is None:
        return LayerScores(criterion, tuple(names), np.array(made), None, None)
    losses = np.stack(made, axis=1)
    scores = -(targets.shares @ losses)
    differences = losses - losses[:, [int(np.argmax(scores))]]
    return LayerScores(
        criterion, tuple(names), scores, _standard_errors(differences, targets.shares), losses
    )


def _standard_errors(differences: Floats, shares: Floats) -> Floats:
    """Give the standard errors of weighted means; of equal weights, std / √n."""
    n = len(shares)
    around = differences - shares @ differences
    errors: Floats = np.sqrt(shares**2 @ around**2 * n / (n - 1))
    return errors


def _standardise(name: str, layer: Any, targets: LayerTargets | None) -> NDArray[Any]:
    layer = check_array(
        densify(layer), dtype=[np.float32, np.float64], input_name=name, ensure_min_samples=2
    )
    if targets is not None and len(layer) != len(targets.rows):
        layer = layer[targets.rows]
    scaled: NDArray[Any] = StandardScaler().fit_transform(layer)
    return scaled


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
