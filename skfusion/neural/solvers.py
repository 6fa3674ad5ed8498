"""From rows to trained networks: the paper's recipe, and one that is scaled to the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..fusion.projection import LinearProjection, add_bias
from ..fusion.registry import find_operator
from .linear import level_of_fit
from .losses import LOSSES
from .modules import Architecture, FusionNet
from .progress import Progress
from .rows import Rows
from .training import Job, Trained

_LEAST_HELD_OUT = 10  # fewer rows cannot tell whether training gains anything
_STEPS = 8  # times as many steps as epochs are allowed where a pass is one step
_PATIENCE = 20  # steps without a gain on held-out rows, but no less than ...
_LEAST_PATIENCE = 3  # ... epochs
_LEVEL_PATIENCE = 200  # steps without a gain on the rows themselves: rare classes lose at first
_LR_FACTOR = 10  # "auto" takes few steps from a good start, the paper many from a random one
_TINY = 1e-6

Train = Callable[[Sequence[Job]], Sequence[Trained]]


@dataclass(frozen=True)
class Recipe:
    """How to train: the parameters of the estimator that are no part of the architecture.

    Parameters
    ----------
    solver : {"auto", "paper"}
        The procedure.
    lr, weight_decay : float
        Of Adam.
    batch_size, max_epochs : int
        The paper's, or the most for "auto".
    early_stopping : {"auto", True, False}
        Whether rows are held out.
    validation_fraction : float
        Their share.
    """

    solver: str
    lr: float
    weight_decay: float
    batch_size: int
    max_epochs: int
    early_stopping: bool | str
    validation_fraction: float


@dataclass(frozen=True)
class Task:
    """A network to be made from rows.

    Parameters
    ----------
    architecture : Architecture
        Its shapes.
    kind : str
        Which of `LOSSES`.
    rows : Rows
        All training rows.
    recipe : Recipe
        How to train.
    seed : int
        Of everything that is drawn.
    start : dict of str to Tensor or None, default=None
        Weights to go on from; None makes new ones.
    """

    architecture: Architecture
    kind: str
    rows: Rows
    recipe: Recipe
    seed: int
    start: dict[str, Tensor] | None = None

    @property
    def is_auto(self) -> bool:
        """Whether the solver is "auto"."""
        return self.recipe.solver == "auto"

    def generator(self, purpose: int) -> torch.Generator:
        """Give a generator that depends on the seed and what it is for."""
        return torch.Generator(self.rows.X.device).manual_seed(self.seed + purpose)

    @property
    def key(self) -> tuple[Any, ...]:
        """What the level of fit depends on."""
        return (self.kind, self.rows.digest(), self.seed)

    def start_net(self) -> FusionNet:
        """Make the network with the weights to start from."""
        net = FusionNet(self.architecture, self.seed, self.rows.X.dtype)
        net.to(self.rows.X.device)
        if self.start is not None:
            net.load_state_dict(self.start)
        elif self.is_auto:
            _shift_products(net, self.rows)
            _standardise(net, self.rows)
        return net

    def job(self, net: FusionNet, rows: Rows, *, purpose: int) -> Job:
        """Plan the training of a network on some rows, without held-out rows."""
        recipe = self.recipe
        epochs, batch_size, lr = recipe.max_epochs, recipe.batch_size, recipe.lr
        if self.is_auto:
            lr *= _LR_FACTOR
            steps = math.ceil(len(rows) / batch_size)
            epochs = max(epochs, math.ceil(_STEPS * epochs / steps))
        return Job(
            start=net,
            kind=self.kind,
            rows=rows,
            progress=None,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            weight_decay=recipe.weight_decay,
            seed=self.seed + purpose,
        )


def solve(tasks: Sequence[Task], train: Train) -> list[Trained]:
    """Train the networks of some tasks.

    With rows held out, each is trained twice: to find the number of epochs, and then on all rows
    for that number. Otherwise "auto" trains until the rows are fitted as closely as `level_of_fit`
    says, and "paper" for all epochs.

    Parameters
    ----------
    tasks : sequence of Task
        The tasks.
    train : callable
        Trains jobs: one after the other, or as a stack.

    Returns
    -------
    list of Trained
        One a task.
    """
    starts = [task.start_net() for task in tasks]
    splits = [_hold_out(task) for task in tasks]
    held = {i: split for i, split in enumerate(splits) if split is not None}
    searches = [_search_job(tasks[i], starts[i], split) for i, split in held.items()]
    found = dict(zip(held, train(searches), strict=True))
    final = [i for i in range(len(tasks)) if i not in found or not found[i].was_interrupted]
    levels: dict[Any, float] = {}
    jobs = [_final_job(tasks[i], starts[i], found.get(i), levels) for i in final]
    made = dict(zip(final, train(jobs), strict=True))
    return [_join(found.get(i), made.get(i)) for i in range(len(tasks))]


def _join(found: Trained | None, made: Trained | None) -> Trained:
    """Give the network of the final training, or of the search that was interrupted."""
    if made is None:
        assert found is not None
        return found
    return made if found is None else replace(made, progress=found.progress)


def _hold_out(task: Task) -> Tensor | None:
    """Mark the rows to hold out, where any are."""
    wanted, n, width = task.recipe.early_stopping, len(task.rows), task.rows.X.shape[1]
    if wanted is False or (wanted == "auto" and (not task.is_auto or n < width)):
        return None
    codes, generator = task.rows.codes, task.generator(2)
    held = torch.zeros(n, dtype=torch.bool, device=codes.device)
    can_spare = True
    for code in torch.unique(codes):
        of_class = torch.nonzero(codes == code)[:, 0]
        spared = round(len(of_class) * task.recipe.validation_fraction)
        order = torch.randperm(len(of_class), generator=generator, device=codes.device)
        held[of_class[order[:spared]]] = True
        can_spare &= spared > 0
    n_held = int(held.sum())
    if wanted is True and n_held == 0:
        raise ValueError(
            f"early_stopping=True holds out validation_fraction="
            f"{task.recipe.validation_fraction} of each class, which is no row of any of them. "
            f"Use early_stopping='auto', a larger validation_fraction, or more rows."
        )
    return held if wanted is True or (can_spare and n_held >= _LEAST_HELD_OUT) else None


def _search_job(task: Task, start: FusionNet, held: Tensor) -> Job:
    job = task.job(start, task.rows[~held].reweighted(), purpose=3)
    rows = task.rows[held].reweighted()
    return replace(job, progress=Progress(rows, _patience(job, _PATIENCE)))


def _final_job(
    task: Task, start: FusionNet, found: Trained | None, levels: dict[Any, float]
) -> Job:
    rows = task.rows
    job = task.job(start, rows, purpose=4)
    if found is not None:
        assert found.progress is not None
        return replace(job, epochs=found.progress.best_epoch)
    if not task.is_auto:
        return job
    if task.key not in levels:
        levels[task.key] = level_of_fit(rows, LOSSES[task.kind], task.generator(1))
    patience = _patience(job, _LEVEL_PATIENCE)
    return replace(job, progress=Progress(rows, patience, level=levels[task.key]))


def _patience(job: Job, steps: int) -> int:
    """Turn steps into epochs."""
    steps_an_epoch = math.ceil(len(job.rows) / job.batch_size)
    return max(_LEAST_PATIENCE, math.ceil(steps / steps_an_epoch))


@torch.no_grad()
def _shift_products(net: FusionNet, rows: Rows) -> None:
    """Give the projections of a product its neutral element as bias, so that it holds both."""
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
    """Make the columns of the fused vector standard."""
    F = net.fuse(rows.X)
    mean = rows.weights @ F / len(F)
    std = (rows.weights @ (F - mean) ** 2 / len(F)).sqrt()
    net.shift.copy_(mean)
    net.factor.copy_(1 / torch.where(std > _TINY * mean.abs() + _TINY, std, 1.0))
