"""From rows to a trained network: the paper's recipe, and one that is scaled to the data."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._targets import Kind
from ..fusion.projection import LinearProjection, add_bias
from ..fusion.registry import find_operator
from .data import Rows
from .modules import LOSSES, Architecture, FusionNet
from .penalised import Regression, is_alone, solve_regression, stratified_folds
from .training import (
    HeadNet,
    Settings,
    StopRule,
    copy_callbacks,
    make_net,
    row_losses,
    train,
)

#: Of the regression's loss. Where slopes are nothing but rounding, Adam still takes whole steps,
#: and a hundredth is what these may seem to gain.
_LEAST_GAIN = 0.01
_LEAST_HELD_OUT = 10  # fewer rows cannot tell whether training gains anything
_EPOCHS = 120  # the paper's
_STEPS = 8  # times as many are allowed where a pass is one step
_PATIENCE = 20  # steps without a gain on held-out rows, but no less than ...
_LEAST_PATIENCE = 3  # ... epochs
_TARGET_PATIENCE = 200  # steps without a gain on the rows themselves: rare classes lose at first
_LR_FACTOR = 10  # "auto" takes few steps from a good start, the paper many from a random one
_N_FOLDS, _FOLD_PATIENCE = 3, 10  # where rows are few
_TINY = 1e-6


@dataclass(frozen=True)
class Solution:
    """A trained network and how the number of epochs was found."""

    net: HeadNet
    losses: list[float] = field(default_factory=list)  # that decided when to stop
    search: list[dict[str, Any]] = field(default_factory=list)  # skorch's history of it
    is_linear_only: bool = False
    gain: float = math.nan  # by which training lowers the loss of held-out rows


@dataclass
class Search:
    """Held-out losses of networks that start at their regression, and whether they gain."""

    rules: list[StopRule] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)  # of the held-out rows of each
    history: list[dict[str, Any]] = field(default_factory=list)
    interrupted: HeadNet | None = None

    def add(self, rule: StopRule, weights: Tensor, history: list[dict[str, Any]]) -> None:
        """Note one training."""
        self.rules.append(rule)
        self.weights.append(weights)
        self.history += history

    def _per_row(self) -> Tensor:
        """Return the losses (n_epochs + 1, n_rows), as far as all trainings went."""
        n = min(len(rule.per_row) for rule in self.rules)
        return torch.cat([torch.stack(rule.per_row[:n]) for rule in self.rules], dim=1)

    def _shares(self) -> Tensor:
        weights = torch.cat(self.weights)
        return weights / weights.sum()

    @property
    def losses(self) -> list[float]:
        """Return the mean after each epoch."""
        if len(self.rules) == 1:
            return self.rules[0].losses
        return (self._per_row() @ self._shares())[1:].tolist() if self.rules else []

    @property
    def best_epoch(self) -> int:
        """Return the number of epochs with the least loss, 0 for the regression alone."""
        return int((self._per_row() @ self._shares()).argmin()) if self.rules else 0

    @property
    def gain(self) -> float:
        """Return by how much the best number of epochs lowers the loss."""
        return float(self._gains() @ self._shares()) if self.rules else math.nan

    @property
    def is_worth_it(self) -> bool:
        """Whether the gain is above its standard error and a hundredth of the loss."""
        if self.best_epoch == 0:
            return False
        error = (self._shares() * (self._gains() - self.gain)).norm()
        return self.gain > max(float(error), _LEAST_GAIN * self._first_loss())

    def _first_loss(self) -> float:
        return float(self._per_row()[0] @ self._shares())

    def _gains(self) -> Tensor:
        losses = self._per_row()
        return losses[0] - losses[self.best_epoch]


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

    def solve(self) -> Solution:
        """Return the trained network, and how it was found out for how long to train.

        "paper" trains for all epochs, or, with rows held out, for the best number of them. So
        does "auto" when it goes on with known weights; otherwise it starts at the penalised
        regression, and asks held-out rows first whether there is more to learn.
        """
        if self.solver == "auto" and self.start is None:
            return self._solve_from_regression()
        held = self._hold_out()
        if held is not None:
            return self._solve_held_out(held)
        settings = self._settings(len(self.rows), seed=self.seed + 4)
        if self.solver == "paper":
            return Solution(self._train(self._start(), self.rows, settings, None)[0])
        level = solve_regression(self.rows, LOSSES[self.kind], [], self._generator(1)).level
        return self._solve_to_level(self._start(), level)

    def _solve_held_out(self, held: Tensor) -> Solution:
        """Train twice: to find the number of epochs, and then on all rows for that number."""
        start, rows = self._start(), self.rows
        kept = rows[~held].reweighted()
        settings = self._settings(len(kept), seed=self.seed + 3)
        rule = StopRule(_patience(settings, len(kept), _PATIENCE))
        net, was_interrupted = self._train(start, kept, settings, rule, rows[held].reweighted())
        search = _epochs(net)
        if not was_interrupted:
            settings = self._settings(len(rows), seed=self.seed + 4, epochs=rule.best_epoch)
            net, _ = self._train(start, rows, settings, None, again=True)
        return Solution(net, rule.losses, search)

    def _solve_to_level(
        self, start: FusionNet, level: float, *, keeps_linear: bool = False
    ) -> Solution:
        """Train until all rows are fitted as closely as the level says."""
        settings = self._settings(len(self.rows), seed=self.seed + 4)
        rule = StopRule(_patience(settings, len(self.rows), _TARGET_PATIENCE), level)
        net, _ = self._train(
            start, self.rows, settings, rule, self.rows, keeps_linear=keeps_linear
        )
        return Solution(net, rule.losses)

    def _solve_from_regression(self) -> Solution:
        """Start at the penalised regression; the other layers stay where held-out rows gain."""
        start, splits = self._start(), self._splits()
        start.silence()
        regression = solve_regression(self.rows, LOSSES[self.kind], splits, self._generator(1))
        start.set_linear(regression.full)
        if self.early_stopping is False:
            solution = self._solve_to_level(start, regression.level, keeps_linear=True)
        else:
            solution = self._solve_searched(start, self._search(start, regression, splits))
        module = solution.net.module_
        module.shift_linear(regression.shift)
        return replace(solution, is_linear_only=module.is_silent)

    def _solve_searched(self, start: FusionNet, search: Search) -> Solution:
        """Train for the best number of epochs, or not at all where it does not gain."""
        settings = self._settings(len(self.rows), seed=self.seed + 4, epochs=search.best_epoch)
        if search.interrupted is not None:
            net = search.interrupted
        elif search.is_worth_it:
            net, _ = self._train(start, self.rows, settings, None, again=True, keeps_linear=True)
        else:
            net = make_net(start, settings, self._copy_callbacks(settings, None, again=True))
        return Solution(net, search.losses, search.history, gain=search.gain)

    def _search(
        self, start: FusionNet, regression: Regression, splits: Sequence[Tensor]
    ) -> Search:
        """Train without each split in turn, as long as it gains on the held-out rows."""
        rows, search = self.rows, Search()
        patience = _PATIENCE if len(splits) == 1 else _FOLD_PATIENCE
        start = copy.deepcopy(start)
        for held, linear in zip(splits, regression.without, strict=True):
            start.set_linear(linear)
            kept, validation = rows[~held].reweighted(), rows[held].reweighted()
            settings = self._settings(len(kept), seed=self.seed + 3)
            first = row_losses(start, validation, self.kind)
            rule = StopRule(
                _patience(settings, len(kept), patience),
                first=float(validation.balanced @ first),
                per_row=[first],
            )
            net, was_interrupted = self._train(
                start, kept, settings, rule, validation, keeps_linear=True
            )
            search.add(rule, rows.balanced[held], _epochs(net))
            if was_interrupted:
                search.interrupted = net
            if was_interrupted or search.best_epoch == 0:
                break
        return search

    def _splits(self) -> list[Tensor]:
        """Return which rows to hold out, one time after the other, to see if training gains."""
        if self.early_stopping is False:
            return []
        held = self._hold_out()
        if held is not None:
            return [held]
        # Too few rows to give up some: each is held out once, but for classes of one row.
        known = ~is_alone(self.rows.codes)
        if int(known.sum()) < _LEAST_HELD_OUT:
            return []
        folds = stratified_folds(self.rows.codes, _N_FOLDS, self._generator(2))
        splits = [(folds == fold) & known for fold in range(_N_FOLDS)]
        return [held for held in splits if held.any()]

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
        keeps_linear: bool = False,
    ) -> tuple[HeadNet, bool]:
        callbacks = self._copy_callbacks(settings, rule, again=again)
        return train(start, rows, settings, rule, callbacks, validation, keeps_linear=keeps_linear)

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


def _epochs(net: HeadNet) -> list[dict[str, Any]]:
    """Return skorch's history without batches."""
    return [{k: v for k, v in epoch.items() if k != "batches"} for epoch in net.history]


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
