"""The callbacks that a user's estimator brings to the training of its network."""

from __future__ import annotations

import copy
from typing import Any

from skorch.callbacks import Callback
from tqdm.auto import tqdm

from .training import Job


class EpochBar(Callback):
    """A progress bar over epochs.

    Parameters
    ----------
    job : Job
        What is trained.
    """

    def __init__(self, job: Job) -> None:
        self.total = job.epochs
        self.label = (
            "fit" if job.progress is None or job.progress.level is not None else "find epochs"
        )

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


def own_callbacks(estimator: Any, job: Job) -> list[Any]:
    """Copy the user's callbacks for one training, and add the progress bar.

    Parameters
    ----------
    estimator : FusionMLPClassifier or FusionMLPRegressor
        ``callbacks`` and ``verbose`` are read.
    job : Job
        The training. Callbacks that monitor a validation loss run only where there is one.

    Returns
    -------
    list of skorch callbacks
        Copies.
    """
    callbacks = [
        copy.deepcopy(entry)
        for entry in estimator.callbacks or []
        if job.progress is not None or not _needs_validation(entry)
    ]
    return [*callbacks, ("bar", EpochBar(job))] if estimator.verbose else callbacks


def _needs_validation(entry: Any) -> bool:
    callback = entry[1] if isinstance(entry, tuple) else entry
    return str(getattr(callback, "monitor", "")).startswith("valid")
