"""Python code run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
#: What a process needs on its path: the tests' helpers and the package as it is here.
PYTHONPATH = os.pathsep.join([str(_TESTS), str(_TESTS.parent)])


def run_python(code: str, **env: str) -> str:
    """Run code in a new process and return what it prints; it must end well."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def is_loaded(module: str, given: object) -> bool:
    """Whether a module is loaded in the process to which something was sent."""
    return module in sys.modules
