"""What the classifier and the regressor share: reading, training and asking the network."""

from __future__ import annotations

import copy
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
)

from ..fusion.registry import OwnOperatorsMixin, find_operator
from ..linear.scaling import fit_scaler
from .callbacks import own_callbacks
from .inputs import Blocks, mix_groups, read_input, scale
from .modules import Architecture, FusionNet
from .rows import Rows, balance, merge_rows
from .solvers import Recipe, Task, solve
from .targets import Targets
from .training import CHUNK, HeadNet, Job, Trained, make_net, train_one


class BaseFusionMLP(OwnOperatorsMixin, BaseEstimator, metaclass=ABCMeta):
    """Blocks in, a trained network, its outputs out; see the two estimators."""

    _parameter_constraints: dict[str, Any] = {
        "operator": [str],
        "residual": [StrOptions({"concat", "add"}), "boolean"],
        "layer": [StrOptions({"mix"}), None],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "hidden_layer_sizes": ["array-like"],
        "dropout": ["array-like", Interval(Real, 0, 1, closed="left")],
        "solver": [StrOptions({"auto", "paper"})],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_epochs": [Interval(Integral, 0, None, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "early_stopping": [StrOptions({"auto"}), "boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "scale": [StrOptions({"standard", "l2"}), None],
        "view_dropout": [Interval(Real, 0, 1, closed="left")],
        "device": [str, torch.device, None],
        "dtype": [StrOptions({"float32", "float64"})],
        "callbacks": [list, None],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    @abstractmethod
    def __init__(
        self,
        operator: str,
        residual: bool | str,
        layer: str | None,
        n_components: int,
        hidden_layer_sizes: Sequence[int],
        dropout: Sequence[float] | float,
        solver: str,
        lr: float,
        batch_size: int,
        max_epochs: int,
        weight_decay: float,
        early_stopping: bool | str,
        validation_fraction: float,
        scale: str | None,
        view_dropout: float,
        device: str | torch.device | None,
        dtype: str,
        callbacks: list[Any] | None,
        warm_start: bool,
        random_state: int | np.random.RandomState | None,
        verbose: int,
    ) -> None:
        self.operator = operator
        self.residual = residual
        self.layer = layer
        self.n_components = n_components
        self.hidden_layer_sizes = hidden_layer_sizes
        self.dropout = dropout
        self.solver = solver
        self.lr = lr
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.scale = scale
        self.view_dropout = view_dropout
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    # --- what a kind of target adds ------------------------------------------------------------

    @abstractmethod
    def _read_targets(self, y: Any, *, reset: bool) -> Targets:
        """Check y and, with `reset`, set what `fit` learns of it."""

    def _class_factors(
        self, targets: Targets, y: Any, counts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Give what the weight of each row is multiplied by for its class."""
        return np.ones(len(counts))

    @abstractmethod
    def _settle(
        self, matrix: NDArray[np.float64], weights: NDArray[np.float64], *, reset: bool
    ) -> NDArray[np.float64]:
        """Turn targets of the rows that are trained on into what the network is to give."""

    # --- training ------------------------------------------------------------------------------

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        def train(jobs: Sequence[Job]) -> list[Trained]:
            return [train_one(job, own_callbacks(self, job)) for job in jobs]

        task = self._make_task(X, y, sample_weight)
        self._keep(task, solve([task], train)[0])

    def _make_task(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> Task:
        """Read what `fit` was given and set all fitted attributes but those of the network."""
        going_on = self.warm_start and hasattr(self, "net_")
        rows, kind = self._read_rows(X, y, sample_weight, reset=not going_on)
        architecture = self._architecture(rows.target.shape[1])
        start = None
        if going_on:
            known = self.net_.module_.architecture
            if architecture != known:
                raise ValueError(
                    f"warm_start=True goes on with the network of the last fit, but its shape "
                    f"would change from {known} to {architecture}. Use warm_start=False."
                )
            start = self.net_.module_.state_dict()
        return Task(architecture, kind, rows, self._recipe(), self._draw_seed(), start)

    def _read_rows(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        *,
        reset: bool,
        merge: bool = True,
    ) -> tuple[Rows, str]:
        """Read training rows, scaled, and the kind of their targets."""
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                f"is None."
            )
        blocks = read_input(self, X, reset=reset)
        targets = self._read_targets(y, reset=reset)
        check_consistent_length(next(iter(blocks.arrays.values())), targets.matrix)
        counts = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        factors = self._class_factors(targets, y, counts)
        counts = np.where(factors > 0, counts, 0.0)
        chosen = np.flatnonzero(counts)
        if merge and self.solver == "auto":
            chosen, counts = merge_rows([*blocks.arrays.values(), targets.matrix], counts)
        else:
            counts = counts[chosen]
        if not len(chosen):
            raise ValueError("All rows have weight 0. Give some of them a sample_weight above 0.")
        blocks = Blocks({name: block[chosen] for name, block in blocks.arrays.items()})
        targets = Targets(targets.kind, targets.matrix[chosen], targets.codes[chosen])
        return self._to_rows(blocks, targets, counts, factors[chosen], reset=reset), targets.kind

    def _to_rows(
        self,
        blocks: Blocks,
        targets: Targets,
        counts: NDArray[np.float64],
        factors: NDArray[np.float64],
        *,
        reset: bool,
    ) -> Rows:
        """Scale the rows that are trained on and move them to the device."""
        weights = counts * factors
        if reset:
            how = self.scale if self.solver == "auto" else None
            self.scalers_ = {
                name: fit_scaler(block, how, weights) for name, block in blocks.arrays.items()
            }
        # Classes count the same where the user has not said otherwise.
        has_said = isinstance(getattr(self, "class_weight", None), Mapping)
        asked = factors if has_said else np.ones(len(factors))
        X, target, row_weights, balanced = (
            self._to_tensor(array.astype(self.dtype, copy=False))
            for array in (
                scale(blocks, self.scalers_, self.block_indices_, self.dtype),
                self._settle(targets.matrix, weights, reset=reset),
                weights / weights.mean(),
                balance(counts, targets.codes, asked),
            )
        )
        return Rows(X, target, row_weights, balanced, self._to_tensor(targets.codes))

    def _to_tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device or _best_device())

    def _architecture(self, n_outputs: int) -> Architecture:
        widths = [cut.stop - cut.start for cut in self.block_indices_.values()]
        groups = mix_groups(list(self.block_indices_), widths, self.layer)
        if self.residual is True:
            raise ValueError("residual=True is not known. Use 'concat', 'add' or False.")
        if self.operator == "weighted":
            raise ValueError(
                "operator='weighted' is chosen in closed form, by FusionTransformer. In the "
                "network operator='gated' adapts to the data."
            )
        if self.operator != "gated":
            operator = find_operator(self.operator)
            if self.operator != "concat":
                operator.width.check(self.n_components, self.operator)
            operator([np.ones((1, self.n_components))] * len(groups))
        sizes = tuple(int(n) for n in self.hidden_layer_sizes)
        return Architecture(
            widths=tuple(widths),
            n_outputs=n_outputs,
            operator=self.operator,
            residual=False if self.operator == "concat" else self.residual,
            n_components=self.n_components,
            hidden_layer_sizes=sizes,
            dropout=_dropouts(self.dropout, sizes),
            view_dropout=float(self.view_dropout),
            groups=tuple(map(tuple, groups)),
        )

    def _recipe(self) -> Recipe:
        return Recipe(
            solver=self.solver,
            lr=self.lr,
            weight_decay=self.weight_decay,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            early_stopping=self.early_stopping,
            validation_fraction=self.validation_fraction,
        )

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 16))

    def _keep(self, task: Task, trained: Trained) -> None:
        self.net_: HeadNet = trained.net
        self.n_epochs_ = len(trained.net.history)
        self.stopping_losses_ = trained.progress.losses if trained.progress else []
        if self.operator == "gated":
            with torch.no_grad():
                gates = trained.net.module_.gates_of(task.rows.X)
            self.gates_ = (task.rows.weights @ gates / len(gates)).cpu().numpy()

    def _partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        first = not hasattr(self, "net_")
        rows, kind = self._read_rows(X, y, sample_weight, reset=first, merge=False)
        seed = self._draw_seed()
        if first:
            task = Task(self._architecture(rows.target.shape[1]), kind, rows, self._recipe(), seed)
            job = task.job(task.start_net(), rows, purpose=0)
            net = make_net(job, own_callbacks(self, job))
            self._keep(task, Trained(net, None))
        self.net_.iterator_train__seed = seed + self.n_epochs_
        self.net_.partial_fit(rows, epochs=1)
        self.n_epochs_ = len(self.net_.history)

    # --- asking the network --------------------------------------------------------------------

    def _outputs(self, X: ArrayLike) -> NDArray[np.float64]:
        """Give the network's outputs (n_samples, n_outputs) in double precision."""
        return self._ask(X, FusionNet.forward)

    def _ask(self, X: ArrayLike, function: Any) -> NDArray[Any]:
        check_is_fitted(self)
        blocks = read_input(self, X, reset=False)
        net, dtype = self.net_.module_, self.dtype
        if net.shift.device.type == "cpu":
            # A row's outputs then do not depend on the rows beside it, up to double precision.
            net, dtype = copy.deepcopy(net).double(), "float64"
        scaled = torch.from_numpy(scale(blocks, self.scalers_, self.block_indices_, dtype))
        present = self._present(blocks, net)
        with torch.no_grad():
            parts = [
                function(net, chunk.to(net.shift.device), present=present).cpu()
                for chunk in torch.split(scaled, CHUNK)
            ]
        outputs: NDArray[Any] = torch.cat(parts).double().numpy()
        return outputs

    def _present(self, blocks: Blocks, net: FusionNet) -> torch.Tensor | None:
        names = list(self.block_indices_)
        if len(blocks.arrays) == len(names):
            return None
        return torch.tensor(
            [any(names[i] in blocks.arrays for i in group) for group in net.architecture.groups]
        ).to(net.shift)

    def compute_gates(self, X: ArrayLike) -> NDArray[np.float64]:
        """Give the weights that ``operator="gated"`` puts on the blocks of each row.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_blocks)
            Weights of the blocks; they add up to 1 in each row.

        Raises
        ------
        AttributeError
            If the operator has no gates.
        """
        check_is_fitted(self)
        if self.net_.module_.gate is None:
            raise AttributeError(
                f"operator={self.net_.module_.architecture.operator!r} has no gates. Use "
                f"operator='gated'."
            )
        return self._ask(X, FusionNet.gates_of)


def _dropouts(dropout: Sequence[float] | float, sizes: tuple[int, ...]) -> tuple[float, ...]:
    """Give the dropout behind each hidden layer."""
    rates = tuple(float(p) for p in np.atleast_1d(dropout))
    if np.ndim(dropout) == 0:
        rates *= len(sizes)
    if len(rates) != len(sizes) or not all(0 <= p < 1 for p in rates):
        raise ValueError(
            f"dropout={dropout!r} must be a number from 0 to below 1, or one such number for each "
            f"of the {len(sizes)} hidden layers of hidden_layer_sizes={sizes}."
        )
    if not all(n >= 1 for n in sizes):
        raise ValueError(f"hidden_layer_sizes={sizes} must be widths of at least 1.")
    return rates


def _best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
