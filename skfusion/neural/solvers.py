"""From rows to a trained network: the paper's recipe, and one that is scaled to the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._targets import Kind
from ..fusion.projection import LinearProjection, add_bias
from ..fusion.registry import find_operator
from .data import Rows
from .fit_level import target_training_loss
from .modules import LOSSES, Architecture, FusionNet
from .training import HeadNet, Settings, StopRule, copy_callbacks, make_net, train

_LEAST_HELD_OUT = 10  # fewer rows cannot tell whether training gains anything
_EPOCHS = 120  # the paper's
_STEPS = 8  # times as many are allowed where a pass is one step
_PATIENCE = 20  # steps without a gain on held-out rows, but no less than ...
_LEAST_PATIENCE = 3  # ... epochs
_TARGET_PATIENCE = 200  # steps without a gain on the rows themselves: rare classes lose at first
_LR_FACTOR = 10  # "auto" takes few steps from a good start, the paper many from a random one
_TINY = 1e-6


@dataclass(frozen=True)
class Training:
    """What a network is trained on, and how: the estimator's parameters of the same names."""

    architecture: Architecture
    kind: Kind
    rows: Rows
    seed: int
    start: dict[str, Tensor] | None  # weights to go on from; None draws new ones
    solver: str
    lr: float
    weight_decay: float
    batch_size: int
    max_epochs: int | None
    early_stopping: bool | str
    validation_fraction: float
    callbacks: Sequence[Any]
    verbose: int

    def solve(self) -> tuple[HeadNet, list[float], list[dict[str, Any]]]:
        """Return the trained network, the losses that decided when to stop, and the search.

        With rows held out it is trained twice: to find the number of epochs, and then on all rows
        for that number. Otherwise "auto" trains until the rows are fitted as closely as
        `target_training_loss` says, and "paper" for all epochs. Of the search skorch's history is
        returned, without batches.
        """
        start, rows, held = self._start(), self.rows, self._hold_out()
        if held is not None:
            kept = rows[~held].reweighted()
            settings = self._settings(len(kept), seed=self.seed + 3)
            rule = StopRule(_patience(settings, len(kept), _PATIENCE))
            net, was_interrupted = self._train(
                start, kept, settings, rule, rows[held].reweighted()
            )
            search = [{k: v for k, v in epoch.items() if k != "batches"} for epoch in net.history]
            if not was_interrupted:
                settings = self._settings(len(rows), seed=self.seed + 4, epochs=rule.best_epoch)
                net, _ = self._train(start, rows, settings, None, again=True)
            return net, rule.losses, search
        settings = self._settings(len(rows), seed=self.seed + 4)
        if self.solver == "paper":
            return self._train(start, rows, settings, None)[0], [], []
        loss = target_training_loss(rows, LOSSES[self.kind], self._generator(1))
        rule = StopRule(_patience(settings, len(rows), _TARGET_PATIENCE), loss)
        return self._train(start, rows, settings, rule, rows)[0], rule.losses, []

    def untrained(self) -> HeadNet:
        """Return the network that `partial_fit` starts from."""
        settings = self._settings(len(self.rows), seed=self.seed)
        return make_net(self._start(), settings, self._copy_callbacks(settings, None, again=False))

    def _train(
        self,
        start: FusionNet,
        rows: Rows,
        settings: Settings,
        rule: StopRule | None,
        validation: Rows | None = None,
        *,
        again: bool = False,
    ) -> tuple[HeadNet, bool]:
        callbacks = self._copy_callbacks(settings, rule, again=again)
        return train(start, rows, settings, rule, callbacks, validation)

    def _copy_callbacks(
        self, settings: Settings, rule: StopRule | None, *, again: bool
    ) -> list[Any]:
        return copy_callbacks(self.callbacks, self.verbose, settings.epochs, rule, again=again)

    def _generator(self, purpose: int) -> torch.Generator:
        return torch.Generator(self.rows.X.device).manual_seed(self.seed + purpose)

    def _start(self) -> FusionNet:
        """Return the network with the weights that training starts from."""
        net = FusionNet(self.architecture, self.seed, self.rows.X.dtype)
        net.to(self.rows.X.device)
        if self.start is not None:
            net.load_state_dict(self.start)
        elif self.solver == "auto":
            _set_neutral_bias(net, self.rows)
            _standardise(net, self.rows)
        return net

    def _settings(self, n_rows: int, *, seed: int, epochs: int | None = None) -> Settings:
        lr, most = self.lr, _EPOCHS
        if self.solver == "auto":
            lr *= _LR_FACTOR
            most = max(most, math.ceil(_STEPS * most / math.ceil(n_rows / self.batch_size)))
        if epochs is None:
            epochs = most if self.max_epochs is None else self.max_epochs
        return Settings(
            kind=self.kind,
            epochs=epochs,
            batch_size=self.batch_size,
            lr=lr,
            weight_decay=self.weight_decay,
            seed=seed,
        )

    def _hold_out(self) -> Tensor | None:
        """Return which rows to hold out, or None.

        The share of each class is rounded, where `stratified_folds` deals all rows out evenly,
        but never all of it.
        """
        wanted, (n, width) = self.early_stopping, self.rows.X.shape
        if wanted is False or (wanted == "auto" and (self.solver == "paper" or n < width)):
            return None
        codes, generator = self.rows.codes, self._generator(2)
        held = torch.zeros(n, dtype=torch.bool, device=codes.device)
        can_spare = True
        for code in torch.unique(codes):
            of_class = torch.nonzero(codes == code)[:, 0]
            spared = min(round(len(of_class) * self.validation_fraction), len(of_class) - 1)
            order = torch.randperm(len(of_class), generator=generator, device=codes.device)
            held[of_class[order[:spared]]] = True
            can_spare &= spared > 0
        n_held = int(held.sum())
        if wanted is True and n_held == 0:
            raise ValueError(
                f"early_stopping=True holds out validation_fraction={self.validation_fraction} "
                f"of each class but one row at least of it, which is no row of any of them. Use "
                f"early_stopping='auto', a larger validation_fraction, or more rows."
            )
        return held if wanted is True or (can_spare and n_held >= _LEAST_HELD_OUT) else None


def _patience(settings: Settings, n_rows: int, steps: int) -> int:
    """Return the epochs that make up so many steps."""
    return max(_LEAST_PATIENCE, math.ceil(steps / math.ceil(n_rows / settings.batch_size)))


@torch.no_grad()
def _set_neutral_bias(net: FusionNet, rows: Rows) -> None:
    """Make a product's neutral element the bias of its projections, so that it holds both."""
    name = net.architecture.operator
    if name in ("concat", "gated"):
        return
    layers = [layer for layer in net.projections if isinstance(layer, nn.Linear)]
    maps = [
        LinearProjection(layer.weight.T.cpu().numpy(), np.zeros(layer.out_features))
        for layer in layers
    ]
    blocks = [E.cpu().numpy() for E in net.mix(rows.X)]
    for layer, project in zip(layers, add_bias(maps, blocks, find_operator(name)), strict=True):
        assert isinstance(project, LinearProjection)
        layer.weight.copy_(torch.from_numpy(project.weight.T))
        layer.bias.copy_(torch.from_numpy(project.bias))


@torch.no_grad()
def _standardise(net: FusionNet, rows: Rows) -> None:
    """Set what makes the columns of the fused vector standard."""
    F = net.fuse(rows.X)
    mean = rows.weights @ F / len(F)
    std = (rows.weights @ (F - mean) ** 2 / len(F)).sqrt()
    net.shift.copy_(mean)
    net.factor.copy_(1 / torch.where(std > _TINY * mean.abs() + _TINY, std, 1.0))
