"""The files of a saved model: what they may name, and checks before they are read."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from sklearn.base import BaseEstimator

from ._public import PARTS, PUBLIC

#: Classes of scikit-learn whose objects a model may hold, those derived from them too. By name,
#: as some are private.
_SKLEARN = re.compile(
    r"sklearn\.(base\.BaseEstimator|calibration\._CalibratedClassifier|gaussian_process\.kernels"
    r"\.Kernel|metrics\._scorer\._MultimetricScorer|neural_network\._stochastic_optimizers\."
    r"BaseOptimizer|utils\._metadata_requests\.(_MetadataRequester|(Method)?MetadataRequest))"
)
SCALARS = (type(None), bool, int, float, str)
_BUILTINS = {bool, int, float, complex, str, bytes, list, tuple, dict, set}


@cache
def _functions() -> dict[str, Any]:
    """Return functions of arrays by name; none of them reads a file or calls what it is given."""
    own = ("metrics", "metrics.pairwise", "feature_selection", "preprocessing")
    found = {}
    for module in ("numpy", "scipy.special", *(f"sklearn.{name}" for name in own)):
        for name, thing in vars(import_module(module)).items():
            ufunc = isinstance(thing, np.ufunc) and not module.startswith("sklearn")
            here = isinstance(thing, FunctionType) and thing.__module__.startswith(module)
            if not name.startswith("_") and (ufunc or (here and module.startswith("sklearn"))):
                found[f"{module}.{name}"] = thing
    return found


def name_of(thing: Any) -> str:
    """Name a class or function; by its public name wherever there is one."""
    for name, function in _functions().items():
        if function is thing:
            return name
    module = str(getattr(thing, "__module__", "<none>"))
    return f"{'skfusion' if module.startswith('skfusion.') else module}.{thing.__qualname__}"


def find(name: str) -> Any:
    """Find a class or function that a model may name, or None; nothing else is imported."""
    module, _, attribute = name.rpartition(".")
    if module == "skfusion":
        where = PARTS.get(attribute) or PUBLIC.get(attribute, "._public")
        found = getattr(import_module(where, __package__), attribute, None)
        estimator = isinstance(found, type) and issubclass(found, BaseEstimator)
        return found if attribute in PARTS or estimator else None
    found = vars(sys.modules.get(module, sys)).get(attribute)
    if not isinstance(found, type):
        return _functions().get(name)
    if module.startswith("sklearn.") and name_of(found) == name:
        bases = (f"{base.__module__}.{base.__qualname__}" for base in found.__mro__)
        return found if any(map(_SKLEARN.fullmatch, bases)) else None
    value = found in _BUILTINS or (module == "numpy" and issubclass(found, np.generic))
    return found if value else None


def is_compiled(thing: Any) -> bool:
    """Whether skops is the one to keep objects of a class, or what is no class."""
    own = isinstance(thing, type) and issubclass(thing, (BaseEstimator, np.ndarray))
    return not own and thing.__module__.partition(".")[0] in ("numpy", "scipy", "sklearn")


def is_plain(value: Any) -> bool:
    """Whether JSON keeps a value exactly, in one text instead of a node for each part."""
    if type(value) is list:
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and is_plain(part) for key, part in value.items())
    return type(value) in SCALARS


def flat(value: Any) -> Iterator[Any]:
    """Yield the values in nested lists and arrays."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = np.ma.getdata(value).tolist()
    if isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from flat(part)
    else:
        yield value


#: What skops may make by itself, and by which loaders it may make what the user trusts.
_MADE = re.compile(
    r"(DictNode builtins\.dict|ListNode builtins\.list|TupleNode builtins\.tuple|JsonNode builtins"
    r"\.str|TypeNode builtins\.(str|int)|NdArrayNode numpy\.(ndarray|bool_?|u?int\d+|float\d+)|"
    r"RandomStateNode numpy\.random\.mtrand\.RandomState|RandomGeneratorNode numpy\.random\."
    r"_generator\.Generator|LossNode sklearn\.(_loss\._loss|linear_model\._sgd_fast)\.\w+|"
    r"ObjectNode sklearn\._loss\.(loss|link)\.\w+)"
)
_TRUSTABLE = {"ObjectNode", "TreeNode", "FunctionNode", "ConstructorFromReduceNode"}


def publish(contents: dict[str, bytes], target: Path) -> None:
    """Write files into a folder that appears complete, in the place of an older one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".skfusion-", dir=target.parent) as work:
        new, old = Path(work) / "new", Path(work) / "old"
        new.mkdir()
        for name, content in contents.items():
            (new / name).write_bytes(content)
        if target.exists():
            os.rename(target, old)
        try:
            os.rename(new, target)
        except OSError:
            if old.exists():
                os.rename(old, target)
            raise


def contents(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read the files of a saved model; what else lies there is a sign of foul play."""
    for file in folder.iterdir():
        if file.name not in names:
            raise ValueError(
                f"it holds {file.name!r}, which skfusion.save does not write; if you know what it "
                f"is, move it away"
            )
        if file.is_symlink() or not file.is_file():
            raise ValueError(f"{file.name} is a link or no file, and save puts all in the folder")
    return {name: (folder / name).read_bytes() for name in names}


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all that skops would take for a node; the values of a dict are nodes, never text."""
    parts = [part]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if isinstance(part.get("__loader__"), str):
                yield part
            parts += part.values()
        elif isinstance(part, list):
            parts += part


def write(value: Any) -> bytes:
    """Write a value with skops, but without the numbers that change from time to time."""
    import skops.io

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of field names that are not Latin
        made = ZipFile(io.BytesIO(skops.io.dumps(value)))
    schema, files = json.loads(made.read("schema.json")), []
    for node in _nodes(schema):
        node.pop("__id__", None)
        if "file" in node:
            files.append(node["file"])
            node["file"] = str(len(files))
    content = io.BytesIO()
    with ZipFile(content, "w") as file:
        file.writestr(ZipInfo("schema.json"), json.dumps(schema))
        for i, name in enumerate(files, 1):
            file.writestr(ZipInfo(str(i)), made.read(name))
    return content.getvalue()


def check(content: bytes) -> set[str]:
    """Return the names that need trust; refuse what would be more than data, or larger."""
    import skops.io

    file, names = ZipFile(io.BytesIO(content)), set()
    sizes = {entry.filename: entry.file_size for entry in file.infolist()}
    stored = all(entry.compress_type == ZIP_STORED for entry in file.infolist())
    if not stored or sum(sizes.values()) > len(content):
        raise ValueError("the file would grow when it is read")
    for node in _nodes(json.loads(file.read("schema.json"))):
        # Some compiled modules of scikit-learn give a short name, under which they are known too.
        module = getattr(sys.modules.get(node["__module__"]), "__name__", node["__module__"])
        loader, name = node["__loader__"], f"{module}.{node['__class__']}"
        if not _MADE.fullmatch(f"{loader} {name}"):
            names.add(name)
            if loader not in _TRUSTABLE or find(name) is not None:
                raise ValueError(f"compiled objects hold a {name} in a {loader}")
        # What stood in two places could double at each of many levels.
        if "__id__" in node or node.get("type") == "json":
            raise ValueError(f"compiled objects hold a {name} that is shared or of objects")
        if "file" in node:
            size = sizes.pop(node["file"])  # it is read as often as it is named
            with file.open(node["file"]) as stream:
                version = 1 if np.lib.format.read_magic(stream) == (1, 0) else 2
                header = getattr(np.lib.format, f"read_array_header_{version}_0")(stream)
            if math.prod(header[0]) * max(header[2].itemsize, 1) > size:
                raise ValueError(f"an array of shape {header[0]} is not all there")
        if loader == "RandomGeneratorNode":
            pool = int(node["content"]["seed_seq"]["content"]["pool_size"]["content"])
            if pool > 64:
                raise ValueError(f"a random generator has a pool of {pool} numbers")
    return names | set(skops.io.get_untrusted_types(data=content))


def read(content: bytes, trusted: set[str]) -> Any:
    """Read what was checked."""
    import skops.io

    return skops.io.loads(content, trusted=sorted(trusted))
