from __future__ import annotations

import json
import os
import pickle
import platform
import subprocess
import sys
from pathlib import Path

import joblib
import pytest
from _support.processes import PYTHONPATH, is_loaded, run_python

from skfusion import LLMLayerEmbedder
from skfusion.embed import session


def _where() -> tuple[str, int]:
    return str(session.session_folder()), os.getpid()


def test_workers_use_the_folder_of_their_parent():
    own = session.session_folder()
    found = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(_where)() for _ in range(2))
    assert {path for path, _ in found} == {str(own)}
    assert os.getpid() not in {pid for _, pid in found}


@pytest.mark.slow
def test_forked_and_forkserver_workers_too():
    import multiprocessing

    own = session.session_folder()
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(_where)[0] == str(own)


def test_only_the_user_can_read_it_and_it_is_gone_at_exit():
    code = """
import json, os
from skfusion.embed.session import session_folder
path = session_folder()
assert path == session_folder()
print(json.dumps([str(path), os.stat(path).st_mode & 0o777]))
"""
    path, mode = json.loads(run_python(code))
    assert mode == 0o700
    assert not Path(path).exists()


def test_what_dead_processes_left_is_removed():
    code = """
import os
from skfusion.embed import session
left = session._path(2**22 - 3)
left.mkdir(mode=0o700, exist_ok=True)
other = session._path(os.getppid())
existed = other.exists()
session.session_folder()
print(left.exists(), other.exists() == existed)
"""
    assert run_python(code).split() == ["False", "True"]


def test_the_same_process_id_on_another_host_is_another_folder(monkeypatch):
    """Containers that share /tmp all have a process 1, and see nothing of each other's."""
    own = session._path(os.getpid())
    other = other_host(monkeypatch, os.getpid())
    gone = other_host(monkeypatch, 2**22 - 5)
    try:
        assert own != other and session._path(os.getpid()) == own
        session._remove_abandoned()
        assert other.exists() and gone.exists()
    finally:
        for path in {other, gone} - {own}:
            path.rmdir()


def other_host(monkeypatch: pytest.MonkeyPatch, pid: int) -> Path:
    """The folder of a process there, made."""
    with monkeypatch.context() as patch:
        patch.setattr(platform, "node", lambda: "another")
        session._where.cache_clear()
        path = session._path(pid)
        path.mkdir(mode=0o700, exist_ok=True)
    session._where.cache_clear()
    return path


@pytest.mark.slow
def test_containers_that_share_a_folder(tmp_path):
    """Two processes with the same id, each in a namespace of its own, at the same time."""
    code = """
import os, sys
from skfusion.embed import session
print(os.getpid(), session.session_folder(), flush=True)
sys.stdin.read()
"""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        running = [subprocess.Popen(inside, env=env, text=True, **pipes) for _ in range(2)]
    except FileNotFoundError:
        pytest.skip("no unshare here")
    first, second = ([*process.stdout.readline().split()] for process in running)
    there = [os.path.exists(path) for _, path in filter(None, (first, second))]
    errors = [process.communicate()[1] for process in running]
    if not first or not second:
        pytest.skip(f"no namespaces for this user: {errors}")
    assert first[0] == second[0] and first[1] != second[1] and there == [True, True]
    assert not os.listdir(tmp_path)  # both gone at exit


def test_a_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert not session._is_ours(open_to_all)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert not session._is_ours(link)
    assert not session._is_ours(tmp_path / "absent")


def test_the_path_is_no_part_of_a_pickle():
    embedder = LLMLayerEmbedder("some/model")
    assert str(session.session_folder()).encode() not in pickle.dumps(embedder)


def test_a_worker_has_torch_before_its_first_task_ends():
    """Its memory would grow by 300 MB in a later one, which loky takes for a leak."""
    jobs = (joblib.delayed(is_loaded)("torch", LLMLayerEmbedder("nowhere")) for _ in range(2))
    assert joblib.Parallel(n_jobs=2)(jobs) == [True, True]
