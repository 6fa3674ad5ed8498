"""The lower bounds in pyproject.toml and .ci/constraints-oldest.txt name the same releases."""

from __future__ import annotations

import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    extra: [Requirement(line) for line in lines]
    for extra, lines in PROJECT["optional-dependencies"].items()
}
DIRECT = [Requirement(line) for line in PROJECT["dependencies"]]
#: Older builds of torch for CPUs alone are not on PyPI.
ONE_BUILD = {"torch"}


def pinned(name: str) -> dict[str, Version]:
    """Read the releases that a file of constraints pins."""
    lines = [line.strip() for line in (ROOT / ".ci" / name).read_text().splitlines()]
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found = {}
    for pin in pins:
        (specifier,) = pin.specifier
        assert specifier.operator == "==", pin
        found[canonicalize_name(pin.name)] = Version(specifier.version)
    assert len(found) == len(pins)
    return found


def lowest(requirement: Requirement) -> Version:
    (specifier,) = requirement.specifier
    assert specifier.operator == ">=", requirement
    return Version(specifier.version)


def test_the_oldest_set_is_the_lower_bounds():
    bounds = {canonicalize_name(r.name): lowest(r) for r in [*DIRECT, *EXTRAS["test"]]}
    oldest = pinned("constraints-oldest.txt")
    latest = pinned("constraints.txt")
    for name in ONE_BUILD:
        assert bounds.pop(name) <= oldest[name] == latest[name]
        del oldest[name]
    assert oldest == bounds


def test_a_requirement_has_one_lower_bound():
    bounds: dict[str, set[Version]] = {}
    for requirement in chain(DIRECT, *EXTRAS.values()):
        bounds.setdefault(canonicalize_name(requirement.name), set()).add(lowest(requirement))
    assert not {name: found for name, found in bounds.items() if len(found) > 1}


@pytest.mark.parametrize("extra", ["cli", "gguf", "optuna", "plot", "stats"])
def test_the_tests_use_what_an_extra_names(extra):
    names = [{canonicalize_name(r.name) for r in EXTRAS[key]} for key in (extra, "test")]
    assert names[0] <= names[1]


def test_the_tested_releases_are_allowed():
    latest = pinned("constraints.txt")
    for requirement in [*DIRECT, *EXTRAS["test"]]:
        assert latest[canonicalize_name(requirement.name)] in requirement.specifier
