"""The floors of the design, held against every import: relative ones and late ones too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skfusion

ROOT = Path(skfusion.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

#: A place imports from places on lower floors only, and from itself (design, section 2).
FLOORS = {
    "_blocks": 0,
    "_public": 0,
    "_tables": 0,
    "_targets": 0,
    "_boundaries": 1,
    "_files": 1,
    "linear": 1,
    "embed": 2,
    "fusion": 2,
    "neural": 3,
    "inspection": 4,
    "selection": 5,
    "recipe": 6,
    "saving": 6,
    "__init__": 7,
    "__main__": 9,
    "cli": 8,
}
COMMON = {"joblib", "numpy", "sklearn"}
#: What each place may import beside the standard library.
ALLOWED = {
    "_blocks": COMMON | {"scipy"},
    "_public": set(),
    "_tables": {"pyarrow"},
    "_targets": COMMON | {"scipy"},
    "_files": COMMON | {"skops"},
    "_boundaries": COMMON | {"narwhals"},
    "linear": COMMON | {"scipy"},
    "embed": COMMON | {"huggingface_hub", "narwhals", "platformdirs", "torch"},
    "fusion": COMMON | {"array_api_compat", "scipy"},
    "neural": COMMON | {"scipy", "skorch", "torch", "tqdm"},
    "inspection": COMMON | {"matplotlib", "pandas", "scipy"},
    "selection": COMMON | {"matplotlib", "optuna", "pandas", "scipy", "tqdm"},
    "recipe": COMMON,
    "saving": COMMON | {"scipy", "torch"},
    "cli": {"numpy", "platformdirs", "sklearn", "typer"},
}
#: Imported where they are used, so that the package works without them or starts fast.
LATE = {"matplotlib", "optuna", "pandas", "pyarrow", "scikit_posthocs", "skops", "transformers"}
#: What one module alone may name in its place.
ONLY = {
    "embed/loading.py": {"transformers"},
    "inspection/displays/ranks.py": {"scikit_posthocs"},
    "embed/encoding.py": {"tqdm"},
    "fusion/supervised.py": {"threadpoolctl", "torch"},
}


def place(module: str) -> str:
    """Return the place of a dotted name within the package, "" being its `__init__`."""
    return module.partition(".")[0] or "__init__"


def imports(path: Path, tree: ast.AST) -> Iterator[str]:
    """Yield the full dotted name of everything imported at any level of a module."""
    package = ("skfusion", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            parts = [*base, *filter(None, [node.module])]
            # `from .. import x` and `from skfusion import x` import a module of the package, or
            # a public name.
            bare = parts == ["skfusion"]
            yield from ([f"skfusion.{a.name}" for a in node.names] if bare else [".".join(parts)])


def own_and_foreign(path: Path, tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the places of the package and the other libraries that a module imports."""
    own, foreign = set(), set()
    for name in imports(path, tree):
        first, _, rest = name.partition(".")
        if first != "skfusion":
            foreign.add(first)
        else:
            own.add(place(rest) if place(rest) in FLOORS else "__init__")
    return own, foreign - set(sys.stdlib_module_names)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def floor_errors(path: Path, tree: ast.AST) -> list[str]:
    here = place(".".join(path.relative_to(ROOT).with_suffix("").parts))
    own, _ = own_and_foreign(path, tree)
    return [there for there in own - {here} if FLOORS[there] >= FLOORS[here]]


each_module = pytest.mark.parametrize(
    "path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix()
)


@each_module
def test_a_floor_imports_only_from_floors_below_it(path):
    assert not floor_errors(path, parse(path))


@pytest.mark.parametrize(
    "code",
    [
        "from ..selection.spaces import x",
        "from ..selection import spaces",
        "from .. import selection",
        "import skfusion.selection.spaces",
        "from skfusion.fusion.operators import mean",
        "from skfusion import FusionTransformer",
        "def f():\n    from ..neural.base import x",
        "if TYPE_CHECKING:\n    from ..inspection.cost import x",
    ],
)
def test_an_import_that_climbs_is_seen(code):
    assert floor_errors(ROOT / "embed" / "embedder.py", ast.parse(code))


@each_module
def test_other_libraries_stay_in_their_places(path):
    relative = path.relative_to(ROOT)
    here = place(".".join(relative.with_suffix("").parts))
    _, foreign = own_and_foreign(path, parse(path))
    assert not foreign - ALLOWED.get(here, set()) - ONLY.get(relative.as_posix(), set())


@each_module
def test_optional_libraries_are_imported_late(path):
    top = [n for n in parse(path).body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert not own_and_foreign(path, ast.Module(top, []))[1] & LATE


def test_every_public_name_has_a_docstring_with_an_example():
    for name in set(skfusion.__all__) - {"__version__"}:
        thing = getattr(skfusion, name)
        assert thing.__doc__
        if isinstance(thing, type) and not issubclass(thing, Warning):
            assert ">>>" in thing.__doc__, name
