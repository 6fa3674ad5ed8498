from __future__ import annotations

import json
import os
import time
import tracemalloc
import warnings

import joblib
import numpy as np
import pytest
from _support.doubles import CountingEmbedder, read_log
from _support.stores import (
    COLUMNS,
    ONE,
    OTHER,
    WIDTH,
    assert_complete,
    columns_of,
    fill,
    keys_of,
    read,
    read_column,
    shard_files,
    stored_bytes,
    values,
)
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from skfusion import LLMLayerEmbedder, StoreWarning, VectorStore
from skfusion.embed import shards, tidying
from skfusion.embed.shards import DamagedShardError, merge_shards, open_shard, write_shard
from skfusion.embed.store import Writer


@pytest.fixture
def store(tmp_path) -> VectorStore:
    return VectorStore(tmp_path)._scoped(ONE, {"model": "some"})


# --- shards ---------------------------------------------------------------------------------


@given(
    n=st.integers(1, 200),
    seed=st.integers(0, 99),
    wanted=st.lists(st.integers(0, 220), min_size=1, max_size=60),
)
def test_shards_give_back_what_was_written(tmp_path_factory, n, seed, wanted):
    folder = tmp_path_factory.mktemp("shard")
    keys = keys_of(*range(n))
    cut = np.random.default_rng(seed).random(n) < 0.5
    order = np.random.default_rng(seed).permutation(n)
    path = write_shard(folder, keys[order], cut[order], columns_of(values(keys[order])))
    shard = open_shard(path)
    rows, hit = shard.find(keys_of(*wanted))
    assert hit.tolist() == [i < n for i in wanted]
    for i, column in enumerate(COLUMNS):
        got, good = read_column(shard, column, rows[hit])
        assert good.all()
        expected = values(keys_of(*wanted)[hit])[:, i * WIDTH : (i + 1) * WIDTH]
        np.testing.assert_array_equal(got, expected)
    assert shard.truncated[rows[hit]].tolist() == [bool(cut[i]) for i in wanted if i < n]


def test_any_safetensors_reader_opens_a_shard(tmp_path):
    keys = keys_of(1, 2, 3)
    exact = values(keys)
    exact[:, :WIDTH] += 1e-6  # not in float16
    path = write_shard(tmp_path, keys, np.zeros(3, bool), columns_of(exact))
    with safe_open(path, framework="np") as file:
        assert file.get_tensor("0.mean").dtype == np.float32
        assert file.get_tensor("1.mean").dtype == np.float16
        assert sorted(file.keys()) == [
            "0.mean",
            "1.last",
            "1.mean",
            "checksums",
            "keys",
            "truncated",
        ]


@given(data=st.data())
def test_damage_anywhere_is_never_returned(tmp_path_factory, data):
    """64 overwritten bytes anywhere, or a cut anywhere: right values or none."""
    folder = tmp_path_factory.mktemp("damage")
    keys = keys_of(*range(150))
    path = write_shard(folder, keys, np.zeros(150, bool), columns_of(values(keys)))
    raw = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw = raw[:position]
    else:
        junk = data.draw(st.binary(min_size=1, max_size=64))
        raw[position : position + len(junk)] = junk
    damaged = folder / f"other{shards.SUFFIX}"
    damaged.write_bytes(raw)
    try:
        shard = open_shard(damaged)
    except DamagedShardError:
        return
    rows, hit = shard.find(keys)
    for i, column in enumerate(COLUMNS):
        if column in shard.columns:
            got, good = read_column(shard, column, rows)
            good &= hit
            expected = values(keys)[good, i * WIDTH : (i + 1) * WIDTH]
            np.testing.assert_array_equal(got[good], expected)


def test_one_row_touches_only_its_chunk(tmp_path):
    keys = keys_of(*range(1000))
    path = write_shard(tmp_path, keys, np.zeros(1000, bool), columns_of(values(keys)))
    shard = open_shard(path)
    touched = []

    class Spy:
        def __init__(self, file):
            self.file = file

        def seek(self, offset):
            self.file.seek(offset)

        def readinto(self, view):
            touched.append(len(view))
            return self.file.readinto(view)

    with open(path, "rb", buffering=0) as file:
        assert all(
            vectors is not None
            for _, vectors in shard.chunks(Spy(file), (1, "last"), np.array([500]))
        )
    assert sum(touched) == shards.CHUNK * WIDTH * 2


def test_merging_keeps_every_row_once_and_drops_damage(tmp_path):
    parts = [keys_of(*range(70)), keys_of(*range(50, 200)), keys_of(300)]
    opened = []
    for keys in parts:
        path = write_shard(tmp_path, keys, np.ones(len(keys), bool), columns_of(values(keys)))
        opened.append(open_shard(path))
    raw = bytearray(opened[2].path.read_bytes())
    offset = opened[2].columns[1, "mean"][2]
    raw[offset] ^= 1
    opened[2].path.write_bytes(raw)
    merged, n_dropped = merge_shards(opened, tmp_path)
    shard = open_shard(merged)
    assert n_dropped == 1
    assert len(shard.keys) == 200
    assert shard.truncated.all()


# --- the store ------------------------------------------------------------------------------


def test_reads_columns_from_different_shards(store):
    keys = keys_of(1, 2, 3)
    fill(store, keys[:2], COLUMNS[:1])
    fill(store, keys, COLUMNS)
    assert_complete(store, keys)
    _, found = read(store, keys[:2], [(1, "max")])
    assert found.missing.all()


def test_unknown_texts_and_an_empty_store(store):
    _, found = read(store, keys_of(1, 2))
    assert found.missing.all()
    fill(store, keys_of(2, 3))
    out, found = read(store, keys_of(1, 2, 3))
    assert found.missing.tolist() == [True, False, False]
    np.testing.assert_array_equal(out[1:], values(keys_of(2, 3)))


def test_small_shards_are_merged(store):
    for i in range(40):
        fill(store, keys_of(i))
        store._tidy()
    assert len(shard_files(store)) < 16
    assert_complete(store, keys_of(*range(40)))
    assert store.info()["n_texts"] == 40


def test_info_verify_clear(store, tmp_path):
    other = VectorStore(tmp_path)._scoped(OTHER, {"model": "other"})
    fill(store, keys_of(1, 2))
    fill(other, keys_of(3), COLUMNS[:1])
    info = VectorStore(tmp_path).info()
    assert info["location"] == str(store._root())
    assert info["n_texts"] == 3 and info["n_shards"] == 2
    assert info["n_bytes"] == sum(path.stat().st_size for path in shard_files(store))
    assert [model["model"] for model in info["models"]] == ["some", "other"]
    assert store.info()["models"][0]["layers"] == [0, 1]
    assert store.info()["models"][0]["poolings"] == ["last", "mean"]
    assert store.verify() == {"n_shards": 1, "n_texts": 2, "damaged": []}
    store.clear()
    assert read(store, keys_of(1))[1].missing.all()
    assert not read(other, keys_of(3), COLUMNS[:1])[1].missing.any()
    VectorStore(tmp_path).clear()
    assert VectorStore(tmp_path).info()["n_shards"] == 0


def test_damage_is_one_warning_a_miss_and_then_repaired(store):
    keys = keys_of(*range(300))
    fill(store, keys[:150])
    fill(store, keys[150:])
    truncated, overwritten = shard_files(store)
    n_cut = len(open_shard(truncated).keys)
    truncated.write_bytes(truncated.read_bytes()[:-100])
    raw = bytearray(overwritten.read_bytes())
    offset = open_shard(overwritten).columns[1, "last"][2]
    raw[offset : offset + 64] = bytes(64)
    overwritten.write_bytes(raw)
    assert len(store.verify()["damaged"]) == 2
    with pytest.warns(StoreWarning, match="2 damaged shard") as caught:
        out, found = read(store, keys)
    assert len(caught) == 1
    assert n_cut < found.missing.sum() <= n_cut + shards.CHUNK
    np.testing.assert_array_equal(out[~found.missing], values(keys)[~found.missing])
    assert store.verify()["damaged"] == []
    assert read(store, keys)[1].missing.sum() == found.missing.sum()


def test_shards_that_vanish_while_reading_are_looked_for_again(store, monkeypatch):
    fill(store, keys_of(1))
    fill(store, keys_of(2))
    real = VectorStore._read_shard
    calls = []

    def vanish(self, path, *rest):
        calls.append(path)
        if len(calls) == 1:
            # another process merges
            tidying.replace([open_shard(p) for p in shard_files(self)], self._folder())
            raise FileNotFoundError(path)
        return real(self, path, *rest)

    monkeypatch.setattr(VectorStore, "_read_shard", vanish)
    assert_complete(store, keys_of(1, 2))
    assert len(shard_files(store)) == 1


def test_size_limit_evicts_the_least_recently_used(tmp_path):
    store = VectorStore(tmp_path)._scoped(ONE, {})
    for i in range(4):
        fill(store, keys_of(i))
    paths = {
        int(np.flatnonzero(open_shard(p).find(keys_of(*range(4)))[1])[0]): p
        for p in shard_files(store)
    }
    now = time.time()
    for i, path in paths.items():
        os.utime(path, (now - 100 + i, now - 100 + i))
    assert not read(store, keys_of(0))[1].missing.any()  # the oldest is used again
    size = max(path.stat().st_size for path in paths.values())
    limited = VectorStore(tmp_path, size_limit=2 * size)._scoped(ONE, {})
    limited._tidy()
    assert sorted(i for i, path in paths.items() if path.exists()) == [0, 3]
    assert limited.info()["n_bytes"] <= 2 * size


# fmt: off
SIZES = [
    ("2K", 2048), ("1M", 2**20), (77, 77), (None, None), ("1 MB", 2**20), ("1MB", 2**20),
    ("1.5 G", 3 * 2**29), ("500m", 500 * 2**20), ("10GiB", 10 * 2**30), (" 1 tb ", 2**40),
    ("500", 500), ("500 B", 500), (".5K", 512), (np.int64(9), 9), (np.float32(1e6), 10**6),
    (1e9, 10**9),
]
NO_SIZES = [
    "lots", "", "M", "1 X", "-1M", "1 iB", "1e5000", "1_0M", -1, 0, 0.5, True, False, [1], b"1M",
    float("nan"), float("inf"), "nan", 1j,
]
# fmt: on


@pytest.mark.parametrize(("limit", "expected"), SIZES)
def test_size_limit_forms(limit, expected):
    assert VectorStore(size_limit=limit)._limit_bytes() == expected


@pytest.mark.parametrize("limit", NO_SIZES)
def test_another_size_limit_is_refused_in_fit(folder, limit):
    embedder = LLMLayerEmbedder(folder(), memory=VectorStore(size_limit=limit))
    with pytest.raises(ValueError, match=r"VectorStore\(size_limit=.*'500M'.*powers of 1024.*got"):
        embedder.fit(["a"])


@pytest.mark.parametrize("location", [5, b"bytes", "nul\0", ["a"]])
def test_a_location_that_is_no_path_is_refused_in_fit(folder, location):
    embedder = LLMLayerEmbedder(folder(), memory=VectorStore(location))
    with pytest.raises(ValueError, match=r"VectorStore\(location=.*path of a folder"):
        embedder.fit(["a"])


def test_locations(tmp_path):
    memory = joblib.Memory(tmp_path / "joblib", verbose=0)
    assert VectorStore(memory)._root().parent == tmp_path / "joblib"
    assert VectorStore(str(tmp_path))._root() == VectorStore(tmp_path)._root()
    assert VectorStore(joblib.Memory(None))._root() == VectorStore()._root()


def most_and_least(store: VectorStore, n: int, step: int, most: int = 0) -> tuple[int, int]:
    """Store rows; the most bytes there were, and the least once the store was full."""
    sizes = []
    with Writer(store, COLUMNS) as writer:
        for i in range(0, n, step):
            keys = keys_of(*range(i, i + step))
            writer.add(keys, np.zeros(step, bool), values(keys))
            sizes.append(stored_bytes(store))
    full = next(i for i, size in enumerate(sizes) if size > store._limit_bytes() * 3 / 4)
    return max(sizes), min(sizes[full:])


@pytest.mark.parametrize("step", [5, 400])
def test_a_size_limit_holds_during_a_pass_and_a_full_store_is_used(tmp_path, step):
    limit = 40_000
    store = VectorStore(tmp_path, size_limit=limit)._scoped(ONE, {})
    most, least = most_and_least(store, 2000, step)
    assert most <= limit and least >= limit * 3 / 4
    assert max(path.stat().st_size for path in shard_files(store)) <= limit / 4
    # Merging makes none that is larger.
    for i in range(30):
        fill(store, keys_of(10_000 + i))
        store._tidy()
    assert limit * 3 / 4 <= stored_bytes(store) <= limit
    assert max(path.stat().st_size for path in shard_files(store)) <= limit / 4


def test_shards_from_before_a_limit_leave_a_store_that_is_used(tmp_path):
    """One that is as large as the limit is not removed whole."""
    store = VectorStore(tmp_path)._scoped(ONE, {})
    keys = keys_of(*range(2000))
    fill(store, keys[:1000])
    fill(store, keys[1000:])
    limit = int(0.45 * stored_bytes(store))
    limited = VectorStore(tmp_path, size_limit=limit)._scoped(ONE, {})
    limited._tidy()
    assert 0.75 * limit <= stored_bytes(store) <= limit
    out, found = read(store, keys)
    np.testing.assert_array_equal(out[~found.missing], values(keys)[~found.missing])


def test_a_limit_below_one_text_stores_nothing_and_removes_nothing(tmp_path):
    store = VectorStore(tmp_path)._scoped(ONE, {})
    fill(store, keys_of(1))
    limited = VectorStore(tmp_path, size_limit=1)._scoped(ONE, {})
    with Writer(limited, COLUMNS) as writer:
        TestWriter().add(writer, 2, 3)
    assert_complete(store, keys_of(1))


def test_files_from_the_future_go_first(tmp_path):
    """The clock was put back: what is written now would look older for ever."""
    store = VectorStore(tmp_path)._scoped(ONE, {})
    for i in range(4):
        fill(store, keys_of(i))
        if i < 2:
            for path in shard_files(store):
                os.utime(path, (time.time() + 10 * 86400,) * 2)
    limit = max(path.stat().st_size for path in shard_files(store)) * 2
    VectorStore(tmp_path, size_limit=limit)._scoped(ONE, {})._tidy()
    assert read(store, keys_of(*range(4)))[1].missing.tolist() == [True, True, False, False]


# --- tidying ----------------------------------------------------------------------------------


def test_merging_holds_a_bounded_part_in_memory(store, monkeypatch):
    monkeypatch.setattr("skfusion.embed.tidying._MERGE_BYTES", 2**20)
    wide = [(layer, "mean") for layer in range(20)]
    for i in range(100):
        keys = keys_of(*range(5 * i, 5 * i + 5))
        block = np.random.default_rng(i).integers(-99, 99, (5, 550)).astype(np.float32)
        store._write(keys, np.zeros(5, bool), {c: block + c[0] for c in wide})
    total = stored_bytes(store)
    store.info()  # opened shards are remembered
    tracemalloc.start()
    store._tidy()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 10 * 2**20 > 2 * 2**20 > peak
    assert len(shard_files(store)) <= 20
    assert max(path.stat().st_size for path in shard_files(store)) <= 2**20
    assert store.verify() == {"n_shards": len(shard_files(store)), "n_texts": 500, "damaged": []}


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, RecursionError])
def test_what_fails_in_tidying_takes_no_result_away(folder, tmp_path, texts, monkeypatch, error):
    model, calls = folder(), []
    expected = LLMLayerEmbedder(model).fit_transform(texts)

    def fail(*args):
        calls.append(args)
        raise error("no memory")

    monkeypatch.setattr(shards, "merge_shards", fail)
    monkeypatch.setattr("skfusion.embed.tidying._MERGE_COUNT", 2)
    embedder = LLMLayerEmbedder(model, memory=tmp_path).fit(texts)
    with pytest.warns(StoreWarning, match="untidy") as caught:
        X = [embedder.transform([text]) for text in texts]
    assert len(caught) == 1 and calls
    np.testing.assert_array_equal(np.vstack(X), expected)
    n_calls = len(calls)
    for _ in range(3):  # nothing is stored, nothing is tried again
        embedder.transform(texts)
    assert len(calls) == n_calls


def test_reading_tidies_nothing_and_writes_nothing(folder, tmp_path, texts, monkeypatch):
    LLMLayerEmbedder(folder(), memory=tmp_path).fit_transform(texts)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in ("_tidy", "_write", "_evict"):
        monkeypatch.setattr(VectorStore, name, lambda *_, name=name: pytest.fail(name))
    for memory in (VectorStore(tmp_path), VectorStore(tmp_path, size_limit=1)):
        embedder = CountingEmbedder(folder(), memory=memory).fit(texts)
        embedder.transform(texts)
        embedder.transform(texts[:1])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert read_log(folder()) == (0, 0)


def test_a_copy_of_what_another_process_has_merged_is_dropped(store, monkeypatch):
    for i in range(8):
        fill(store, keys_of(i))
    real, others = shards.merge_shards, []

    def both(group, folder):
        others.append(real(group, folder))  # by the other one, which is a little faster
        mine = real(group, folder)
        for shard in group[:3]:
            shard.path.unlink()
        return mine

    monkeypatch.setattr(shards, "merge_shards", both)
    store._tidy()
    assert len(others) == 1
    assert len(shard_files(store)) == 6  # the other's copy, and five that it is about to remove
    assert_complete(store, keys_of(*range(8)))


@pytest.mark.parametrize("name", ["unlink", "remove"])
def test_what_cannot_be_removed_is_not_copied_again_and_again(store, monkeypatch, name):
    """As where another process holds the file open on Windows; the modes say nothing of it."""

    def refuse(path, *_, **__):
        raise PermissionError(1, "not yours", str(path))

    monkeypatch.setattr(os, name, refuse)
    for i in range(60):
        fill(store, keys_of(i))
        store._tidy()
    assert len(shard_files(store)) <= (60 + 60 / 7 if name == "unlink" else 16)
    # One that holds what no other does, which is then read whatever the order of files.
    held = {path: set(shards.open_shard(path).keys.tolist()) for path in shard_files(store)}
    path = next(
        path
        for path, keys in held.items()
        if keys - set().union(*(other for there, other in held.items() if there != path))
    )
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.warns(StoreWarning, match="1 damaged") as caught:
        for _ in range(3):
            read(store, keys_of(*range(60)))
    n_files = len(shard_files(store))
    for _ in range(3):
        read(store, keys_of(*range(60)))
    assert len(caught) == 1 and len(shard_files(store)) == n_files


# --- headers ----------------------------------------------------------------------------------

# fmt: off
STRANGE = [
    0, -1, 1, 2**31, 2**63, 10**400, 0.5, 1e300, True, None, "", "F64", "BF16", [], {}, [0, 0],
    [-150, -6], [150, 0], [0, 2**62], [5, 1], [[150], [6]], {"data_offsets": [0, 0]},
    [1] * 999, "nested",
]
# fmt: on


def rewritten(raw: bytes, changes: dict[tuple, object], sign: bool) -> bytes:
    """A shard with values of its header changed, signed anew as a forger would."""
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    for path, value in changes.items():
        place = header
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
    text = json.dumps(header, separators=(",", ":")).replace('"nested"', "[" * 50_000)
    if sign:
        digits = slice(len(shards._BEGIN), len(shards._BEGIN) + shards._DIGITS)
        text = text[: digits.start] + "0" * shards._DIGITS + text[digits.stop :]
        text = text[: digits.start] + shards._digest(text.encode()) + text[digits.stop :]
    return len(text).to_bytes(8, "little") + text.encode() + raw[8 + length :]


PLACES = [
    (name, *field)
    for name in ("keys", "truncated", "checksums", "1.mean")
    for field in [(), ("shape",), ("dtype",), ("data_offsets",), ("shape", 0), ("data_offsets", 1)]
]


@pytest.mark.parametrize("sign", [False, True])
@pytest.mark.parametrize("start", range(3))
def test_a_header_that_says_something_else_is_a_miss(store, start, sign):
    """Whatever a field says: nothing raises, no vector is wrong, no memory is taken for it."""
    keys = keys_of(*range(70))
    expected = values(keys)
    fill(store, keys)
    (path,) = shard_files(store)
    raw = path.read_bytes()
    for i, place in enumerate(PLACES):
        for value in STRANGE[(start + i) % 3 :: 3]:
            path.write_bytes(rewritten(raw, {place: value}, sign))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert store.info()["n_shards"] == 1
                store.verify()
                out, found = read(store, keys)
                there = ~found.missing
                np.testing.assert_array_equal(out[there], expected[there])
                assert len(caught) == (not there.all())
                store._tidy()
                read(store, keys)
            assert len(caught) <= 1  # repaired
            for left in shard_files(store):
                left.unlink()


@pytest.mark.parametrize("sign", [False, True])
def test_another_width_in_the_same_bytes_is_a_miss(store, sign):
    """Half as many numbers of twice the size: every field agrees with the file's size."""
    keys = keys_of(*range(70))
    changes = {("1.mean", "dtype"): "F32", ("1.mean", "shape"): [70, 3]}
    for i in range(9):
        fill(store, keys[7 * i : 7 * i + 7])
    fill(store, keys)
    path = max(shard_files(store), key=lambda path: path.stat().st_size)
    path.write_bytes(rewritten(path.read_bytes(), changes, sign))
    with pytest.warns(StoreWarning, match="width|damaged") as caught:
        out, found = read(store, keys)
    assert len(caught) == 1 and found.missing.sum() == 7
    np.testing.assert_array_equal(out[~found.missing], values(keys)[~found.missing])
    fill(store, keys)
    store.info(), store.verify(), store._tidy()
    assert_complete(store, keys)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_a_length_of_the_header_that_cannot_be(store, length):
    fill(store, keys_of(*range(100)))
    (path,) = shard_files(store)
    raw = path.read_bytes()
    path.write_bytes(length.to_bytes(8, "little") + raw[8:])
    os.truncate(path, 2**33)  # a sparse file: its size is no reason to take memory
    assert store.verify()["damaged"] == [str(path)]
    with pytest.warns(StoreWarning, match="1 damaged"):
        assert read(store, keys_of(1))[1].missing.all()
    assert not path.exists()


def test_a_header_changed_in_place_is_seen_though_the_time_is_put_back(store):
    fill(store, keys_of(*range(100)))
    (path,) = shard_files(store)
    assert_complete(store, keys_of(*range(100)))
    info, raw = path.stat(), path.read_bytes()
    with open(path, "r+b") as file:
        file.write(raw.replace(b"1.last", b"1.lost"))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert store.verify()["damaged"] == [str(path)]
    with pytest.warns(StoreWarning, match="1 damaged"):
        read(store, keys_of(*range(100)))


def test_a_shard_of_another_model_is_not_served(store, tmp_path):
    """Copied or moved by hand: the keys are the same texts, the vectors are not."""
    other = VectorStore(tmp_path)._scoped(OTHER, {})
    other._write(keys_of(1), np.zeros(1, bool), columns_of(values(keys_of(1)) + 1))
    (path,) = shard_files(other)
    store._folder().mkdir()
    (store._folder() / path.name).write_bytes(path.read_bytes())
    with pytest.warns(StoreWarning, match="another model's folder: it is ignored and left alone"):
        assert read(store, keys_of(1))[1].missing.all()
    assert store.info()["n_texts"] == 0 and len(shard_files(store)) == 2


# --- what happens while a store is read -------------------------------------------------------


def test_a_scan_of_the_folder_that_misses_a_merge_is_made_again(store, monkeypatch):
    """Made behind the scan, its parts removed before it: such a listing holds neither."""
    fill(store, keys_of(1, 2))
    real, calls = shards.list_files, []

    def late(folder, *names):
        calls.append(folder)
        return real(folder, *names) if len(calls) > 1 else []

    monkeypatch.setattr(shards, "list_files", late)
    assert_complete(store, keys_of(1, 2))


def test_a_disk_that_fails_half_way_keeps_what_is_known_of_a_text(store, monkeypatch):
    keys = keys_of(1, 2)
    store._write(keys, np.array([True, False]), columns_of(values(keys)))
    shards.RECENT.reset()
    real = shards.Shard._read_chunk

    def fail(self, file, column, number):
        if column == (1, "last"):
            raise OSError(5, "input/output error")
        return real(self, file, column, number)

    monkeypatch.setattr(shards.Shard, "_read_chunk", fail)
    _, found = read(store, keys)
    assert found.missing.all() and found.truncated.tolist() == [True, False]


@pytest.mark.parametrize("code", [24, 23, 5, 13, 116])  # EMFILE, ENFILE, EIO, EACCES, ESTALE
def test_what_cannot_be_read_now_is_a_miss_and_stays(store, monkeypatch, code):
    fill(store, keys_of(1))
    shards._open.cache_clear()

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert read(store, keys_of(1))[1].missing.all()
        store.info()
        store.verify()
        store._tidy()
        VectorStore(store.location, size_limit=1)._scoped(ONE, {})._tidy()
    assert_complete(store, keys_of(1))


def test_a_shard_that_vanishes_is_not_reported_as_damaged(store, monkeypatch):
    fill(store, keys_of(1))
    real = shards._parse

    def vanish(path, *rest):
        shard = real(path, *rest)
        path.unlink()  # another process has merged it
        return shard

    monkeypatch.setattr(shards, "_parse", vanish)
    assert store.verify() == {"n_shards": 0, "n_texts": 0, "damaged": []}


class TestWriter:
    def add(self, writer, *numbers, **change):
        keys = keys_of(*numbers)
        vectors = values(keys)
        for position, value in change.items():
            vectors[int(position[1:])] = value
        writer.add(keys, np.zeros(len(keys), bool), vectors)

    def test_publishes_also_when_the_pass_breaks_off(self, store):
        with pytest.raises(KeyboardInterrupt), Writer(store, COLUMNS) as writer:
            self.add(writer, 1, 2)
            raise KeyboardInterrupt
        assert_complete(store, keys_of(1, 2))

    def test_publishes_after_a_while_and_when_there_is_enough(self, store, monkeypatch):
        with Writer(store, COLUMNS) as writer:
            self.add(writer, 1)
            assert not shard_files(store)
            monkeypatch.setattr("skfusion.embed.store._FLUSH_SECONDS", 0.0)
            self.add(writer, 2)
            assert len(shard_files(store)) == 1
        monkeypatch.setattr("skfusion.embed.store._FLUSH_BYTES", 10)
        with Writer(store, COLUMNS) as writer:
            self.add(writer, 3)
            assert len(shard_files(store)) == 2

    def test_columns_that_are_not_finite_are_left_out(self, store):
        vectors = values(keys_of(1, 2))
        vectors[0, WIDTH] = np.inf  # column (1, "mean")
        with Writer(store, COLUMNS) as writer:
            writer.add(keys_of(1, 2), np.zeros(2, bool), vectors)
        assert read(store, keys_of(1, 2), [(1, "mean")])[1].missing.all()
        assert not read(store, keys_of(1, 2), [(0, "mean"), (1, "last")])[1].missing.any()

    @pytest.mark.parametrize("code", [28, 30, 13])  # ENOSPC, EROFS, EACCES
    def test_one_warning_when_it_cannot_write(self, store, monkeypatch, code):
        def fail(*_, **__):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "replace", fail)
        with (
            pytest.warns(StoreWarning, match=r"cannot be stored .*memory=") as caught,
            Writer(store, COLUMNS) as writer,
        ):
            for i in range(3):
                self.add(writer, i)
                writer.flush()
        assert len(caught) == 1
        assert not list(store._root().rglob("*.tmp"))

    def test_no_memory_for_storing_is_one_warning(self, store, monkeypatch):
        def fail(*_, **__):
            raise MemoryError

        monkeypatch.setattr(shards, "write_shard", fail)
        with (
            pytest.warns(StoreWarning, match="cannot be stored"),
            Writer(store, COLUMNS) as writer,
        ):
            self.add(writer, 1)

    def test_an_interrupt_is_not_lost_where_nothing_can_be_removed(self, store, monkeypatch):
        def interrupt(*_):
            raise KeyboardInterrupt

        def refuse(*_):
            raise PermissionError(30, "read-only")

        monkeypatch.setattr(os, "replace", interrupt)
        monkeypatch.setattr(os, "unlink", refuse)
        with pytest.raises(KeyboardInterrupt):
            fill(store, keys_of(1))

    def test_the_file_for_people_is_no_reason_to_store_nothing(self, store):
        store._folder().mkdir(parents=True)
        (store._folder() / "about.json").mkdir()
        fill(store, keys_of(1))
        assert_complete(store, keys_of(1))
        assert store.info()["models"][0]["n_texts"] == 1

    def test_nothing_to_write_makes_no_folder(self, store):
        with warnings.catch_warnings(), Writer(store, COLUMNS):
            pass
        assert not store._root().exists()


def test_files_of_killed_writers_are_removed_after_an_hour(store):
    fill(store, keys_of(1))
    folder = shard_files(store)[0].parent
    ours = [f"skfusion-{digit * 32}.tmp" for digit in "1234"]
    begin = shard_files(store)[0].read_bytes()[:80]
    for name, age, content in (
        (ours[0], 7200, begin),
        (ours[1], 7200, b""),  # killed before the first byte
        (ours[2], 60, begin),
        (ours[3], 7200, b"somebody else's"),
        (f"skfusion-{'5' * 32}.tmp", -7200, begin),  # the clock was put back
        ("old.tmp", 7200, begin),
    ):
        (folder / name).write_bytes(content)
        os.utime(folder / name, (time.time() - age,) * 2)
    store._tidy()
    assert sorted(path.name for path in folder.glob("*.tmp")) == ["old.tmp", *ours[2:]]
