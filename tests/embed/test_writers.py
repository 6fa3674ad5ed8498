"""Many processes on one store, one of them killed, some of its files damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from _support import tiny
from _support.processes import PYTHONPATH
from _support.tiny import tiny_texts

from skfusion import LLMLayerEmbedder, StoreWarning
from skfusion.embed.shards import SUFFIX

CODE = """
import sys, numpy as np
import skfusion.embed.store as writer
from _support.tiny import tiny_texts
from skfusion import LLMLayerEmbedder
writer._FLUSH_BYTES = 40_000      # many shards
model, memory, out, seed = sys.argv[1:]
texts = tiny_texts(400)
order = np.random.default_rng(int(seed)).permutation(len(texts))
embedder = LLMLayerEmbedder(model, memory=memory, batch_tokens=60).fit(texts)
print("ready", flush=True)
X = embedder.transform([texts[i] for i in order])
back = np.empty_like(X)
back[order] = X
np.save(out, back)
"""


@pytest.mark.slow
@pytest.mark.parametrize("n_writers", [8])
def test_writers_on_one_cold_store(tmp_path, n_writers):
    model, memory = str(tiny.save_folder(tmp_path / "model")), tmp_path / "store"
    texts = tiny_texts(400)
    expected = LLMLayerEmbedder(model).fit_transform(texts)
    env = {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error",
    }
    outs = [tmp_path / f"{i}.npy" for i in range(n_writers)]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, model, str(memory), str(out), str(i)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, out in enumerate(outs)
    ]
    assert writers[0].stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while not list(memory.rglob(f"*{SUFFIX}")) and time.monotonic() < deadline:
        time.sleep(0.01)
    writers[0].send_signal(signal.SIGKILL)
    for writer, out in list(zip(writers, outs, strict=True))[1:]:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
        np.testing.assert_allclose(np.load(out), expected, atol=2e-3)
    writers[0].communicate()
    _damage_and_read_on(model, memory, texts, expected)


def _damage_and_read_on(model, memory, texts, expected):
    files = sorted(memory.rglob(f"*{SUFFIX}"), key=lambda path: path.stat().st_size)
    files[-1].write_bytes(files[-1].read_bytes()[: files[-1].stat().st_size // 2])
    raw = bytearray(files[0].read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 64] = os.urandom(64)
    files[0].write_bytes(raw)
    for attempt in range(2):
        embedder = LLMLayerEmbedder(model, memory=memory, pooling=["mean", "last"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            X = embedder.fit_transform(texts)
        assert [w.category for w in caught] in ([[StoreWarning], []][attempt:])
        np.testing.assert_allclose(X[:, : tiny.WIDTH], expected, atol=2e-3)
    # A damaged shard that nobody had to read stays as it is; the others are whole.
    assert set(embedder.store_.verify()["damaged"]) <= {str(files[0]), str(files[-1])}


def test_a_full_disk(tmp_path):
    """On a real small file system where one may be mounted; test_store.py has the stub."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here (needs root)")
    try:
        texts = tiny_texts(100)
        model = str(tiny.save_folder(tmp_path / "model"))
        embedder = LLMLayerEmbedder(model, memory=disk).fit(texts)
        with pytest.warns(StoreWarning, match="cannot be stored") as caught:
            X = embedder.transform(texts)
        assert len(caught) == 1
        np.testing.assert_array_equal(X, LLMLayerEmbedder(model).fit_transform(texts))
        assert not list(disk.rglob("*.tmp"))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.warns(StoreWarning, match="cannot be stored") as caught:
            embedder.transform(texts)
        assert len(caught) == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)
