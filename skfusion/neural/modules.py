"""The network: a projection a block, the operator, and the head on the fused vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..fusion.operators import mean
from ..fusion.registry import find_operator


@dataclass(frozen=True)
class Architecture:
    """What decides the shapes of a `FusionNet`: nets of one architecture can be stacked.

    Parameters
    ----------
    widths : tuple of int
        Columns of each block, in the order of the input.
    n_outputs : int
        Logits, or predicted values.
    operator : str
        How the projected blocks become one vector.
    residual : {False, "concat", "add"}
        What is added to that vector.
    n_components : int
        The common width d.
    hidden_layer_sizes : tuple of int
        Widths of the head's hidden layers.
    dropout : tuple of float
        Dropout behind each of them.
    view_dropout : float
        Chance that a block is left out of a row in training.
    groups : tuple of tuple of int
        Blocks that are mixed into one first (layers of one model); a group of one stays itself.
    """

    widths: tuple[int, ...]
    n_outputs: int
    operator: str = "concat"
    residual: bool | str = False
    n_components: int = 1024
    hidden_layer_sizes: tuple[int, ...] = (1024, 256)
    dropout: tuple[float, ...] = (0.5, 0.3)
    view_dropout: float = 0.0
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def mixed_widths(self) -> list[int]:
        """Columns of each block after mixing."""
        return [self.widths[group[0]] for group in self.groups]

    @property
    def fused_width(self) -> int:
        """Columns of the fused vector."""
        if self.operator == "concat":
            return sum(self.mixed_widths)
        beside = sum(self.mixed_widths) if self.residual == "concat" else 0
        return beside + self._operator_width()

    def _operator_width(self) -> int:
        d, n = self.n_components, len(self.groups)
        if self.operator == "gated":
            return d
        # An operator of one's own may give any width: ask it.
        return int(find_operator(self.operator)([torch.ones(1, d)] * n).shape[1])


Masks = tuple[Tensor, ...]


class FusionNet(nn.Module):
    """Blocks side by side in, logits out.

    It holds no random state: `draw_masks` gives those of a training step, so that nets trained
    together see what each would have seen alone.

    Parameters
    ----------
    architecture : Architecture
        The shapes.
    seed : int, default=0
        What the weights are drawn from. torch's own generator is not used.
    dtype : torch.dtype, default=torch.float32
        Of all weights.
    """

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
        n = len(a.groups)
        self.gate = nn.Parameter(torch.zeros(n * a.n_components, n)) if self._gated else None
        mixes = [nn.Parameter(torch.zeros(len(group))) for group in a.groups if len(group) > 1]
        self.mixes = nn.ParameterList(mixes)
        # What makes the fused vector's columns standard on the training rows.
        self.shift: Tensor
        self.factor: Tensor
        self.register_buffer("shift", torch.zeros(fused))
        self.register_buffer("factor", torch.ones(fused))
        self.to(dtype)

    @property
    def _gated(self) -> bool:
        return self.architecture.operator == "gated"

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw weights and biases as `nn.Linear` does: U(-1/√fan_in, 1/√fan_in)."""
        for layer in [*self.projections, *self.hidden, self.out]:
            bound = 1 / math.sqrt(layer.in_features)
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)

    def forward(self, X: Tensor, masks: Masks = (), present: Tensor | None = None) -> Tensor:
        """Give the logits of rows.

        Parameters
        ----------
        X : Tensor of shape (n_samples, sum of widths)
            Scaled blocks.
        masks : tuple of Tensor, default=()
            What `draw_masks` gave, in training.
        present : Tensor of shape (n_blocks,) or (n_samples, n_blocks), or None, default=None
            1 for blocks (after mixing) that are there, 0 for others.

        Returns
        -------
        Tensor of shape (n_samples, n_outputs)
            Logits, or predicted values.
        """
        if self.architecture.view_dropout and masks:
            present, masks = masks[0], masks[1:]
        return self.head(self.fuse(X, present), masks)

    def head(self, F: Tensor, masks: Masks = ()) -> Tensor:
        """Give the logits of fused vectors, with dropout where there are masks."""
        H = (F - self.shift) * self.factor
        for i, layer in enumerate(self.hidden):
            H = torch.relu(layer(H))
            if masks:
                H = H * masks[i]
        logits: Tensor = self.out(H)
        return logits

    def fuse(self, X: Tensor, present: Tensor | None = None) -> Tensor:
        """Give the fused vector of rows; a missing block counts as zeros, the training mean."""
        a, blocks = self.architecture, self.mix(X, present)
        if a.operator == "concat":
            return torch.cat(blocks, dim=-1)
        projected = self.project(blocks)
        if self._gated:
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
        mixes = iter(self.mixes)
        blocks = [
            cut[group[0]]
            if len(group) == 1
            else _mix([cut[i] for i in group], torch.softmax(next(mixes), dim=-1))
            for group in a.groups
        ]
        if present is None:
            return blocks
        return [E * present[..., i : i + 1] for i, E in enumerate(blocks)]

    def gates(self, projected: Sequence[Tensor], present: Tensor | None = None) -> Tensor:
        """Give the softmax weights (n_samples, n_blocks) of "gated", from all projected blocks."""
        assert self.gate is not None
        scores = torch.cat(list(projected), dim=-1) @ self.gate
        if present is not None:
            scores = scores.masked_fill(present == 0, -math.inf)
        return torch.softmax(scores, dim=-1)

    def gates_of(self, X: Tensor, present: Tensor | None = None) -> Tensor:
        """Give the weights of "gated" for rows of scaled blocks."""
        return self.gates(self.project(self.mix(X, present)), present)


def draw_masks(
    architecture: Architecture, n_rows: int, generator: torch.Generator, dtype: torch.dtype
) -> Masks:
    """Draw what one training step of a `FusionNet` leaves out.

    Parameters
    ----------
    architecture : Architecture
        Of the net.
    n_rows : int
        Rows of the batch.
    generator : torch.Generator
        Where they are drawn from, on the device of the net.
    dtype : torch.dtype
        Of the net.

    Returns
    -------
    tuple of Tensor
        The blocks that are there where views are dropped, then one mask a hidden layer, 0 or
        1 / (1 - p).
    """
    masks = []
    n_blocks = len(architecture.groups)
    if architecture.view_dropout:
        drawn = torch.rand(n_rows, n_blocks, generator=generator, device=generator.device)
        kept = drawn >= architecture.view_dropout
        # A row keeps one block at least: the one that was least near to being dropped.
        kept |= drawn == drawn.max(dim=1, keepdim=True).values
        masks.append(kept.to(dtype))
    for width, p in zip(architecture.hidden_layer_sizes, architecture.dropout, strict=True):
        drawn = torch.rand(n_rows, width, generator=generator, device=generator.device)
        masks.append((drawn >= p).to(dtype) / (1 - p))
    return tuple(masks)


def _linear(n_in: int, n_out: int) -> nn.Linear:
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out)  # type: ignore[no-untyped-call]
    return layer


def _mix(layers: Sequence[Tensor], weights: Tensor) -> Tensor:
    stacked = torch.stack(list(layers), dim=-1)
    return (stacked * weights).sum(dim=-1)
