"""What others have put into a store's folder stays; what a file says is never where we write."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import shutil
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from _support import tiny
from _support.processes import run_python
from _support.stores import (
    COLUMNS,
    ONE,
    OTHER,
    assert_complete,
    fill,
    keys_of,
    read,
    shard_files,
    values,
)
from safetensors.numpy import save_file
from sklearn.base import clone

from skfusion import LLMLayerEmbedder, StoreWarning, VectorStore
from skfusion.embed import session, shards
from skfusion.embed.shards import MARK
from skfusion.embed.store import Writer


@pytest.fixture
def store(tmp_path) -> VectorStore:
    return VectorStore(tmp_path)._scoped(ONE, {"model": "some"})


def weights(path: Path, **metadata: str) -> None:
    save_file({"layer": np.ones((4, 4), np.float32)}, path, metadata=metadata or None)


def foreign(folder: Path) -> dict[Path, bytes]:
    """Files of other programs, two of them with names like ours, and what they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    weights(folder / "model.safetensors", format="pt")
    weights(folder / f"{'c' * 32}.safetensors")
    (folder / f"{'d' * 32}.safetensors").write_bytes(b"")
    (folder / f"skfusion-{'e' * 32}.tmp").write_bytes(b"not ours")
    (folder / "notes.tmp").write_bytes(b"half")
    (folder / "about.json").write_text('{"about": "me"}')
    (folder / "sub").mkdir()
    (folder / "sub" / f"{'f' * 32}.safetensors").write_bytes(b"deeper")
    (folder / "link.safetensors").symlink_to(folder / "model.safetensors")
    old = time.time() - 10 * 86400
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, (old, old))
    return {path: (path.read_bytes(), path.stat().st_mtime) for path in files}


def contents(files: dict[Path, bytes]) -> dict[Path, bytes]:
    return {path: (path.read_bytes(), path.stat().st_mtime) for path in files}


@pytest.mark.filterwarnings("ignore::skfusion.StoreWarning")
def test_nothing_that_a_store_does_touches_files_of_others(tmp_path):
    store = VectorStore(tmp_path)._scoped(ONE, {"model": "some"})
    folder = store._folder()
    before = foreign(folder)
    beside = foreign(store._root() / "somebody's")
    above = foreign(tmp_path / "above")
    for i in range(20):  # writing, merging, evicting, repairing
        fill(store, keys_of(*range(10 * i, 10 * i + 10)))
        store._tidy()
    own = [path for path in folder.glob("*.safetensors") if shards.is_own(path)]
    raw = own[0].read_bytes()
    own[0].write_bytes(raw[:-50])
    read(store, keys_of(*range(200)))
    limited = VectorStore(tmp_path, size_limit=3000)._scoped(ONE, {})
    limited._tidy()
    assert 0 < limited.info()["n_bytes"] <= 3000
    store.verify()
    store.clear()
    VectorStore(tmp_path).clear()
    for files in (before, beside, above):
        assert contents(files) == files
    left = {path for path in folder.rglob("*") if path.is_file()}
    assert left == set(before)


def test_weights_in_the_folder_are_a_miss_and_never_counted(store):
    fill(store, keys_of(1, 2))
    info, verified = store.info(), store.verify()
    folder = store._folder()
    weights(folder / "model.safetensors", format="pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_complete(store, keys_of(1, 2))
        assert read(store, keys_of(3))[1].missing.all()
    weights(folder / f"{'c' * 32}.safetensors")
    assert store.info() == info and store.verify() == verified
    with pytest.warns(StoreWarning, match="ignored and left alone") as caught:
        for _ in range(3):
            assert read(store, keys_of(3))[1].missing.all()
    assert len(caught) == 1
    limited = VectorStore(store.location, size_limit=info["n_bytes"])._scoped(ONE, {})
    limited._tidy()
    assert limited.info() == {**info, "size_limit": info["n_bytes"]}


def test_a_shard_of_ours_without_its_mark_is_left_alone(store):
    fill(store, keys_of(1, 2))
    path = shard_files(store)[0]
    raw = path.read_bytes()
    path.write_bytes(bytes(64) + raw[64:])
    with pytest.warns(StoreWarning, match="ignored and left alone") as caught:
        for _ in range(2):
            assert read(store, keys_of(1, 2))[1].missing.all()
    assert len(caught) == 1
    fill(store, keys_of(1, 2))
    store.clear()
    assert [p.name for p in store._folder().iterdir()] == [path.name]


def test_every_file_of_ours_begins_with_the_mark(store):
    fill(store, keys_of(1))
    files = list(store._folder().iterdir())
    assert len(files) == 2
    assert all(f'"{MARK}"'.encode() in path.read_bytes()[:64] for path in files)
    assert all(map(shards.is_own, files))
    store.clear()
    assert not store._folder().exists()


def test_anothers_about_file_is_neither_read_nor_replaced(store):
    store._folder().mkdir(parents=True)
    about = store._folder() / "about.json"
    about.write_text(json.dumps({"model": "other"}))
    fill(store, keys_of(1))
    assert json.loads(about.read_text()) == {"model": "other"}
    assert "model" not in store.info()["models"][0]
    store.clear()
    assert about.exists()


def test_a_session_folder_with_files_of_others_stays(tmp_path):
    path = tmp_path / "session"
    store = VectorStore(path)._scoped(ONE, {})
    fill(store, keys_of(1))
    (path / "mine.txt").write_text("mine")
    session._remove(path)
    assert [p.name for p in path.iterdir()] == ["mine.txt"]
    (path / "mine.txt").unlink()
    session._remove(path)
    assert not path.exists()


# --- what is no file, and what is another user's ----------------------------------------------


def in_time(call: Callable[[], Any]) -> Any:
    """Opening a FIFO waits for ever; return what a call gives, if it comes back."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it hangs, or has raised"
    return found[0]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):
        made.bind(path.name)  # its whole path may be too long


KINDS = {
    "fifo": make_fifo,
    "socket": make_socket,
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to(shard_of(path)),
    "dangling": lambda path: path.symlink_to("nowhere"),
}
posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")


def shard_of(path: Path) -> Path:
    return next(p for p in path.parent.glob("*.safetensors") if p.is_file())


@posix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", [f"{'c' * 32}.safetensors", f"skfusion-{'c' * 32}.tmp", "about.json"]
)
def test_what_is_no_file_is_never_opened_counted_or_removed(store, kind, name):
    fill(store, keys_of(1))
    (store._folder() / "about.json").unlink()
    info = in_time(store.info)
    path = store._folder() / name
    KINDS[kind](path)
    os.utime(path, (1, 1), follow_symlinks=False)
    assert in_time(store.info) == info
    assert in_time(store.verify) == {"n_shards": 1, "n_texts": 1, "damaged": []}
    assert in_time(lambda: read(store, keys_of(1, 2)))[1].missing.tolist() == [False, True]
    for i in range(2, 12):
        in_time(lambda i=i: fill(store, keys_of(i)) or True)
        in_time(lambda: store._tidy() or True)
    assert in_time(store.info)["n_texts"] == 11
    limited = VectorStore(store.location, size_limit=2000)._scoped(ONE, {})
    in_time(lambda: limited._tidy() or True)
    assert in_time(lambda: shards.is_own(path)) is False
    if name.endswith("safetensors"):
        with pytest.raises((OSError, shards.DamagedShardError)):
            raise in_time(lambda: opening(path))
    in_time(lambda: store.clear() or True)
    assert [left.name for left in store._folder().iterdir()] == [name]


def opening(path: Path) -> BaseException:
    try:
        shards.open_shard(path)
    except Exception as error:
        return error
    return AssertionError(f"{path} was opened")


@posix
@pytest.mark.parametrize("kind", ["fifo", "file", "dangling"])
@pytest.mark.parametrize("where", ["root", "model"])
def test_a_folder_that_is_none_is_one_warning(tmp_path, kind, where):
    store = VectorStore(tmp_path)._scoped(ONE, {})
    path = store._root() if where == "root" else store._folder()
    path.parent.mkdir(exist_ok=True)
    {**KINDS, "file": Path.touch}[kind](path)
    with (
        pytest.warns(StoreWarning, match="cannot be stored in .*skfusion") as caught,
        Writer(store, COLUMNS) as writer,
    ):
        for i in range(3):
            writer.add(keys_of(i), np.zeros(1, bool), values(keys_of(i)))
            writer.flush()
    assert len(caught) == 1
    assert in_time(lambda: read(store, keys_of(1)))[1].missing.all()
    store._tidy()
    store.clear()
    for one in (store, VectorStore(tmp_path)):
        assert one.info()["n_texts"] == one.verify()["n_shards"] == 0
    assert os.path.lexists(path)


@pytest.mark.parametrize("depth", [1, 100_000])
@pytest.mark.parametrize("form", ['{"%s": "about", "x": %s}', '{"%s": %s, "fingerprint": "/etc"}'])
def test_a_strange_file_for_people_is_left_out(store, form, depth):
    fill(store, keys_of(1))
    text = form % (MARK, "[" * depth + "]" * depth)
    (store._folder() / "about.json").write_text(text)
    (model,) = store.info()["models"]
    assert model["fingerprint"] == ONE and model["n_texts"] == 1


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user reaches, as a group's is."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_a_folder_where_files_of_others_cannot_be_removed(shared, mode):
    """With the sticky bit one may add files there, and not remove those of others."""
    store = VectorStore(shared)._scoped(ONE, {})
    for i in range(9):
        fill(store, keys_of(i))
    damaged = shard_files(store)[0]
    raw = bytearray(damaged.read_bytes())
    raw[-1] ^= 1
    damaged.write_bytes(raw)
    store._folder().chmod(mode)
    code = f"""
import json, os, warnings
from _support.stores import *
from _support.stores import ONE
from skfusion.embed.store import Writer
store = VectorStore({str(shared)!r})._scoped(ONE, {{}})
limited = VectorStore({str(shared)!r}, size_limit=9000)._scoped(ONE, {{}})
keys = keys_of(*range(9))
VectorStore({str(shared / "other")!r})._scoped(ONE, {{}})._tidy()  # what is imported late
os.setgroups([]), os.setgid(65534), os.setuid(65534)
def files():
    return [(path.name, path.stat().st_mtime_ns) for path in shard_files(store)]
before = files()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        missing = int(read(store, keys)[1].missing.sum())
        store._tidy(), store.info(), store.verify()
result = [missing, len(caught), files() == before]
counts = []
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for i in range(40):
        with Writer(limited if i % 2 else store, COLUMNS) as writer:
            writer.add(keys_of(100 + i), np.zeros(1, bool), values(keys_of(100 + i)))
        store._tidy()
        counts.append(len(files()))
    limited._tidy(), read(store, keys)
gone = len(set(dict(before)) - set(dict(files())))
print(json.dumps([*result, max(counts), gone]))
"""
    missing, n_warnings, unchanged, most, gone = json.loads(run_python(code))
    assert missing == 1 and n_warnings == 1 and unchanged
    assert most <= 9 + 15 and gone == 0


# --- the fingerprint --------------------------------------------------------------------------

CALLS = {
    "read": lambda store: read(store, keys_of(1)),
    "write": lambda store: fill(store, keys_of(1)),
    "tidy": lambda store: store._tidy(),
    "clear": lambda store: store.clear(),
    "info": lambda store: store.info(),
    "verify": lambda store: store.verify(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", ["absolute", "..", "../..", "upper", "newline", "long", "path"])
def test_a_fingerprint_that_is_a_path_raises_and_touches_nothing(tmp_path, call, form):
    victim = tmp_path / "victim"
    before = foreign(victim)
    fingerprint = {
        "absolute": str(victim),
        "..": "../../victim",
        "../..": f"{ONE}/../../../victim",
        "upper": "A" * 32,
        "newline": f"{ONE}\n",
        "long": "a" * 33,
        "path": victim,
    }[form]
    store = VectorStore(tmp_path / "store", size_limit=1)._scoped(fingerprint, {})
    with pytest.raises(ValueError, match="32 lowercase hexadecimal digits"):
        CALLS[call](store)
    assert contents(before) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim"]


def test_a_state_with_a_fingerprint_does_not_set_where_it_writes(tmp_path):
    store = VectorStore(tmp_path, size_limit="1G", layers=[1], poolings=["mean"], dtype="float32")
    state = store._scoped(ONE, {"model": "some"}).__getstate__()
    assert state == vars(store)
    restored = VectorStore.__new__(VectorStore)
    restored.__setstate__({**state, "_fingerprint": "/victim", "_about": {}, "clear": 1})
    assert vars(restored) == vars(store) and restored._fingerprint is None
    assert vars(VectorStore.__new__(VectorStore)) == {}


@pytest.mark.parametrize("way", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy])
def test_pickles_and_copies_carry_parameters_only(tmp_path, way):
    store = VectorStore(tmp_path, size_limit="1G", layers="requested")
    again = way(store._scoped(OTHER, {"model": "secret"}))
    assert vars(again) == vars(store)
    assert OTHER.encode() not in pickle.dumps(store._scoped(OTHER, {}))
    assert joblib.hash(store) == joblib.hash(store._scoped(OTHER, {}))
    with pytest.raises(ValueError, match="got None"):
        again._tidy()
        read(again, keys_of(1))


def test_a_fitted_embedder_finds_its_vectors_again_after_pickling(tmp_path):
    model = str(tiny.save_folder(tmp_path / "model"))
    embedder = LLMLayerEmbedder(model, memory=tmp_path / "store")
    X = embedder.fit_transform(["good film", "bad film"])
    again = pickle.loads(pickle.dumps(embedder))
    assert again.store_.info() == embedder.store_.info()
    assert again.store_.info()["n_texts"] == 2
    np.testing.assert_array_equal(again.transform(["good film", "bad film"]), X)


# --- parameters -------------------------------------------------------------------------------


def test_parameters_are_stored_as_they_are_and_shown_where_they_differ():
    layers = [0, 0.5]
    store = VectorStore("folder", layers=layers, poolings="requested", dtype="float16")
    assert store.layers is layers and store.location == "folder"
    assert repr(store) == (
        "VectorStore(location='folder', layers=[0, 0.5], poolings='requested', dtype='float16')"
    )
    assert repr(VectorStore()) == "VectorStore()"
    assert vars(VectorStore()) == {
        "location": None,
        "size_limit": None,
        "layers": "all",
        "poolings": "all",
        "dtype": "auto",
        "mode": "rw",
    }
    public = {name for name in [*vars(VectorStore), *vars(store)] if not name.startswith("_")}
    assert public == {"info", "clear", "verify", *vars(store)}


def test_a_clone_of_an_estimator_has_the_same_store():
    store = VectorStore(size_limit="1G")
    assert clone(LLMLayerEmbedder("some/model", memory=store)).memory is store


# --- recent reads -----------------------------------------------------------------------------


class Disk:
    """Counts the chunks that are read from files."""

    def __init__(self, monkeypatch):
        self.reads = 0
        real = shards.Shard._read_chunk

        def count(*args):
            self.reads += 1
            return real(*args)

        monkeypatch.setattr(shards.Shard, "_read_chunk", count)

    def during(self, call) -> int:
        before = self.reads
        call()
        return self.reads - before


@pytest.fixture
def disk(monkeypatch) -> Disk:
    shards.RECENT.reset()
    return Disk(monkeypatch)


def test_what_was_read_lately_is_read_from_memory(store, disk):
    keys = keys_of(*range(200))
    fill(store, keys)
    assert disk.during(lambda: assert_complete(store, keys)) == 3 * 4
    for _ in range(3):
        order = np.random.default_rng(0).permutation(200)
        assert disk.during(lambda order=order: assert_complete(store, keys[order])) == 0
    # Another object, and one with the same folder after it was used by somebody.
    os.utime(shard_files(store)[0], (1, 1))
    other = VectorStore(store.location)._scoped(ONE, {})
    assert disk.during(lambda: assert_complete(other, keys[:50])) == 0
    assert shard_files(store)[0].stat().st_mtime > time.time() - 60  # used now


def test_memory_is_not_what_is_handed_out(store, disk):
    keys = keys_of(*range(100))
    fill(store, keys)
    out, _ = read(store, keys)
    out[:] = -1
    assert_complete(store, keys)
    out, _ = read(store, keys)
    assert not any(np.shares_memory(out, chunk) for chunk in shards.RECENT._chunks.values())


def test_memory_is_bounded_in_bytes_and_keeps_what_was_used_last(store, disk, monkeypatch):
    one = 64 * 6 * 4 + shards._ENTRY_BYTES
    monkeypatch.setattr(shards, "RECENT_BYTES", 3 * one)
    keys = keys_of(*range(64))
    fill(store, keys)
    assert_complete(store, keys)
    assert len(shards.RECENT._chunks) == 3
    read(store, keys, COLUMNS[:1])  # used again
    fill(VectorStore(store.location)._scoped(OTHER, {}), keys, COLUMNS[:1])
    read(VectorStore(store.location)._scoped(OTHER, {}), keys, COLUMNS[:1])
    assert (
        shards.RECENT._bytes
        == 3 * one
        == sum(chunk.nbytes + shards._ENTRY_BYTES for chunk in shards.RECENT._chunks.values())
    )
    assert disk.during(lambda: read(store, keys, COLUMNS[:1])) == 0
    assert disk.during(lambda: read(store, keys, COLUMNS[1:2])) == 1
    monkeypatch.setattr(shards, "RECENT_BYTES", 0)
    assert_complete(store, keys)
    assert not shards.RECENT._chunks and shards.RECENT._bytes == 0


def test_a_removed_or_replaced_shard_is_not_served(store, disk, tmp_path):
    keys = keys_of(*range(64))
    fill(store, keys)
    assert_complete(store, keys)
    path = shard_files(store)[0]
    other = VectorStore(tmp_path / "other")._scoped(ONE, {})
    other._write(keys, np.zeros(64, bool), {c: values(keys, 1) + 1 for c in COLUMNS})
    raw = shard_files(other)[-1].read_bytes()
    assert len(raw) == path.stat().st_size
    with open(path, "r+b") as file:  # same inode, same size
        file.write(raw)
    out, _ = read(store, keys)
    np.testing.assert_array_equal(out, np.tile(values(keys, 1) + 1, 3))
    path.unlink()
    assert read(store, keys)[1].missing.all()


def test_clearing_frees_the_memory_of_that_folder(store, disk):
    other = VectorStore(store.location)._scoped(OTHER, {})
    for one in (store, other):
        fill(one, keys_of(1, 2))
        assert_complete(one, keys_of(1, 2))
    assert len(shards.RECENT._chunks) == 6
    store.clear()
    assert len(shards.RECENT._chunks) == 3
    VectorStore(store.location).clear()
    assert not shards.RECENT._chunks and shards.RECENT._bytes == 0


def test_damage_is_never_remembered_and_verify_reads_the_disk(store, disk):
    keys = keys_of(*range(64))
    fill(store, keys)
    assert_complete(store, keys)
    path = shard_files(store)[0]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert store.verify()["damaged"] == [str(path)]
    shards.RECENT.reset()
    with pytest.warns(StoreWarning, match="1 damaged shard"):
        assert read(store, keys)[1].missing.all()


def test_threads_read_the_same_bits(store, disk, monkeypatch):
    keys = keys_of(*range(300))
    fill(store, keys)
    monkeypatch.setattr(shards, "RECENT_BYTES", 6 * (64 * 6 * 4 + shards._ENTRY_BYTES))
    joblib.Parallel(n_jobs=4, backend="threading")(
        joblib.delayed(assert_complete)(store, keys[i % 7 :]) for i in range(40)
    )
    held = sum(chunk.nbytes + shards._ENTRY_BYTES for chunk in shards.RECENT._chunks.values())
    assert shards.RECENT._bytes == held <= shards.RECENT_BYTES


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent(store):
    fill(store, keys_of(1))
    assert_complete(store, keys_of(1))
    with warnings.catch_warnings(), shards.RECENT._lock:
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        pid = os.fork()
        if pid == 0:
            os._exit(int(len(shards.RECENT._chunks) + read(store, keys_of(1))[1].missing.sum()))
    deadline = time.monotonic() + 30
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if done[0] == 0:
        os.kill(pid, 9)
    assert done == (pid, 0)


def test_a_damaged_header_of_any_kind_is_damage(store):
    fill(store, keys_of(*range(100)))
    path = shard_files(store)[0]
    raw = path.read_bytes()
    for old, new in ((b'"F16"', b'"F61"'), (b"[100,6]", b"[600,1]"), (b"[3,2]", b"[6,1]")):
        assert old in raw
        path.write_bytes(raw.replace(old, new))
        os.utime(path, (time.time() - len(old), 1))
        with pytest.raises(shards.DamagedShardError):
            shards.open_shard(path)
