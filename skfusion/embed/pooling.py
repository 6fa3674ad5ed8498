"""From the hidden states of a text's tokens to one vector: pure functions and their names.

Every function takes ``hidden`` of shape (batch, tokens, width) and a boolean ``mask`` of shape
(batch, tokens) that is true at real tokens, and returns float32 of shape (batch, width). Padding
may stand on either side and may hold anything, NaN too: it is never read into a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Callable[["Tensor", "Tensor"], "Tensor"]


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real tokens."""
    n_tokens = mask.sum(dim=1, keepdim=True).clamp(min=1).float()
    return _real(hidden, mask).sum(dim=1) / n_tokens


def last(hidden: Tensor, mask: Tensor) -> Tensor:
    """State of the last real token."""
    return _token(hidden, _rank(mask).argmax(dim=1))


def first(hidden: Tensor, mask: Tensor) -> Tensor:
    """State of the first real token: [CLS] or BOS where the model has one."""
    return _token(hidden, mask.int().argmax(dim=1))


def max(hidden: Tensor, mask: Tensor) -> Tensor:  # named as the option is
    """Largest value over the real tokens, for each dimension."""
    return hidden.float().masked_fill(~mask[..., None], float("-inf")).amax(dim=1)


def weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean with weights 1, 2, ..., T over the real tokens (SGPT, Muennighoff 2022, eq. 2)."""
    weights = _rank(mask)
    return (_real(hidden, mask) * weights[..., None]).sum(dim=1) / weights.sum(dim=1, keepdim=True)


def mean_no_first(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real tokens but the first; the first itself where it is the only one.

    In decoder models the first token is an attention sink (Xiao et al., ICLR 2024) whose norm
    drowns the others in the middle layers.
    """
    rank = _rank(mask)
    return mean(hidden, mask & ((rank > 1) | (rank.amax(dim=1, keepdim=True) == 1)))


#: Every pooling by the name that the `pooling` parameter takes.
POOLINGS: dict[str, Pooling] = {
    "mean": mean,
    "last": last,
    "first": first,
    "max": max,
    "weighted_mean": weighted_mean,
    "mean_no_first": mean_no_first,
}
#: What is blended of a model of which nothing else is known: of an encoder the means serve best,
#: of a decoder the last token often does, and the mean without the first one.
BLENDED_POOLINGS = ("mean", "mean_no_first", "last")


def _real(hidden: Tensor, mask: Tensor) -> Tensor:
    """Float32 states with zeros at padding; a product with the mask would let NaN through."""
    return hidden.float().masked_fill(~mask[..., None], 0.0)


def _rank(mask: Tensor) -> Tensor:
    """1, 2, ..., T at the real tokens of each row, 0 at padding."""
    return mask.cumsum(dim=1).float() * mask


def _token(hidden: Tensor, position: Tensor) -> Tensor:
    rows = position.new_tensor(range(len(position)))
    return hidden[rows, position].float()
