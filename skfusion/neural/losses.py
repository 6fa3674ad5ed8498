"""Losses of logits, by the kind of target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .._targets import Kind


@dataclass(frozen=True)
class Loss:
    """A loss of logits (..., n_outputs) against targets of the same shape.

    Parameters
    ----------
    rows : callable
        (logits, target) to the loss of each row, (...,).
    slopes : callable
        (logits, target) to its derivative by the logits.
    curvature : float
        Its largest second derivative in any direction.
    """

    rows: Callable[[Tensor, Tensor], Tensor]
    slopes: Callable[[Tensor, Tensor], Tensor]
    curvature: float


def _softmax_rows(z: Tensor, y: Tensor) -> Tensor:
    return -(torch.log_softmax(z, dim=-1) * y).sum(dim=-1)


def _sigmoid_rows(z: Tensor, y: Tensor) -> Tensor:
    # log(1 + e^z) - y z, which broadcasts.
    return (functional.softplus(z) - y * z).sum(dim=-1)


def _square_rows(z: Tensor, y: Tensor) -> Tensor:
    return 0.5 * ((z - y) ** 2).sum(dim=-1)


#: "softmax": cross-entropy, targets are probabilities; "sigmoid": binary cross-entropy summed over
#: the labels; "squares": half the squared error.
LOSSES: dict[str, Loss] = {
    "softmax": Loss(_softmax_rows, lambda z, y: torch.softmax(z, dim=-1) - y, 0.5),
    "sigmoid": Loss(_sigmoid_rows, lambda z, y: torch.sigmoid(z) - y, 0.25),
    "squares": Loss(_square_rows, lambda z, y: z - y, 1.0),
}
#: The loss of each kind of targets.
LOSS_OF: dict[Kind, str] = {
    "binary": "softmax",
    "multiclass": "softmax",
    "multilabel-indicator": "sigmoid",
    "continuous": "squares",
    "continuous-multioutput": "squares",
}
