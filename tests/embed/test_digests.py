from __future__ import annotations

import os
from pathlib import Path

import pytest
from _support import tiny
from _support.processes import run_python

from skfusion.embed import digests
from skfusion.embed.digests import file_digest, folder_digest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SKFUSION_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "_REMEMBERED", {})


def test_written_files_are_digested_again_even_with_their_times_restored(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"one")
    stat = path.stat()
    first = file_digest(path)
    assert file_digest(path) == first
    path.write_bytes(b"two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file_digest(path) != first


def test_the_next_process_need_not_read_the_file(tmp_path, monkeypatch):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"one")
    first = file_digest(path)
    monkeypatch.setattr(digests, "_REMEMBERED", {})
    monkeypatch.setattr("hashlib.file_digest", None)
    assert file_digest(path) == first


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"key": 1, "digest": 2}', "not json"])
def test_damaged_records_are_ignored(tmp_path, monkeypatch, content):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"one")
    first = file_digest(path)
    for record in (tmp_path / "cache" / "digests").iterdir():
        record.write_text(content)
    monkeypatch.setattr(digests, "_REMEMBERED", {})
    assert file_digest(path) == first


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SKFUSION_CACHE", str(tmp_path / "file" / "below"))
    path = tmp_path / "weights.bin"
    path.write_bytes(b"one")
    assert len(file_digest(path)) == 64


def test_folders_count_by_content_not_by_name(tmp_path):
    one, two = (tiny.save_folder(tmp_path / name) for name in ("one", "two"))
    assert folder_digest(one) == folder_digest(two)
    (two / "README.md").write_text("beside the point")
    assert folder_digest(one) == folder_digest(two)
    (two / "modeling.py").write_text("x = 1")
    assert folder_digest(one) != folder_digest(two)


def test_the_default_is_the_users_cache_folder():
    code = "from skfusion.embed.digests import cache_folder; print(cache_folder())"
    assert Path(run_python(code, SKFUSION_CACHE="").strip()).name == "skfusion"
