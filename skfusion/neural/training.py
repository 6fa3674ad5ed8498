"""Training one network, through skorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from skorch import NeuralNet
from skorch.callbacks import Callback, EarlyStopping
from skorch.history import History
from torch import Tensor, nn

from .losses import LOSSES
from .modules import FusionNet, draw_masks
from .progress import Progress
from .rows import Rows

FOLLOW = "follow"
CHUNK = 4096  # rows that are asked for at the same time
Batch = tuple[dict[str, Any], dict[str, Tensor]]


@dataclass(frozen=True)
class Job:
    """A network to train.

    Parameters
    ----------
    start : FusionNet
        The weights to start from; they are not changed.
    kind : str
        Which of `LOSSES`.
    rows : Rows
        Training rows.
    progress : Progress or None
        What looks at the loss after each epoch and says when to stop.
    epochs : int
        Most passes over the rows.
    batch_size : int
        Rows of a step.
    lr : float
        Adam's step size.
    weight_decay : float
        Adam's weight decay.
    seed : int
        For the order of the rows and what is left out of each step.
    """

    start: FusionNet
    kind: str
    rows: Rows
    progress: Progress | None
    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    seed: int


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Parameters
    ----------
    net : HeadNet
        The network with its history.
    progress : Progress or None
        That of the job.
    was_interrupted : bool
        Whether Ctrl-C, or a callback that means it, ended the training.
    """

    net: HeadNet
    progress: Progress | None
    was_interrupted: bool = False


class WeightedLoss(nn.Module):
    """The mean of weight times loss over rows.

    Parameters
    ----------
    kind : str
        Which of `LOSSES`.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, logits: Tensor, target: Tensor, weights: Tensor) -> Tensor:
        """Give the loss of a batch."""
        return (weights * LOSSES[self.kind].rows(logits, target)).mean()


class TrainingBatches:
    """Batches in a new order each time, as skorch hands them to module and loss.

    Parameters
    ----------
    rows : Rows
        All rows, on the device of the net.
    batch_size : int
        Rows of a batch; the last may be smaller.
    seed : int
        Of the generator that lives as long as this object.
    architecture : Architecture
        Of the net.
    """

    def __init__(self, rows: Rows, batch_size: int, seed: int, architecture: Any) -> None:
        self.rows, self.batch_size, self.architecture = rows, batch_size, architecture
        self.generator = torch.Generator(rows.X.device).manual_seed(seed)

    def __iter__(self) -> Iterator[Batch]:
        for index in batch_indices(len(self.rows), self.batch_size, self.generator):
            masks = draw_masks(self.architecture, len(index), self.generator, self.rows.X.dtype)
            batch = self.rows[index]
            yield (
                {"X": batch.X, "masks": masks},
                {"target": batch.target, "weights": batch.weights},
            )


def batch_indices(n_rows: int, batch_size: int, generator: torch.Generator) -> Sequence[Tensor]:
    """Draw the rows of each batch of an epoch."""
    order = torch.randperm(n_rows, generator=generator, device=generator.device)
    return torch.split(order, batch_size)


class HeadNet(NeuralNet):
    """A skorch net over a `FusionNet`, whose loss knows weights."""

    def get_loss(
        self, y_pred: Tensor, y_true: dict[str, Tensor], X: Any = None, training: bool = False
    ) -> Tensor:
        """Give the loss of a batch."""
        loss: Tensor = self.criterion_(y_pred, **y_true)
        return loss

    def __skfusion_save__(self) -> dict[str, Any]:
        """Give what `skfusion.save` keeps: weights, history, settings; not Adam's momenta."""
        module = self.module_
        return {
            "architecture": module.architecture,
            "weights": {name: w.cpu().numpy() for name, w in module.state_dict().items()},
            "history": [dict(epoch) for epoch in self.history],
            "training": {
                "kind": self.criterion_.kind,
                "epochs": self.max_epochs,
                "batch_size": self.batch_size,
                "lr": self.lr,
                "weight_decay": self.optimizer__weight_decay,
                "seed": self.iterator_train__seed,
            },
        }

    @classmethod
    def __skfusion_restore__(cls, value: dict[str, Any]) -> HeadNet:
        """Make the net of what `__skfusion_save__` gave, on the CPU."""
        weights = {name: torch.as_tensor(w) for name, w in value["weights"].items()}
        start = FusionNet(value["architecture"], dtype=weights["shift"].dtype)
        start.load_state_dict(weights)
        none = torch.zeros(0, dtype=weights["shift"].dtype)
        rows = Rows(none, none, none, none, none)
        net = make_net(Job(start=start, rows=rows, progress=None, **value["training"]))
        net.history_ = History(value["history"])
        return net


class Watch(Callback):
    """Stops training when the loss is not finite."""

    def on_batch_end(
        self, net: HeadNet, batch: Any = None, training: bool = True, loss: Any = None, **_: Any
    ) -> None:
        """Look at the loss."""
        if training and not torch.isfinite(loss):
            largest = float(batch[0]["X"].abs().max())
            lr = net.optimizer_.param_groups[0]["lr"]
            raise loss_error(float(loss.detach()), len(net.history), lr, largest)


def loss_error(loss: float, epoch: int, lr: float, largest: float) -> FloatingPointError:
    """Say that training has broken, and what to do."""
    return FloatingPointError(
        f"The loss became {loss} in epoch {epoch}, with learning rate {lr:g}; the largest "
        f"absolute input of the batch is {largest:g}. Use a smaller lr, scale='standard', or "
        f"dtype='float64'."
    )


class Follow(Callback):
    """Looks at the loss on some rows after each epoch and stops when that is enough.

    Parameters
    ----------
    progress : Progress
        What it writes on.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.best: dict[str, Tensor] | None = None

    def on_epoch_end(self, net: HeadNet, **_: Any) -> None:
        """Keep the best weights, and end training as skorch's own EarlyStopping does."""
        losses = row_losses(net.module_, net.criterion_.kind, self.progress.rows)
        if self.progress.add(losses) and self.progress.level is None:
            self.best = copy.deepcopy(net.module_.state_dict())
        net.history.record("valid_loss", self.progress.losses[-1])
        if self.progress.is_over:
            raise KeyboardInterrupt


@torch.no_grad()
def row_losses(net: Callable[[Tensor], Tensor], kind: str, rows: Rows) -> Tensor:
    """Give the loss of each row without dropout."""
    return torch.cat(
        [
            LOSSES[kind].rows(net(chunk.X), chunk.target)
            for chunk in (rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK))
        ]
    )


def make_optimizer(
    weights: Iterable[Tensor], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Make Adam in its fused form, which passes over the weights once."""
    return torch.optim.Adam(weights, lr=lr, weight_decay=weight_decay, fused=True)


def make_net(job: Job, callbacks: Sequence[Any] = ()) -> HeadNet:
    """Make the net of a job, initialised with the weights that it starts from.

    Parameters
    ----------
    job : Job
        The job.
    callbacks : sequence of skorch callbacks, default=()
        They are the net's own from now on.

    Returns
    -------
    HeadNet
        Not trained yet.
    """
    net = HeadNet(
        FusionNet,
        module__architecture=job.start.architecture,
        module__dtype=job.rows.X.dtype,
        criterion=WeightedLoss,
        criterion__kind=job.kind,
        optimizer=make_optimizer,
        optimizer__weight_decay=job.weight_decay,
        lr=job.lr,
        max_epochs=job.epochs,
        batch_size=job.batch_size,
        iterator_train=TrainingBatches,
        iterator_train__seed=job.seed,
        iterator_train__architecture=job.start.architecture,
        train_split=None,
        callbacks=[*callbacks, ("watch", Watch())],
        device=str(job.rows.X.device),
        verbose=0,
    )
    net.initialize()
    net.module_.load_state_dict(job.start.state_dict())
    return net


def train_one(job: Job, callbacks: Sequence[Any] = ()) -> Trained:
    """Train one network.

    Parameters
    ----------
    job : Job
        The job.
    callbacks : sequence of skorch callbacks, default=()
        The user's, already copied.

    Returns
    -------
    Trained
        The network as it was after its last epoch or, if its search for the number of epochs was
        interrupted, after the best one.
    """
    progress = job.progress
    follow = None if progress is None else Follow(progress)
    # Before the user's callbacks, which may look at the loss that it records.
    own = [] if follow is None else [(FOLLOW, follow)]
    net = make_net(job, [*own, *callbacks])
    if job.epochs:
        net.partial_fit(job.rows)
    # It holds the rows, which are no part of the net, and says nothing about a later partial_fit.
    net.callbacks = [entry for entry in net.callbacks if _name_of(entry) != FOLLOW]
    net.callbacks_ = [entry for entry in net.callbacks_ if entry[0] != FOLLOW]
    is_over = progress is not None and progress.is_over
    done = is_over or _is_complete(net, job) or _has_stopped_early(net)
    if not done and follow is not None and follow.best is not None:
        net.module_.load_state_dict(follow.best)
    return Trained(net, progress, was_interrupted=not done)


def _name_of(entry: Any) -> str | None:
    return entry[0] if isinstance(entry, tuple) else None


def _is_complete(net: HeadNet, job: Job) -> bool:
    """Tell whether all epochs were run to their end, where skorch records the mean loss."""
    return len(net.history) == job.epochs and (not job.epochs or "train_loss" in net.history[-1])


def _has_stopped_early(net: HeadNet) -> bool:
    """Tell whether a callback of the user's has found that it is enough; it looks like Ctrl-C."""
    return any(
        isinstance(callback, EarlyStopping) and callback.misses_ >= callback.patience
        for _, callback in net.callbacks_
    )
