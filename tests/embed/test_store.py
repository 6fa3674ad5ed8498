from __future__ import annotations

import os
import time
import warnings

import joblib
import numpy as np
import pytest
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
    shard_files,
    values,
)
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from skfusion import StoreWarning, VectorStore
from skfusion.embed import shards
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
    with open(path, "rb", buffering=0) as file:
        for i, column in enumerate(COLUMNS):
            got, good = shard.read(file, column, rows[hit])
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
    with open(damaged, "rb", buffering=0) as file:
        for i, column in enumerate(COLUMNS):
            if column in shard.columns:
                got, good = shard.read(file, column, rows)
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
        shard.read(Spy(file), (1, "last"), np.array([500]))
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
            self._replace([open_shard(p) for p in shard_files(self)])  # another process merges
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


@pytest.mark.parametrize(
    ("limit", "expected"), [("2K", 2048), ("1M", 2**20), (77, 77), (None, None)]
)
def test_size_limit_forms(limit, expected):
    assert VectorStore(size_limit=limit)._limit_bytes() == expected


def test_locations(tmp_path):
    memory = joblib.Memory(tmp_path / "joblib", verbose=0)
    assert VectorStore(memory)._root().parent == tmp_path / "joblib"
    assert VectorStore(str(tmp_path))._root() == VectorStore(tmp_path)._root()
    assert VectorStore(joblib.Memory(None))._root() == VectorStore()._root()


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
        ("old.tmp", 7200, begin),
    ):
        (folder / name).write_bytes(content)
        os.utime(folder / name, (time.time() - age,) * 2)
    store._tidy()
    assert sorted(path.name for path in folder.glob("*.tmp")) == ["old.tmp", *ours[2:]]
