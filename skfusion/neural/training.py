"""Training a network through skorch: batches, callbacks, when to stop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags, gen_batches
from skorch import NeuralNet
from skorch.callbacks import BatchScoring, Callback, EarlyStopping, EpochScoring
from skorch.dataset import Dataset as SkorchDataset
from skorch.helper import predefined_split
from skorch.history import History
from torch import Tensor, nn
from tqdm.auto import tqdm

from .._targets import NUMBERS, Kind
from .data import CHUNK, Rows
from .modules import LOSSES, Architecture, FusionNet, draw_dropout, draw_present

_STOP, _END = "stop_rule", "end_of_epoch"


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

    patience: int  # epochs without a new least loss
    target_loss: float | None = None  # of the training rows; None where rows are held out
    first: float = math.inf  # the loss before the first epoch, where it counts
    losses: list[float] = field(default_factory=list)
    #: Of each held-out row, before the first epoch and after each; where that is asked for.
    per_row: list[Tensor] = field(default_factory=list)

    def add(self, loss: float) -> bool:
        """Note the loss after an epoch; return whether it is the least yet."""
        self.losses.append(loss)
        return self.best_epoch == len(self.losses)

    @property
    def best_epoch(self) -> int:
        """Return the number of epochs with the least loss; 0 before the first."""
        if not self.losses or self.first <= min(self.losses):
            return 0
        return self.losses.index(min(self.losses)) + 1

    @property
    def is_over(self) -> bool:
        """Whether it is time to stop."""
        if not self.losses:
            return False
        is_reached = self.target_loss is not None and self.losses[-1] <= self.target_loss
        return is_reached or len(self.losses) - self.best_epoch >= self.patience


class HeadData(SkorchDataset):
    """Rows as skorch and its callbacks see them: X, and y as `HeadNet.predict` returns it."""

    def __init__(self, rows: Rows, kind: Kind) -> None:
        super().__init__(rows.X, LOSSES[kind].decide(rows.target))
        self.rows = rows


Batch = tuple[dict[str, Any], Tensor | None]


class TrainingBatches:
    """Batches in a new order in each epoch; the loss finds targets and weights beside X."""

    def __init__(
        self, data: HeadData, batch_size: int, seed: int, architecture: Architecture
    ) -> None:
        self.data, self.batch_size, self.architecture = data, batch_size, architecture
        self.generator = torch.Generator(data.rows.X.device).manual_seed(seed)

    def __iter__(self) -> Iterator[Batch]:
        a, rows = self.architecture, self.data.rows
        draw = (self.generator, rows.X.dtype)
        order = torch.randperm(len(rows), generator=self.generator, device=self.generator.device)
        for index in torch.split(order, self.batch_size):
            batch = rows[index]
            X: dict[str, Any] = {"X": batch.X, "target": batch.target, "weights": batch.weights}
            if a.block_dropout:
                X["present"] = draw_present(len(index), len(a.groups), a.block_dropout, *draw)
            X["dropout"] = [
                draw_dropout(len(index), width, p, *draw)
                for width, p in zip(a.hidden_layer_sizes, a.dropout, strict=True)
            ]
            yield X, self.data.y[index]


class ValidationBatches:
    """Batches in order, without dropout; rows weigh ``rows.balanced``, which is made of mean 1."""

    def __init__(self, data: SkorchDataset, batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size

    def __iter__(self) -> Iterator[Batch]:
        data, rows = self.data, getattr(self.data, "rows", None)
        for cut in gen_batches(len(data), self.batch_size):
            X = {"X": data.X[cut]}
            if rows is not None:
                X |= {"target": rows.target[cut], "weights": rows.balanced[cut] * len(rows)}
            yield X, None if data.y is None else data.y[cut]


class WeightedLoss(nn.Module):
    """The mean of weight times loss over the rows of a batch."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, logits: Tensor, target: Tensor, weights: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return (weights * LOSSES[self.kind].per_row(logits, target)).mean()


class HeadNet(NeuralNet):
    """A skorch net over a `FusionNet`, whose loss knows weights.

    Its classes are 0, 1, ..., the positions of the outputs, and its numbers are the targets of
    the network.
    """

    @property
    def classes_(self) -> NDArray[np.intp]:
        """Return the classes or labels, which scorers ask for."""
        return np.arange(self.module__architecture.n_outputs)

    def get_dataset(self, X: Any, y: Any = None) -> Any:
        """Return rows, or any input of skorch's, as a data set."""
        is_rows = isinstance(X, Rows)
        return HeadData(X, self.criterion__kind) if is_rows else super().get_dataset(X, y)

    def infer(self, x: Any, **fit_params: Any) -> Tensor:
        """Return the logits of a batch."""
        if isinstance(x, Mapping):
            x = {name: value for name, value in x.items() if name not in ("target", "weights")}
        logits: Tensor = super().infer(x, **fit_params)
        return logits

    def get_loss(
        self, y_pred: Tensor, y_true: Any, X: Any = None, training: bool = False
    ) -> Tensor:
        """Return the loss of a batch."""
        loss: Tensor = self.criterion_(y_pred, X["target"], X["weights"])
        return loss

    def predict(self, X: Any) -> NDArray[Any]:
        """Return classes, labels or numbers of scaled rows."""
        predicted: NDArray[Any] = LOSSES[self.criterion__kind].decide(self.predict_proba(X))
        return predicted

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy or R², as scikit-learn's estimators do."""
        score = r2_score if self.criterion__kind in NUMBERS else accuracy_score
        return float(score(y, self.predict(X)))

    def _get_predict_nonlinearity(self) -> Callable[[Tensor], Tensor]:
        return LOSSES[self.criterion__kind].expected

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        is_regressor = self.criterion__kind in NUMBERS
        tags.estimator_type = "regressor" if is_regressor else "classifier"
        return tags

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
    if a.has_linear:
        wanted["linear"] = (a.n_outputs, sum(a.widths))
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
    """Notes losses for a `StopRule`, before other callbacks, and keeps the best held-out one's."""

    def __init__(self, rule: StopRule, validation: Rows | None) -> None:
        self.rule, self.validation = rule, validation
        self.best: dict[str, Tensor] | None = None

    def on_train_begin(self, net: HeadNet, **_: Any) -> None:
        """Keep the weights at the start, if they count."""
        if self.rule.per_row:
            self.best = copy.deepcopy(net.module_.state_dict())

    def on_epoch_end(self, net: HeadNet, **_: Any) -> None:
        """Note the loss."""
        if self.rule.per_row and self.validation is not None:
            kind = net.criterion__kind
            self.rule.per_row.append(row_losses(net.module_, self.validation, kind))
        if self.rule.add(net.history[-1, "valid_loss"]) and self.rule.target_loss is None:
            self.best = copy.deepcopy(net.module_.state_dict())


class _End(Callback):
    """Counts epochs, after all other callbacks, and ends training by a `StopRule`."""

    def __init__(self, rule: StopRule | None) -> None:
        self.rule, self.n_epochs = rule, 0

    def on_epoch_end(self, net: HeadNet, **_: Any) -> None:
        """End training as skorch's own EarlyStopping does."""
        self.n_epochs += 1
        if self.rule is not None and self.rule.is_over:
            raise KeyboardInterrupt


@torch.no_grad()
def row_losses(module: FusionNet, rows: Rows, kind: Kind) -> Tensor:
    """Return the loss of each row."""
    logits = torch.cat([module(chunk) for chunk in torch.split(rows.X, CHUNK)])
    return LOSSES[kind].per_row(logits, rows.target)


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
        iterator_valid=ValidationBatches,
        iterator_valid__batch_size=CHUNK,
        train_split=None,
        callbacks=[*callbacks, ("check_loss", _CheckLoss())],
        device=str(start.shift.device),
        verbose=0,
    )
    net.initialize()
    net.module_.load_state_dict(start.state_dict())
    return net


def copy_callbacks(
    callbacks: Sequence[Any], verbose: int, epochs: int, rule: StopRule | None, *, again: bool
) -> list[Any]:
    """Return copies of the user's callbacks for one training, and the progress bar.

    Those that monitor a validation loss or score are left out where there is none, and those that
    monitor by a function, of which this cannot be known, when they have run in the search for
    the number of epochs and the network is trained `again`.
    """
    copies = [_copy(entry) for entry in callbacks]
    if rule is None:
        missing = _validation_scores(copies)
        for entry in list(copies):
            monitor = getattr(_callback(entry), "monitor", None)
            name = str(monitor).removesuffix("_best")
            if name.startswith("valid") or name in missing or (again and callable(monitor)):
                copies.remove(entry)
    if verbose:
        is_search = rule is not None and rule.target_loss is None
        copies.append(("bar", _EpochBar(epochs, "find epochs" if is_search else "fit")))
    return copies


def _callback(entry: Any) -> Any:
    return entry[1] if isinstance(entry, tuple | list) else entry


def _copy(entry: Any) -> Any:
    """Return a copy that shares the files that were opened for it to write to."""
    attributes = getattr(_callback(entry), "__dict__", {})
    files = [value for value in attributes.values() if hasattr(value, "write")]
    return copy.deepcopy(entry, {id(file): file for file in files})


def _validation_scores(callbacks: Sequence[Any]) -> set[str]:
    """Return the names of scores of validation rows, by which others may monitor them."""
    scorings = [s for s in map(_callback, callbacks) if isinstance(s, BatchScoring | EpochScoring)]
    return {copy.copy(s).initialize().name_ for s in scorings if not s.on_train}


def train(
    start: FusionNet,
    rows: Rows,
    settings: Settings,
    rule: StopRule | None,
    callbacks: Sequence[Any],
    validation: Rows | None = None,
    *,
    keeps_linear: bool = False,
) -> tuple[HeadNet, bool]:
    """Return a network trained from `start`, and whether Ctrl-C, or what looks like it, ended it.

    A rule goes by the loss on the `validation` rows, which scores of callbacks are of, too. If
    its search for the number of epochs was interrupted, the network has the best weights.
    `keeps_linear` leaves the linear part as it is.
    """
    stop = None if rule is None else _Stop(rule, validation)
    end = _End(rule)
    first = [] if stop is None else [(_STOP, stop)]
    net = make_net(start, settings, [*first, *callbacks, (_END, end)])
    if validation is not None:
        net.train_split = predefined_split(HeadData(validation, settings.kind))
    linear = net.module_.linear
    if settings.epochs:
        if linear is not None:
            linear.requires_grad_(not keeps_linear)
        net.partial_fit(rows)
        if linear is not None:
            linear.requires_grad_(True)
    # They hold rows, which are no part of the net, and say nothing about a later partial_fit.
    net.train_split = None
    net.callbacks = [entry for entry in net.callbacks if _callback(entry) not in (stop, end)]
    net.callbacks_ = [entry for entry in net.callbacks_ if entry[1] not in (stop, end)]
    has_stopped = rule is not None and rule.is_over
    # An EarlyStopping of the user's has found that it is enough; it looks like Ctrl-C.
    is_enough = any(
        isinstance(callback, EarlyStopping) and callback.misses_ >= callback.patience
        for _, callback in net.callbacks_
    )
    was_interrupted = not (has_stopped or end.n_epochs == settings.epochs or is_enough)
    if was_interrupted and stop is not None and stop.best is not None:
        net.module_.load_state_dict(stop.best)
    return net, was_interrupted
