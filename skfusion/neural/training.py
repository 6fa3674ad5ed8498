"""Training a network through skorch: batches, callbacks, when to stop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from skorch import NeuralNet
from skorch.callbacks import Callback, EarlyStopping
from skorch.history import History
from torch import Tensor, nn
from tqdm.auto import tqdm

from .._targets import Kind
from .data import CHUNK, Rows
from .modules import LOSSES, Architecture, FusionNet, draw_dropout, draw_present

_STOP = "stop_rule"


@dataclass(frozen=True)
class Settings:
    """What skorch is told."""

    kind: Kind  # of the targets, which decides the loss
    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    seed: int  # for the order of the rows and dropout


@dataclass
class StopRule:
    """Losses, epoch by epoch, on rows without dropout, and when to stop by them."""

    rows: Rows  # held-out rows, or the training rows; they weigh ``rows.balanced``
    patience: int  # epochs without a new least loss
    target_loss: float | None = None  # of the training rows; None where rows are held out
    losses: list[float] = field(default_factory=list)

    def add(self, row_losses: Tensor) -> bool:
        """Note the losses of the rows after an epoch; return whether they are the least yet."""
        self.losses.append(float(self.rows.balanced @ row_losses))
        return self.best_epoch == len(self.losses)

    @property
    def best_epoch(self) -> int:
        """Return the number of epochs with the least loss; 0 before the first."""
        return self.losses.index(min(self.losses)) + 1 if self.losses else 0

    @property
    def is_over(self) -> bool:
        """Whether it is time to stop."""
        if not self.losses:
            return False
        is_reached = self.target_loss is not None and self.losses[-1] <= self.target_loss
        return is_reached or len(self.losses) - self.best_epoch >= self.patience


class TrainingBatches:
    """Batches in a new order in each epoch, as skorch hands them to the module and the loss."""

    def __init__(self, rows: Rows, batch_size: int, seed: int, architecture: Architecture) -> None:
        self.rows, self.batch_size, self.architecture = rows, batch_size, architecture
        self.generator = torch.Generator(rows.X.device).manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
        a, draw = self.architecture, (self.generator, self.rows.X.dtype)
        order = torch.randperm(
            len(self.rows), generator=self.generator, device=self.generator.device
        )
        for index in torch.split(order, self.batch_size):
            batch = self.rows[index]
            X: dict[str, Any] = {"X": batch.X}
            if a.block_dropout:
                X["present"] = draw_present(len(index), len(a.groups), a.block_dropout, *draw)
            X["dropout"] = [
                draw_dropout(len(index), width, p, *draw)
                for width, p in zip(a.hidden_layer_sizes, a.dropout, strict=True)
            ]
            yield X, {"target": batch.target, "weights": batch.weights}


class WeightedLoss(nn.Module):
    """The mean of weight times loss over the rows of a batch."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, logits: Tensor, target: Tensor, weights: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return (weights * LOSSES[self.kind].per_row(logits, target)).mean()


class HeadNet(NeuralNet):
    """A skorch net over a `FusionNet`, whose loss knows weights."""

    def get_loss(
        self, y_pred: Tensor, y_true: dict[str, Tensor], X: Any = None, training: bool = False
    ) -> Tensor:
        """Return the loss of a batch."""
        loss: Tensor = self.criterion_(y_pred, **y_true)
        return loss

    def __skfusion_save__(self) -> dict[str, Any]:
        """Return what `skfusion.save` keeps: weights, history, settings; not Adam's momenta."""
        module = self.module_
        settings = Settings(
            kind=self.criterion_.kind,
            epochs=self.max_epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.optimizer__weight_decay,
            seed=self.iterator_train__seed,
        )
        return {
            "architecture": module.architecture,
            "weights": {name: w.cpu().numpy() for name, w in module.state_dict().items()},
            "history": [dict(epoch) for epoch in self.history],
            "training": asdict(settings),
        }

    @classmethod
    def __skfusion_restore__(cls, value: dict[str, Any]) -> HeadNet:
        """Return the net of what `__skfusion_save__` returned, on the CPU."""
        weights = {name: torch.as_tensor(w) for name, w in value["weights"].items()}
        check_shapes(value["architecture"], weights)
        start = FusionNet(value["architecture"], dtype=weights["shift"].dtype)
        start.load_state_dict(weights)
        net = make_net(start, Settings(**value["training"]))
        net.history_ = History(value["history"])
        return net


def check_shapes(a: Architecture, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of another architecture, before a net of its size is made."""
    sizes, n = [len(weights["shift"]), *a.hidden_layer_sizes, a.n_outputs], len(a.groups)
    layers = [*(f"hidden.{i}" for i in range(len(a.hidden_layer_sizes))), "out"]
    wanted = dict(zip(layers, zip(sizes[1:], sizes[:-1], strict=True), strict=True))
    if a.operator != "concat":
        wanted |= {f"projections.{i}": (a.n_components, w) for i, w in enumerate(a.mixed_widths)}
    shapes = {name.removesuffix(".weight"): tuple(w.shape) for name, w in weights.items()}
    fits = all(shapes[name] == shape for name, shape in wanted.items())
    fits = fits and shapes.get("gate", (n * a.n_components, n)) == (n * a.n_components, n)
    if not fits or (a.operator == "concat" and sum(a.mixed_widths) != sizes[0]):
        raise ValueError(f"The weights are not those of {a}.")


class _CheckLoss(Callback):
    """Refuses a loss that is not finite."""

    def on_batch_end(
        self, net: HeadNet, batch: Any = None, training: bool = True, loss: Any = None, **_: Any
    ) -> None:
        """Raise with what to do."""
        if training and not torch.isfinite(loss):
            lr = net.optimizer_.param_groups[0]["lr"]
            raise FloatingPointError(
                f"The loss became {float(loss.detach())} in epoch {len(net.history)}, with "
                f"learning rate {lr:g}; the largest absolute input of the batch is "
                f"{float(batch[0]['X'].abs().max()):g}. Use a smaller lr, scale='standard', or "
                f"dtype='float64'."
            )


class _Stop(Callback):
    """Ends training by a `StopRule` and keeps the best weights on held-out rows."""

    def __init__(self, rule: StopRule) -> None:
        self.rule = rule
        self.best: dict[str, Tensor] | None = None

    def on_epoch_end(self, net: HeadNet, **_: Any) -> None:
        """Look at the loss, and end training as skorch's own EarlyStopping does."""
        losses = row_losses(net.module_, net.criterion_.kind, self.rule.rows)
        if self.rule.add(losses) and self.rule.target_loss is None:
            self.best = copy.deepcopy(net.module_.state_dict())
        net.history.record("valid_loss", self.rule.losses[-1])
        if self.rule.is_over:
            raise KeyboardInterrupt


class _EpochBar(Callback):
    """A progress bar over epochs."""

    def __init__(self, total: int, label: str) -> None:
        self.total, self.label = total, label

    def on_train_begin(self, net: Any, **_: Any) -> None:
        """Show the bar."""
        self.bar = tqdm(total=self.total, desc=self.label, unit="epoch", leave=False)

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        """Count an epoch and show its losses."""
        last = net.history[-1]
        shown = {name: last[name] for name in ("train_loss", "valid_loss") if name in last}
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update()

    def on_train_end(self, net: Any, **_: Any) -> None:
        """Close the bar."""
        self.bar.close()
        del self.bar  # it cannot be pickled


@torch.no_grad()
def row_losses(net: Callable[[Tensor], Tensor], kind: Kind, rows: Rows) -> Tensor:
    """Return the loss per row without dropout."""
    chunks = (rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK))
    return torch.cat([LOSSES[kind].per_row(net(chunk.X), chunk.target) for chunk in chunks])


def make_optimizer(
    weights: Iterable[Tensor], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return Adam in its fused form, which passes over the weights once."""
    return torch.optim.Adam(weights, lr=lr, weight_decay=weight_decay, fused=True)


def make_net(start: FusionNet, settings: Settings, callbacks: Sequence[Any] = ()) -> HeadNet:
    """Return a net with the weights of `start`, ready to be trained."""
    net = HeadNet(
        FusionNet,
        module__architecture=start.architecture,
        module__dtype=start.shift.dtype,
        criterion=WeightedLoss,
        criterion__kind=settings.kind,
        optimizer=make_optimizer,
        optimizer__weight_decay=settings.weight_decay,
        lr=settings.lr,
        max_epochs=settings.epochs,
        batch_size=settings.batch_size,
        iterator_train=TrainingBatches,
        iterator_train__seed=settings.seed,
        iterator_train__architecture=start.architecture,
        train_split=None,
        callbacks=[*callbacks, ("check_loss", _CheckLoss())],
        device=str(start.shift.device),
        verbose=0,
    )
    net.initialize()
    net.module_.load_state_dict(start.state_dict())
    return net


def copy_callbacks(
    callbacks: Sequence[Any], verbose: int, epochs: int, rule: StopRule | None
) -> list[Any]:
    """Return copies of the user's callbacks for one training, and the progress bar.

    Those that monitor a validation loss are left out where there is none.
    """
    copies = []
    for entry in callbacks:
        callback = entry[1] if isinstance(entry, tuple) else entry
        if rule is not None or not str(getattr(callback, "monitor", "")).startswith("valid"):
            copies.append(copy.deepcopy(entry))
    if verbose:
        is_search = rule is not None and rule.target_loss is None
        copies.append(("bar", _EpochBar(epochs, "find epochs" if is_search else "fit")))
    return copies


def train(
    start: FusionNet,
    rows: Rows,
    settings: Settings,
    rule: StopRule | None,
    callbacks: Sequence[Any],
) -> tuple[HeadNet, bool]:
    """Return a network trained from `start`, and whether Ctrl-C, or what looks like it, ended it.

    If its search for the number of epochs was interrupted, it has the weights of the best one.
    """
    # Before the user's callbacks, which may look at the loss that it records.
    stop = [] if rule is None else [(_STOP, _Stop(rule))]
    net = make_net(start, settings, [*stop, *callbacks])
    if settings.epochs:
        net.partial_fit(rows)
    # It holds the rows, which are no part of the net, and says nothing about a later partial_fit.
    net.callbacks = [entry for entry in net.callbacks if entry not in stop]
    net.callbacks_ = [entry for entry in net.callbacks_ if entry[0] != _STOP]
    has_stopped = rule is not None and rule.is_over
    # All epochs were run to their end, where skorch records the mean loss.
    is_complete = len(net.history) == settings.epochs and (
        not settings.epochs or "train_loss" in net.history[-1]
    )
    # An EarlyStopping of the user's has found that it is enough; it looks like Ctrl-C.
    is_enough = any(
        isinstance(callback, EarlyStopping) and callback.misses_ >= callback.patience
        for _, callback in net.callbacks_
    )
    was_interrupted = not (has_stopped or is_complete or is_enough)
    if was_interrupted and stop and stop[0][1].best is not None:
        net.module_.load_state_dict(stop[0][1].best)
    return net, was_interrupted
