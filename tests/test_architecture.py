"""The module boundaries of the design, read from the imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import skfusion

ROOT = Path(skfusion.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

COMMON = {"__future__", "joblib", "numpy", "sklearn", "skfusion"}
#: What each folder may import beside the standard library (design, section 2).
ALLOWED = {
    ".": COMMON,
    "embed": COMMON
    | {"huggingface_hub", "narwhals", "platformdirs", "safetensors", "torch", "tqdm"},
    "fusion": COMMON | {"array_api_compat", "narwhals", "scipy", "torch"},
    "neural": COMMON | {"scipy", "skorch", "torch", "tqdm"},
    "selection": COMMON | {"matplotlib", "optuna", "pandas", "scipy", "tqdm"},
    "inspection": COMMON | {"matplotlib", "pandas"},
    "saving": COMMON | {"safetensors", "scipy", "skops", "torch"},
}
#: Imported where they are used, so that `import skfusion` works without them or stays fast.
LATE = {"matplotlib", "optuna", "pandas", "skops"}
#: Where only one module may name a library.
ONLY = {"transformers": "embed/loading.py", "tqdm": "embed/encoding.py"}


def imports(path: Path) -> set[str]:
    """First names of all imports; relative ones as skfusion.folder."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_keep_to_the_design(path):
    import sys

    relative = path.relative_to(ROOT)
    allowed = ALLOWED[relative.parts[0] if len(relative.parts) > 1 else "."]
    extra = imports(path) - allowed - set(sys.stdlib_module_names)
    extra -= {name for name, module in ONLY.items() if module == relative.as_posix()}
    assert not extra


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_folders_depend_one_way(path):
    """embed knows nothing of fusion, fusion nothing of embed but the blocks handed to it."""
    relative = path.relative_to(ROOT)
    text = path.read_text(encoding="utf-8")
    if relative.parts[0] == "fusion":
        assert "from ..embed" not in text
    if relative.parts[0] == "embed" and relative.name != "union.py":
        assert "from ..fusion" not in text


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_optional_libraries_are_imported_late(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    names = {
        name.partition(".")[0]
        for node in ast.walk(top)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.level == 0
            else []
        )
    }
    assert not names & LATE


def test_every_public_name_has_a_docstring_with_an_example():
    for name in set(skfusion.__all__) - {"__version__"}:
        thing = getattr(skfusion, name)
        assert thing.__doc__
        if isinstance(thing, type) and not issubclass(thing, Warning):
            assert ">>>" in thing.__doc__, name
