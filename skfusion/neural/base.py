"""What the classifier and the regressor share: reading, training and predicting."""

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

from .._boundaries import SINGLE
from .._targets import Kind, Targets, require_y
from ..fusion.registry import OwnOperatorsMixin, find_operator, uses_own_operators
from ..linear.scaling import fit_scaler
from .data import (
    CHUNK,
    Rows,
    balance,
    merge_rows,
    mix_groups,
    read_present_blocks,
    to_dtype,
)
from .modules import Architecture, FusionNet
from .solvers import Solution, Training
from .training import HeadNet


class BaseFusionMLP(OwnOperatorsMixin, BaseEstimator, metaclass=ABCMeta):
    """A network over embedding blocks; see the two estimators."""

    _parameter_constraints: dict[str, Any] = {
        "operator": [str],
        "residual": [StrOptions({"concat", "add"}), "boolean"],
        "layer": [StrOptions({"mix"}), None],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "hidden_layer_sizes": ["array-like"],
        "dropout": ["array-like", Interval(Real, 0, 1, closed="left"), None],
        "solver": [StrOptions({"auto", "paper"})],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_epochs": [Interval(Integral, 0, None, closed="left"), None],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "early_stopping": [StrOptions({"auto"}), "boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "scale": [StrOptions({"standard", "l2"}), None],
        "block_sizes": ["array-like", Mapping, StrOptions({SINGLE}), None],
        "block_dropout": [Interval(Real, 0, 1, closed="left")],
        "device": [str, torch.device, None],
        "dtype": [StrOptions({"float32", "float64"})],
        "callbacks": [list, None],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    net_: HeadNet
    n_iter_: int

    @abstractmethod
    def __init__(
        self,
        operator: str,
        residual: bool | str,
        layer: str | None,
        n_components: int,
        hidden_layer_sizes: Sequence[int],
        dropout: Sequence[float] | float | None,
        solver: str,
        lr: float,
        batch_size: int,
        max_epochs: int | None,
        weight_decay: float,
        early_stopping: bool | str,
        validation_fraction: float,
        scale: str | None,
        block_sizes: Sequence[int] | Mapping[str, int] | str | None,
        block_dropout: float,
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
        self.block_sizes = block_sizes
        self.block_dropout = block_dropout
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    # --- what the two estimators add -----------------------------------------------------------

    @abstractmethod
    def _read_targets(self, y: Any, *, reset: bool) -> Targets:
        """Check y and, with `reset`, set what `fit` learns of it."""

    def _class_factors(
        self, targets: Targets, y: Any, counts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return what the weight of each row is multiplied by for its class."""
        return np.ones(len(counts))

    def _even_out(
        self, targets: Targets, counts: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Return the factors of the rows' weights by which "auto" makes classes less unequal."""
        return None

    @abstractmethod
    def _transform_targets(
        self, matrix: NDArray[np.float64], weights: NDArray[np.float64], *, reset: bool
    ) -> NDArray[np.float64]:
        """Return what the network is to predict; with `reset`, learn how from these rows."""

    # --- training ------------------------------------------------------------------------------

    @property
    def loss_curve_(self) -> list[float]:
        """Return the mean training loss of each epoch."""
        return [epoch["train_loss"] for epoch in self.net_.history if "train_loss" in epoch]

    @uses_own_operators
    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        known = self.net_.module_ if self.warm_start and hasattr(self, "net_") else None
        training = self._prepare(X, y, sample_weight, known, merge=self.solver == "auto")
        self._keep(training.solve(), training.rows)

    @uses_own_operators
    def _partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        if not hasattr(self, "net_"):
            training = self._prepare(X, y, sample_weight, None, merge=False)
            rows, seed = training.rows, training.seed
            self._keep(Solution(training.untrained()), rows)
        else:
            rows, _ = self._read_rows(X, y, sample_weight, reset=False, merge=False)
            seed = self._draw_seed()
        self.net_.iterator_train__seed = seed + self.n_iter_
        self.net_.partial_fit(rows, epochs=1)
        self.n_iter_ = len(self.net_.history)

    def _prepare(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        known: FusionNet | None,
        *,
        merge: bool,
    ) -> Training:
        """Read the training rows and set all fitted attributes but those of the network."""
        rows, kind = self._read_rows(X, y, sample_weight, reset=known is None, merge=merge)
        architecture = self._architecture(rows.target.shape[1])
        if known is not None and architecture != known.architecture:
            raise ValueError(
                f"warm_start=True goes on with the network of the last fit, but its shape would "
                f"change from {known.architecture} to {architecture}. Use warm_start=False."
            )
        return Training(
            architecture=architecture,
            kind=kind,
            rows=rows,
            seed=self._draw_seed(),
            start=None if known is None else known.state_dict(),
            solver=self.solver,
            lr=self.lr,
            weight_decay=self.weight_decay,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            early_stopping=self.early_stopping,
            validation_fraction=self.validation_fraction,
            callbacks=self.callbacks or [],
            verbose=self.verbose,
        )

    def _read_rows(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        *,
        reset: bool,
        merge: bool,
    ) -> tuple[Rows, Kind]:
        """Return the training rows, scaled and on the device, and the kind of their targets."""
        require_y(y, self)
        blocks = read_present_blocks(self, X, reset=reset)
        targets = self._read_targets(y, reset=reset)
        check_consistent_length(next(iter(blocks.values())), targets.matrix)
        counts = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        factors = self._class_factors(targets, y, counts)
        counts = np.where(factors > 0, counts, 0.0)
        chosen = np.flatnonzero(counts)
        if not len(chosen):
            raise ValueError("All rows have weight 0. Give some of them a sample_weight above 0.")
        blocks = {name: to_dtype(block[chosen], self.dtype) for name, block in blocks.items()}
        targets, counts, factors = targets.take(chosen), counts[chosen], factors[chosen]
        if merge:
            kept, counts = merge_rows([*blocks.values(), targets.matrix], counts)
            blocks = {name: block[kept] for name, block in blocks.items()}
            targets, factors = targets.take(kept), factors[kept]
        weights = counts * factors
        evened = self._even_out(targets, counts) if merge else None
        if reset:
            how = self.scale if self.solver == "auto" else None
            self.scalers_ = {
                name: fit_scaler(block, how, weights) for name, block in blocks.items()
            }
        if not isinstance(getattr(self, "class_weight", None), Mapping):
            # In the loss that says when to stop classes count the same, unless a dict says more.
            factors = np.ones(len(factors))
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if evened is None:
            trained_on, balanced = weights, balance(counts, targets.codes, factors)
        else:
            trained_on = weights * evened
            balanced = trained_on / trained_on.sum()
        scaled, target, shares, balanced_shares, factor = (
            torch.from_numpy(array.astype(self.dtype, copy=False)).to(device)
            for array in (
                self._scale(blocks, self.dtype),
                self._transform_targets(targets.matrix, weights, reset=reset),
                trained_on / trained_on.mean(),
                balanced,
                np.ones(len(counts)) if evened is None else evened,
            )
        )
        codes = torch.from_numpy(targets.codes).to(device)
        return Rows(scaled, target, shares, balanced_shares, codes, factor), targets.kind

    def _scale(self, blocks: Mapping[str, NDArray[Any]], dtype: str) -> NDArray[Any]:
        """Return scaled blocks side by side; a missing one is zeros, its mean in training."""
        n_rows = len(next(iter(blocks.values())))
        joined = np.zeros((n_rows, self.n_features_in_), dtype=dtype)
        for name, block in blocks.items():
            joined[:, self.block_indices_[name]] = self.scalers_[name](block)
        return joined

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
            block_dropout=float(self.block_dropout),
            groups=tuple(map(tuple, groups)),
            has_linear=self.solver == "auto",
        )

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 16))

    def _keep(self, solution: Solution, rows: Rows) -> None:
        self.net_ = net = solution.net
        self.n_iter_ = len(net.history)
        self.validation_losses_ = solution.losses
        self.search_history_ = solution.search
        self.linear_only_ = solution.is_linear_only
        self.gain_ = solution.gain
        if self.operator == "gated":
            with torch.no_grad():
                gates = net.module_.gates_of(rows.X)
            self.gates_ = (rows.weights @ gates / len(gates)).cpu().numpy()

    # --- predicting ----------------------------------------------------------------------------

    @uses_own_operators
    def _outputs(self, X: ArrayLike, function: Any = FusionNet.forward) -> NDArray[np.float64]:
        """Return a function of the network, its logits by default, in double precision."""
        check_is_fitted(self)
        blocks = read_present_blocks(self, X, reset=False)
        net, dtype = self.net_.module_, self.dtype
        device = net.shift.device
        if device.type == "cpu":
            # A row's outputs then do not depend on the rows beside it, up to double precision.
            net, dtype = copy.deepcopy(net).double(), "float64"
        scaled = torch.from_numpy(self._scale(blocks, dtype))
        present, names = None, list(self.block_indices_)
        if len(blocks) < len(names):
            groups = net.architecture.groups
            kept = [any(names[i] in blocks for i in group) for group in groups]
            present = torch.tensor(kept).to(net.shift)
        with torch.no_grad():
            chunks = torch.split(scaled, CHUNK)
            parts = [function(net, chunk.to(device), present=present).cpu() for chunk in chunks]
        outputs: NDArray[Any] = torch.cat(parts).double().numpy()
        return outputs

    def compute_gates(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the weights that ``operator="gated"`` puts on the blocks of each row.

        Parameters
        ----------
        X : EmbeddingBlocks, data frame or array-like of shape (n_samples, n_features)
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_blocks)
            Weights of the blocks; they add up to 1 per row.

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
        return self._outputs(X, FusionNet.gates_of)


def _dropouts(
    dropout: Sequence[float] | float | None, sizes: tuple[int, ...]
) -> tuple[float, ...]:
    """Return the dropout behind each hidden layer."""
    if dropout is None:
        rates = tuple(0.3 if i else 0.5 for i in range(len(sizes)))
    elif np.ndim(dropout) == 0:
        rates = (float(np.asarray(dropout)),) * len(sizes)
    else:
        rates = tuple(float(p) for p in np.asarray(dropout))
    if len(rates) != len(sizes) or not all(0 <= p < 1 for p in rates):
        raise ValueError(
            f"dropout={dropout!r} must be a number from 0 to below 1, or one such number for each "
            f"of the {len(sizes)} hidden layers of hidden_layer_sizes={sizes}, or None."
        )
    if not all(n >= 1 for n in sizes):
        raise ValueError(f"hidden_layer_sizes={sizes} must be widths of at least 1.")
    return rates
