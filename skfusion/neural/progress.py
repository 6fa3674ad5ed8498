"""When training has come far enough."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from .rows import Rows


@dataclass
class Progress:
    """The loss on some rows without dropout, epoch by epoch, and when it is time to stop.

    Parameters
    ----------
    rows : Rows
        Held-out rows, or the training rows themselves. Their loss is the one with the weights
        ``rows.balanced``.
    patience : int
        Epochs without a new least loss after which to stop.
    level : float or None, default=None
        The loss of the training rows at which to stop; None where `rows` are held out.
    losses : list of float
        Loss after each epoch.
    """

    rows: Rows
    patience: int
    level: float | None = None
    losses: list[float] = field(default_factory=list)

    def add(self, row_losses: Tensor) -> bool:
        """Note the losses of the rows after an epoch, and tell whether they are the least yet."""
        self.losses.append(float(self.rows.balanced @ row_losses))
        return self.best_epoch == len(self.losses)

    @property
    def best_epoch(self) -> int:
        """The number of epochs with the least loss; 0 before the first."""
        return self.losses.index(min(self.losses)) + 1 if self.losses else 0

    @property
    def is_over(self) -> bool:
        """Whether it is time to stop."""
        if not self.losses:
            return False
        is_reached = self.level is not None and self.losses[-1] <= self.level
        return is_reached or len(self.losses) - self.best_epoch >= self.patience
