"""Many faults, with a fixed seed: a few in the fast lane, all by `benchmarks/faults.py`."""

from __future__ import annotations

import os

import pytest
from _support import faults

NOTHING = {"wrong": 0, "raised": 0, "lost": 0}
slow = pytest.mark.slow
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def assert_nothing(found: dict) -> None:
    assert {name: found[name] for name in NOTHING} == NOTHING, found["messages"]


@pytest.mark.parametrize("n", [60, pytest.param(500, marks=slow)])
def test_flipped_bytes(tmp_path, n):
    found = faults.flips(str(tmp_path), n, seed=n)
    assert_nothing(found)
    assert found["unrepaired"] == 0 and found["warnings"] > n / 4


@forks
@pytest.mark.parametrize("n", [3, pytest.param(40, marks=slow)])
def test_killed_writers(tmp_path, n):
    found = faults.run("kills", str(tmp_path), n, n)
    assert_nothing(found)
    assert found["rows"] > n


@forks
@pytest.mark.parametrize(
    ("n_threads", "n_processes", "seconds"), [(3, 2, 0.5), pytest.param(8, 6, 4.0, marks=slow)]
)
def test_many_at_once(tmp_path, n_threads, n_processes, seconds):
    found = faults.run("crowd", str(tmp_path), n_threads, n_processes, seconds, 0)
    assert_nothing(found)
    most = faults.CROWD_LIMIT * (1 + (n_threads + n_processes) / 8)  # within one shard of each
    assert found["written"] > 100 and found["most_bytes"] <= most


@slow
def test_tidying_much(tmp_path):
    filled = faults.run("fill_small", str(tmp_path), 250)
    found = faults.run("tidy", str(tmp_path))
    assert found["peak_mb"] < 130 and found["damaged"] == 0
    assert found["files"] <= 12 and found["texts"] == filled["texts"]
