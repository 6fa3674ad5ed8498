"""Fixtures shared by all tests: tiny models on disk, seeds, a private cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from _support import tiny
from _support.realdata import data_set
from hypothesis import settings
from threadpoolctl import ThreadpoolController
from transformers.utils import logging as transformers_logging

from skfusion import VectorStore
from skfusion.embed.loading import release
from skfusion.fusion.projection import _HEARD

# The tests' own save_pretrained calls print bars; skfusion must be silent by itself, which
# tests/embed/test_conventions.py checks in a process of its own.
transformers_logging.disable_progress_bar()

# .ci/run keeps both cores busy, and an example that had to wait is not a wrong one.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

#: The thread pools of torch, numpy and scipy, looked for once.
POOLS = ThreadpoolController()


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep digests and conversions of test models out of the user's cache folder."""
    before = os.environ.get("SKFUSION_CACHE")
    os.environ["SKFUSION_CACHE"] = str(tmp_path_factory.mktemp("skfusion-cache"))
    yield
    if before is None:
        del os.environ["SKFUSION_CACHE"]
    else:
        os.environ["SKFUSION_CACHE"] = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run most tests, with what sets them up, in one thread.

    Tiny models and networks lose more by threads that wait for each other than they gain, and so
    do real ones beside another busy process, such as the second lane of .ci/run.
    """
    if item.get_closest_marker("real") is not None and psutil.cpu_percent(interval=0.3) < 25:
        return (yield)
    with POOLS.limit(limits=1):
        return (yield)


@pytest.fixture(scope="session")
def real_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all tests of real models, so that each text is encoded once."""
    return tmp_path_factory.mktemp("real-store")


@pytest.fixture(scope="module")
def users_cache() -> Iterator[None]:
    """Fetched and converted models are kept in the user's cache folder, not in a private one."""
    private = os.environ.pop("SKFUSION_CACHE")
    yield
    os.environ["SKFUSION_CACHE"] = private
    release()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a tiny model's folder, written once per session: ``folder("bert", side="left")``."""
    made: dict[Any, Path] = {}

    def make(kind: str = "llama", **options: Any) -> str:
        key = (kind, *sorted(options.items(), key=str))
        if key not in made:
            made[key] = tiny.save_folder(tmp_path_factory.mktemp(kind), kind, **options)
        return str(made[key])

    return make


@pytest.fixture(scope="session")
def rotten_tomatoes() -> tuple[Any, Any]:
    """1,066 training and all test rows of rotten_tomatoes."""
    import pandas as pd

    folder = data_set("rotten_tomatoes")
    train, test = (
        pd.read_csv(folder / f"{name}.csv.gz", keep_default_na=False) for name in ("train", "test")
    )
    return train.sample(1066, random_state=0), test.sample(1066, random_state=0)


@pytest.fixture(autouse=True)
def empty_session_store() -> None:
    """Tiny models are alike in many tests, and the session's store would know their texts.

    A warning that is said once per process is said once per test.
    """
    VectorStore().clear()
    _HEARD.clear()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def texts() -> list[str]:
    """Fourteen different texts of one to eleven words, one of them empty."""
    return tiny.tiny_texts(14)
