"""What goes wrong with a store, many times over: for tests/faults and benchmarks/faults.py.

Each campaign returns counts. "wrong": a vector that is not the one that was stored. "raised": an
exception or an unexpected warning. "lost": a row that was published and is not found again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from skfusion import VectorStore
from skfusion.embed import shards
from skfusion.embed.store import Writer

from .processes import run_python
from .stores import COLUMNS, ONE, columns_of, keys_of, read, shard_files, values


def run(campaign: str, *args: Any) -> dict[str, Any]:
    """Run a campaign in a new process, from which others are forked before it has threads."""
    call = f"faults.{campaign}(*{args!r})"
    out = run_python(
        f"import json; from _support import faults; print(json.dumps({call}))", OMP_NUM_THREADS="1"
    )
    return json.loads(out)


# --- flipped bytes ------------------------------------------------------------------------------


def flips(folder: str, n: int, seed: int) -> dict[str, Any]:
    """Flip one byte in the header or anywhere, `n` times; use the store as one does."""
    rng, counts = np.random.default_rng(seed), Counter(wrong=0, raised=0, unrepaired=0, lost=0)
    store, keys, messages = (
        VectorStore(folder)._scoped(ONE, {"model": "some"}),
        keys_of(*range(250)),
        [],
    )
    for part, step in ((keys[:150], 0), (keys[150:], 1e-6)):  # float16, float32
        store._write(part, _cut(part), columns_of(values(part) + np.float32(step)))
    expected = values(keys)
    expected[150:] += np.float32(1e-6)
    original = {path: path.read_bytes() for path in store._folder().iterdir()}
    for i in range(n):
        path = sorted(original)[rng.integers(len(original))]
        raw = bytearray(original[path])
        end = (
            len(raw)
            if path.suffix == ".json" or rng.random() < 0.5
            else 8 + int.from_bytes(raw[:8], "little")
        )
        raw[position := int(rng.integers(end))] ^= int(rng.integers(1, 256))
        if i % 2:
            read(store, keys)  # as of a process that has used it before
        with open(path, "r+b") as file:  # in place: same inode, same size
            file.write(raw)
        try:
            found = _use(store, keys, expected, counts)
        except Exception:
            counts["raised"] += 1
            messages.append(f"byte {position} of {path.name}: {traceback.format_exc()}")
        else:
            counts["warnings"] += found
        _restore(store._folder(), original)
    return {**counts, "n": n, "messages": messages[:3]}


def _cut(keys: np.ndarray) -> np.ndarray:
    """Return a flag that follows from the key."""
    return np.array([sum(key) % 2 == 1 for key in keys.tolist()])


def _use(store: VectorStore, keys: np.ndarray, expected: np.ndarray, counts: Counter) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store.info(), store.verify()
        out, found = read(store, keys)
        n_first = len(caught)
        again, later = read(store, keys)
        counts["unrepaired"] += n_first > 1 or len(caught) > n_first
        counts["lost"] += int((later.missing & ~found.missing).sum())
        missing = found.missing
        for got, there in ((out, ~missing), (again, ~later.missing)):
            counts["wrong"] += int((got[there] != expected[there]).any(axis=1).sum())
        counts["wrong"] += int((found.truncated != _cut(keys))[~missing].sum())
        if missing.any():  # computed again
            store._write(keys[missing], _cut(keys[missing]), columns_of(expected[missing]))
        store._tidy()
        final, found = read(store, keys)
        counts["wrong"] += int((final != expected).any(axis=1)[~found.missing].sum())
        counts["lost"] += int(found.missing.sum())
        store.info(), store.verify(), store.clear()
    return n_first


def _restore(folder: Path, original: dict[Path, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for path, raw in original.items():
        path.write_bytes(raw)


# --- killed writers -----------------------------------------------------------------------------


def kills(folder: str, n: int, seed: int) -> dict[str, Any]:
    """Kill `n` writers at a random moment; what each has published must be found and right."""
    rng, counts, messages = np.random.default_rng(seed), Counter(lost=0, wrong=0, raised=0), []
    published: list[int] = []
    for i in range(n):
        if i % 20 == 0:  # a store that is not too large to be read whole after each kill
            store, published = VectorStore(Path(folder, str(i)))._scoped(ONE, {}), []
        lines = _killed_writer(store, 10_000 * (i % 20), float(rng.uniform(0, 0.06)))
        for line in lines:
            if line.startswith("!"):
                counts["raised"] += 1
                messages.append(line)
            else:
                published += range(*map(int, line.split()))
        shards.RECENT.reset()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                out, found = read(store, keys_of(*published)) if published else (None, None)
        except Exception:
            counts["raised"] += 1
            messages.append(traceback.format_exc())
            continue
        if published:
            there = ~found.missing
            counts["lost"] += int(found.missing.sum())
            right = (out == values(keys_of(*published))).all(axis=1)
            counts["wrong"] += int((there & ~right).sum())
        counts["rows"] += len(lines)
    return {**counts, "n": n, "messages": messages[:3]}


def _killed_writer(store: VectorStore, first: int, seconds: float) -> list[str]:
    """Fork a writer, kill it after some time, and return what it has said."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _write_and_say(store, first, into)
        finally:
            os._exit(1)
    os.close(into)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with open(out, encoding="utf-8") as said:
        return said.read().splitlines()


def _write_and_say(store: VectorStore, first: int, into: int) -> None:
    try:
        warnings.simplefilter("error")
        while True:
            with Writer(store, COLUMNS) as writer:
                for start in range(first, first + 40, 8):
                    keys = keys_of(*range(start, start + 8))
                    writer.add(keys, np.zeros(8, bool), values(keys))
                    writer.flush()
                    os.write(into, f"{start} {start + 8}\n".encode())
            store._tidy()
            first += 40
    except Exception as error:
        os.write(into, f"!{error!r}\n".encode())


# --- many at once -------------------------------------------------------------------------------


def crowd(
    folder: str, n_threads: int, n_processes: int, seconds: float, seed: int
) -> dict[str, Any]:
    """Read, write, evict and tidy two stores from all sides, one of them with a limit."""
    warnings.simplefilter("error")
    until = time.monotonic() + seconds
    pipes = [_forked(folder, until, [seed, i]) for i in range(n_processes)]
    results: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append(_work(folder, until, [seed, 99, i])))
        for i in range(n_threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pid, out in pipes:
        with open(out, encoding="utf-8") as said:
            results.append(json.loads(said.read()))
        os.waitpid(pid, 0)
    counts = Counter(wrong=0, raised=0, lost=0)
    for result in results:
        counts.update({k: v for k, v in result.items() if isinstance(v, int)})
    written = sorted(set().union(*(result["written"] for result in results)))
    shards.RECENT.reset()
    _, found = read(_plain(folder), keys_of(*written))
    counts["lost"] += int(found.missing.sum())
    messages = [m for result in results for m in result["messages"]]
    most = max(result["most_bytes"] for result in results)
    return {**counts, "written": len(written), "most_bytes": most, "messages": messages[:3]}


CROWD_LIMIT = 60_000


def _plain(folder: str) -> VectorStore:
    return VectorStore(Path(folder, "plain"))._scoped(ONE, {})


def _limited(folder: str) -> VectorStore:
    return VectorStore(Path(folder, "limited"), size_limit=CROWD_LIMIT)._scoped(ONE, {})


def _forked(folder: str, until: float, seed: list[int]) -> tuple[int, int]:
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        with open(into, "w", encoding="utf-8") as file:
            json.dump(_work(folder, until, seed), file)
        os._exit(0)
    os.close(into)
    return pid, out


def _work(folder: str, until: float, seed: list[int]) -> dict[str, Any]:
    rng, counts = np.random.default_rng(seed), Counter(wrong=0, raised=0, lost=0, calls=0)
    written: set[int] = set()
    messages: list[str] = []
    most_bytes = 0
    while time.monotonic() < until:
        numbers = np.unique(rng.integers(0, 4000, 20)).tolist()
        for store in (_plain(folder), _limited(folder)):
            try:
                _use_as_all_do(store, numbers, rng, counts)
                if store.size_limit is None:
                    written.update(numbers)
                    mine = rng.permutation(sorted(written))[:40].tolist()
                    counts["lost"] += int(read(store, keys_of(*mine))[1].missing.sum())
                else:
                    most_bytes = max(most_bytes, sum(map(_size, shard_files(store))))
            except Exception:
                counts["raised"] += 1
                messages.append(traceback.format_exc())
        if rng.random() < 0.2:
            shards.RECENT.reset()
    return {**counts, "written": sorted(written), "messages": messages, "most_bytes": most_bytes}


def _use_as_all_do(store: VectorStore, numbers: list[int], rng: Any, counts: Counter) -> None:
    keys = keys_of(*numbers)
    out, found = read(store, keys)
    expected, missing = values(keys), found.missing
    counts["wrong"] += int((out != expected).any(axis=1)[~missing].sum())
    if missing.any():
        with Writer(store, COLUMNS) as writer:
            writer.add(keys[missing], np.zeros(int(missing.sum()), bool), expected[missing])
        store._tidy()
    if rng.random() < 0.05:
        store.info()
        counts["wrong"] += len(store.verify()["damaged"])
    counts["calls"] += 1


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


# --- much to tidy -------------------------------------------------------------------------------

_WIDTH = 384
#: Columns and rows of shards of about 1 MB. One column is the worst: all of it is in memory.
_LAYOUTS = (
    ([(layer, pooling) for layer in range(12) for pooling in ("last", "mean")], 56),
    ([(0, "mean")], 1344),
)


def fill_small(folder: str, megabytes: int) -> dict[str, int]:
    """Write so many shards of 1 MB."""
    store, rng, n_texts = VectorStore(folder)._scoped(ONE, {}), np.random.default_rng(0), 0
    for i in range(megabytes):
        layout, n_rows = _LAYOUTS[i % 2]
        keys = keys_of(*range(n_texts, n_texts := n_texts + n_rows))
        block = rng.standard_normal((n_rows, _WIDTH), np.float32).astype(np.float16)
        columns = {c: np.roll(block, j, axis=1).astype(np.float32) for j, c in enumerate(layout)}
        store._write(keys, np.zeros(n_rows, bool), columns)
    return {"files": len(shard_files(store)), "texts": n_texts}


def tidy(folder: str) -> dict[str, Any]:
    """Tidy until nothing changes; how much memory and how long a call has taken."""
    store = VectorStore(folder)._scoped(ONE, {})
    before, seconds = _peak_mb(), []
    files = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while files != (files := shard_files(store)):
            start = time.perf_counter()
            store._tidy()
            seconds.append(time.perf_counter() - start)
    damaged = store.verify()["damaged"]
    return {
        "peak_mb": _peak_mb() - before,
        "seconds": sum(seconds),
        "slowest": max(seconds),
        "files": len(files),
        "texts": store.info()["n_texts"],
        "damaged": len(damaged),
    }


def _peak_mb() -> float:
    """Return the most memory this process has had; not its parent's, as getrusage says."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS
