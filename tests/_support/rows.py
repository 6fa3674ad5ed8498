"""Labelled rows for the heads."""

from __future__ import annotations

from typing import Any

import numpy as np


def three_classes(n: int = 60, width: int = 6, seed: int = 0) -> tuple[Any, Any]:
    """Normal rows, and which of their first three columns is the largest, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, width))
    return X, np.argmax(X[:, :3] + 0.5 * rng.normal(size=(n, 3)), axis=1)
