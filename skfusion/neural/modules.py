"""The network: a projection for each block, the operator, a head on the fused vector; losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._targets import Kind
from ..fusion.operators import mean
from ..fusion.registry import find_operator


@dataclass(frozen=True)
class Loss:
    """A loss of logits (..., n_outputs) against targets of the same shape."""

    per_row: Callable[[Tensor, Tensor], Tensor]  # (logits, target) to the loss of each row
    expected: Callable[[Tensor], Tensor]  # logits to the targets that they stand for
    decide: Callable[[Any], Any]  # targets, or what is expected of them, to classes or numbers
    curvature: float  # the largest second derivative in any direction

    def gradient(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return that of the loss by the logits."""
        return self.expected(logits) - target


def _cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return -(torch.log_softmax(z, dim=-1) * y).sum(dim=-1)


def _binary_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    # log(1 + e^z) - y z, which broadcasts; summed over the labels.
    return (functional.softplus(z) - y * z).sum(dim=-1)


def _half_squared_error(z: Tensor, y: Tensor) -> Tensor:
    return 0.5 * ((z - y) ** 2).sum(dim=-1)


CROSS_ENTROPY = Loss(
    _cross_entropy, lambda z: torch.softmax(z, dim=-1), lambda p: p.argmax(-1), 0.5
)
BINARY_CROSS_ENTROPY = Loss(_binary_cross_entropy, torch.sigmoid, lambda p: (p > 0.5) * 1, 0.25)
SQUARED_ERROR = Loss(
    _half_squared_error, lambda z: z, lambda y: y[:, 0] if y.shape[1] == 1 else y, 1.0
)
#: The loss of each kind of targets.
LOSSES: dict[Kind, Loss] = {
    "binary": CROSS_ENTROPY,
    "multiclass": CROSS_ENTROPY,
    "multilabel-indicator": BINARY_CROSS_ENTROPY,
    "continuous": SQUARED_ERROR,
    "continuous-multioutput": SQUARED_ERROR,
}


@dataclass(frozen=True)
class LinearMap:
    """Logits X @ weight.T + bias."""

    weight: Tensor  # (n_outputs, n_features)
    bias: Tensor  # (n_outputs,)

    @classmethod
    def zeros(cls, n_outputs: int, n_features: int) -> LinearMap:
        """Return the map to zeros."""
        return cls(torch.zeros(n_outputs, n_features), torch.zeros(n_outputs))


@dataclass(frozen=True)
class Architecture:
    """What decides the shapes of a `FusionNet`."""

    widths: tuple[int, ...]  # columns of each block, in the order of the input
    n_outputs: int
    operator: str = "concat"
    residual: bool | str = False
    n_components: int = 1024
    hidden_layer_sizes: tuple[int, ...] = (1024, 256)
    dropout: tuple[float, ...] = (0.5, 0.3)  # behind each hidden layer
    block_dropout: float = 0.0
    #: Blocks that are mixed into one first (layers of one model); a group of one stays itself.
    groups: tuple[tuple[int, ...], ...] = ()
    #: Whether a linear map of the scaled blocks is added to what the hidden layers say.
    has_linear: bool = False

    @property
    def mixed_widths(self) -> list[int]:
        """Return the columns of each block after mixing."""
        return [self.widths[group[0]] for group in self.groups]

    @property
    def fused_width(self) -> int:
        """Return the columns of the fused vector."""
        if self.operator == "concat":
            return sum(self.mixed_widths)
        d = self.n_components
        if self.operator != "gated":
            # A registered operator may return any width: ask it.
            d = find_operator(self.operator)([torch.ones(1, d)] * len(self.groups)).shape[1]
        return int(d) + (sum(self.mixed_widths) if self.residual == "concat" else 0)


class FusionNet(nn.Module):
    """Blocks side by side in, logits out; no random state is held or touched."""

    def __init__(
        self, architecture: Architecture, seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.architecture = a = architecture
        fused, generator = a.fused_width, torch.Generator().manual_seed(seed)
        self.projections = nn.ModuleList()
        if a.operator != "concat":
            self.projections.extend(_linear(w, a.n_components) for w in a.mixed_widths)
        sizes = [fused, *a.hidden_layer_sizes]
        self.hidden = nn.ModuleList(map(_linear, sizes[:-1], sizes[1:]))
        self.out = _linear(sizes[-1], a.n_outputs)
        self.reset_parameters(generator)
        self.linear = _linear(sum(a.widths), a.n_outputs) if a.has_linear else None
        if self.linear is not None:
            self.set_linear(LinearMap.zeros(a.n_outputs, sum(a.widths)))
        n, is_gated = len(a.groups), a.operator == "gated"
        self.gate = nn.Parameter(torch.zeros(n * a.n_components, n)) if is_gated else None
        mixes = [nn.Parameter(torch.zeros(len(group))) for group in a.groups if len(group) > 1]
        self.mixes = nn.ParameterList(mixes)
        # What makes the fused vector's columns standard on the training rows.
        self.shift: Tensor
        self.factor: Tensor
        self.register_buffer("shift", torch.zeros(fused))
        self.register_buffer("factor", torch.ones(fused))
        self.to(dtype)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw weights and biases as `nn.Linear` does: U(-1/√fan_in, 1/√fan_in)."""
        for layer in [*self.projections, *self.hidden, self.out]:
            bound = 1 / math.sqrt(layer.in_features)
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)

    @torch.no_grad()
    def set_linear(self, linear: LinearMap) -> None:
        """Set the linear part."""
        assert self.linear is not None
        self.linear.weight.copy_(linear.weight)
        self.linear.bias.copy_(linear.bias)

    @torch.no_grad()
    def shift_linear(self, shift: Tensor) -> None:
        """Add to the linear part's intercepts."""
        assert self.linear is not None
        self.linear.bias.add_(shift)

    @torch.no_grad()
    def silence(self) -> None:
        """Make the last layer zero, so that the linear part speaks alone."""
        self.out.weight.zero_()
        self.out.bias.zero_()

    @property
    def is_silent(self) -> bool:
        """Whether the linear part speaks alone."""
        return not bool(self.out.weight.any() or self.out.bias.any())

    def forward(
        self, X: Tensor, present: Tensor | None = None, dropout: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return the logits of scaled rows.

        `present`, (n_blocks,) or (n_samples, n_blocks), is 1 for blocks (after mixing) that are
        there, 0 for others. `dropout`, in training, holds one mask per hidden layer.
        """
        H = (self.fuse(X, present) - self.shift) * self.factor
        for i, layer in enumerate(self.hidden):
            H = torch.relu(layer(H))
            if dropout:
                H = H * dropout[i]
        logits: Tensor = self.out(H)
        return logits if self.linear is None else logits + self.linear(self.hide(X, present))

    def fuse(self, X: Tensor, present: Tensor | None = None) -> Tensor:
        """Return the fused vectors; a missing block counts as zeros, the training mean."""
        a, blocks = self.architecture, self.mix(X, present)
        if a.operator == "concat":
            return torch.cat(blocks, dim=-1)
        projected = self.project(blocks)
        if self.gate is not None:
            weights = self.gates(projected, present)
            fused = (torch.stack(projected, dim=-1) * weights[..., None, :]).sum(dim=-1)
        else:
            fused = find_operator(a.operator)(projected)
        if a.residual == "add":
            fused = fused + mean(projected)
        return torch.cat([*blocks, fused], dim=-1) if a.residual == "concat" else fused

    def project(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        """Bring blocks to the common width."""
        return [project(E) for project, E in zip(self.projections, blocks, strict=True)]

    def mix(self, X: Tensor, present: Tensor | None = None) -> list[Tensor]:
        """Cut rows into blocks, mix each group of layers, and make missing blocks zeros."""
        a = self.architecture
        cut = torch.split(X, list(a.widths), dim=-1)
        mixes, blocks = iter(self.mixes), []
        for group in a.groups:
            if len(group) == 1:
                blocks.append(cut[group[0]])
            else:
                layers = torch.stack([cut[i] for i in group], dim=-1)
                blocks.append((layers * torch.softmax(next(mixes), dim=-1)).sum(dim=-1))
        if present is None:
            return blocks
        return [E * present[..., i : i + 1] for i, E in enumerate(blocks)]

    def hide(self, X: Tensor, present: Tensor | None = None) -> Tensor:
        """Make missing blocks zeros."""
        if present is None:
            return X
        a = self.architecture
        at = {i: group for group, members in enumerate(a.groups) for i in members}
        of_column = [at[i] for i, width in enumerate(a.widths) for _ in range(width)]
        return X * present[..., of_column]

    def gates(self, projected: Sequence[Tensor], present: Tensor | None = None) -> Tensor:
        """Return the softmax weights (n_samples, n_blocks) of "gated" from projected blocks."""
        assert self.gate is not None
        scores = torch.cat(list(projected), dim=-1) @ self.gate
        if present is not None:
            scores = scores.masked_fill(present == 0, -math.inf)
        return torch.softmax(scores, dim=-1)

    def gates_of(self, X: Tensor, present: Tensor | None = None) -> Tensor:
        """Return the weights of "gated" for scaled rows."""
        return self.gates(self.project(self.mix(X, present)), present)


def draw_present(
    n_rows: int, n_blocks: int, p: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Draw which blocks of each row are kept, 1, or dropped, 0; one of them at least is kept."""
    drawn = torch.rand(n_rows, n_blocks, generator=generator, device=generator.device)
    # The one that was least near to being dropped stays.
    return ((drawn >= p) | (drawn == drawn.max(dim=1, keepdim=True).values)).to(dtype)


def draw_dropout(
    n_rows: int, width: int, p: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Draw the mask of dropout behind a hidden layer, 0 or 1 / (1 - p)."""
    drawn = torch.rand(n_rows, width, generator=generator, device=generator.device)
    return (drawn >= p).to(dtype) / (1 - p)


def _linear(n_in: int, n_out: int) -> nn.Linear:
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out)  # type: ignore[no-untyped-call]
    return layer
