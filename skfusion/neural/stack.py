"""Training many networks of one shape as one batched network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state

from ..fusion.registry import BUILT_IN
from .losses import LOSSES
from .modules import Masks, draw_masks
from .rows import Rows
from .training import (
    Job,
    Trained,
    batch_indices,
    loss_error,
    make_net,
    make_optimizer,
    row_losses,
    train_one,
)

_MOST_WEIGHTS = 2**25  # of a stack: a larger one gains nothing and takes memory
_MOST_ON_CPU = 2**20  # of a network: what is above is bound by arithmetic there, stacked or not


def train_stacked(jobs: Sequence[Job]) -> list[Trained]:
    """Train networks, those of one shape together.

    The result of each is that of `train_one` up to rounding.

    Parameters
    ----------
    jobs : sequence of Job
        Of any shapes.

    Returns
    -------
    list of Trained
        One a job.

    Raises
    ------
    FloatingPointError
        If the loss of one of them is not finite any more.
    """
    done: dict[int, Trained] = {}
    for group in _groups(jobs):
        train = _train_together if _can_be_stacked(jobs[group[0]]) else _train_apart
        done.update(zip(group, train([jobs[i] for i in group]), strict=True))
    return [done[i] for i in range(len(jobs))]


def _groups(jobs: Sequence[Job]) -> Iterator[list[int]]:
    """Put jobs together that differ in weights and rows only."""
    alike: dict[Any, list[int]] = {}
    for i, job in enumerate(jobs):
        steps = -(-len(job.rows) // job.batch_size)
        shape = (job.start.architecture, job.kind, steps, job.rows.X.dtype, job.rows.X.device)
        alike.setdefault((*shape, job.lr, job.weight_decay), []).append(i)
    for group in alike.values():
        most = max(1, _MOST_WEIGHTS // _count_weights(jobs[group[0]]))
        for start in range(0, len(group), most):
            yield group[start : start + most]


def _can_be_stacked(job: Job) -> bool:
    """Tell whether the operator is known to work on a batch of batches, and whether it pays."""
    is_known = job.start.architecture.operator in BUILT_IN | {"gated"}
    is_cpu = job.rows.X.device.type == "cpu"
    return is_known and (not is_cpu or _count_weights(job) <= _MOST_ON_CPU)


def _count_weights(job: Job) -> int:
    return sum(w.numel() for w in job.start.parameters())


def _train_apart(jobs: Sequence[Job]) -> list[Trained]:
    return [train_one(job) for job in jobs]


def _train_together(jobs: Sequence[Job]) -> list[Trained]:
    members = [_Member(job) for job in jobs]
    going = [member for member in members if member.job.epochs]
    stack = _Stack(going) if going else None
    while stack is not None and going:
        stack.run_epoch()
        over = [member for member in going if member.is_over]
        for member in over:
            member.weights = stack.weights_of(member)
        if over:
            going = [member for member in going if member not in over]
            stack.keep(going)
    return [member.finish() for member in members]


@dataclass(eq=False)
class _Member:
    """A job in a stack. Its generator is its own, so it sees what it would see alone."""

    job: Job
    history: list[dict[str, float]] = field(default_factory=list)
    weights: dict[str, Tensor] | None = None

    def __post_init__(self) -> None:
        device = self.job.rows.X.device
        self.generator = torch.Generator(device).manual_seed(self.job.seed)

    @property
    def is_over(self) -> bool:
        progress = self.job.progress
        is_enough = progress is not None and progress.is_over
        return is_enough or len(self.history) == self.job.epochs

    def batches(self) -> Iterator[tuple[Rows, Masks]]:
        """Draw the batches of an epoch, as `TrainingBatches` does."""
        rows, architecture = self.job.rows, self.job.start.architecture
        for index in batch_indices(len(rows), self.job.batch_size, self.generator):
            masks = draw_masks(architecture, len(index), self.generator, rows.X.dtype)
            yield rows[index], masks

    def finish(self) -> Trained:
        """Give the skorch net that training alone would have given."""
        net = make_net(self.job)
        if self.weights is not None:
            net.module_.load_state_dict(self.weights)
        for entry in self.history:
            net.history.new_epoch()
            for name, value in entry.items():
                net.history.record(name, value)
        return Trained(net, self.job.progress)


class _Stack:
    """The networks of some members as tensors with one more axis, and Adam on them."""

    def __init__(self, members: Sequence[_Member]) -> None:
        self.members = list(members)
        self.net = members[0].job.start
        weights, self.buffers = stack_module_state([m.job.start for m in members])
        self.weights = {name: w.detach().requires_grad_() for name, w in weights.items()}
        self.optimizer = self._make_optimizer()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        job = self.members[0].job
        return make_optimizer(self.weights.values(), lr=job.lr, weight_decay=job.weight_decay)

    def run_epoch(self) -> None:
        """Train all members for one pass over their rows."""
        began = time.perf_counter()
        sums = torch.zeros(len(self.members), dtype=torch.float64)
        for batches in zip(*[member.batches() for member in self.members], strict=True):
            losses = self._step(batches)
            sums += losses * torch.tensor([len(rows) for rows, _ in batches])
        seconds = (time.perf_counter() - began) / len(self.members)
        for i, member in enumerate(self.members):
            entry = {"epoch": len(member.history) + 1, "dur": seconds}
            entry["train_loss"] = float(sums[i]) / len(member.job.rows)
            self._follow(i, member, entry)
            member.history.append(entry)

    def _step(self, batches: Sequence[tuple[Rows, Masks]]) -> Tensor:
        n = max(len(rows) for rows, _ in batches)
        X = torch.stack([_pad(rows.X, n) for rows, _ in batches])
        target = torch.stack([_pad(rows.target, n) for rows, _ in batches])
        # Rows that fill up a batch weigh nothing; the others count as in a mean over their batch.
        weights = torch.stack([_pad(rows.weights, n) / len(rows) for rows, _ in batches])
        masks = tuple(
            torch.stack([_pad(mask, n, 1.0) for mask in same])
            for same in zip(*[masks for _, masks in batches], strict=True)
        )
        logits = torch.vmap(self._forward)(self.weights, self.buffers, X, masks)
        losses = (weights * LOSSES[self.members[0].job.kind].rows(logits, target)).sum(dim=1)
        self.optimizer.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._check(losses.detach(), X)
        return losses.detach().double().cpu()

    def _forward(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], X: Tensor, masks: Masks = ()
    ) -> Tensor:
        logits: Tensor = functional_call(self.net, (weights, buffers), (X, masks))
        return logits

    def _check(self, losses: Tensor, X: Tensor) -> None:
        for i in torch.nonzero(~torch.isfinite(losses)).flatten().tolist():
            member = self.members[i]
            epoch, lr = len(member.history) + 1, member.job.lr
            raise loss_error(float(losses[i]), epoch, lr, float(X[i].abs().max()))

    @torch.no_grad()
    def _follow(self, i: int, member: _Member, entry: dict[str, float]) -> None:
        """Look at the loss that says when to stop, as `Follow` does."""
        progress = member.job.progress
        if progress is None:
            return
        weights = {name: w[i] for name, w in self.weights.items()}
        buffers = {name: b[i] for name, b in self.buffers.items()}
        progress.add(
            row_losses(
                lambda X: self._forward(weights, buffers, X), member.job.kind, progress.rows
            )
        )
        entry["valid_loss"] = progress.losses[-1]

    def weights_of(self, member: _Member) -> dict[str, Tensor]:
        """Copy the weights of one member, as a state of its own network."""
        i = self.members.index(member)
        stacked = {**self.weights, **self.buffers}
        return {name: w[i].detach().clone() for name, w in stacked.items()}

    def keep(self, members: Sequence[_Member]) -> None:
        """Go on with some members only."""
        kept = [self.members.index(member) for member in members]
        self.members = list(members)
        if not kept:
            return
        states = [self.optimizer.state[w] for w in self.weights.values()]
        self.buffers = {name: b[kept] for name, b in self.buffers.items()}
        self.weights = {
            name: w.detach()[kept].requires_grad_() for name, w in self.weights.items()
        }
        self.optimizer = self._make_optimizer()
        for w, state in zip(self.weights.values(), states, strict=True):
            self.optimizer.state[w] = {
                name: value if name == "step" else value[kept] for name, value in state.items()
            }


def _pad(tensor: Tensor, n: int, value: float = 0.0) -> Tensor:
    """Add rows of a value up to n."""
    missing = n - len(tensor)
    if not missing:
        return tensor
    return torch.cat([tensor, tensor.new_full((missing, *tensor.shape[1:]), value)])
