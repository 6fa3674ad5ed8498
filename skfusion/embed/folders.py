"""What a folder or a hub repository holds, told by the names of its files.

And what sentence-transformers keeps beside a model: its limit, its prompts, its lower case.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")
_TOKENIZERS = (
    *("tokeniz*", "vocab*", "merges.txt", "tekken.json", "prophetnet.tokenizer", "bpe.codes"),
    *("*.model", "*.spm", "*.tiktoken", "*.vocab", "*.bpe", "added_tokens.json"),
)

#: What else may be in a place without a whole model: files, what they are, and what to do.
_WHOLE = "Give the model that it was made from, as save_pretrained writes it"
_OTHERS = (
    (
        ("adapter_config.json",),
        "an adapter (PEFT). Load it on its base model with peft and give both as a Backbone, or "
        "save the merged model (merge_and_unload, save_pretrained)",
    ),
    (
        ("model_index.json",),
        "a diffusers pipeline, whose parts are in folders. Give the text encoder with its "
        "tokenizer as a Backbone",
    ),
    (("openvino_*.xml",), f"a model for OpenVINO. {_WHOLE}"),
    (("*.onnx", "onnx/*.onnx"), f"a model for ONNX Runtime. {_WHOLE}"),
    (
        ("shared_vocabulary.*", "*_vocabulary.json", "vocabulary.txt", "vocabulary.json"),
        f"a model for CTranslate2. {_WHOLE}",
    ),
    (("weights*.npz",), f"a model for MLX. {_WHOLE}"),
    (("tf_model*", "*.h5", "saved_model.pb", "*.tflite"), f"weights for TensorFlow. {_WHOLE}"),
    (("flax_model*", "*.msgpack"), f"weights for Flax. {_WHOLE}"),
    (("rust_model.ot",), f"weights for Rust. {_WHOLE}"),
    (("*.mlmodel", "*.mlpackage"), f"a model for Core ML. {_WHOLE}"),
    (
        ("consolidated*", "params.json", "*.pth", "*.pt", "*.ckpt", "*.nemo"),
        f"a checkpoint in a form that transformers does not load. {_WHOLE}",
    ),
)


#: What a folder of a model holds.
MUST = "config.json, the weights and the tokenizer's files"


def _any(names: Collection[str], *patterns: str) -> bool:
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def _has_weights(names: Collection[str]) -> bool:
    here = [name for name in names if "/" not in name and not name.startswith("adapter_")]
    return _any(here, *_WEIGHTS)


def _is_whole(names: Collection[str]) -> bool:
    return "config.json" in names and _has_weights(names)


def describe(names: Collection[str]) -> str:
    """Say what files of these names are that are not one whole model, and what to do."""
    if "adapter_config.json" not in names and _is_whole(names):
        return ""
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf"))
    if ggufs:
        shown = ", ".join(ggufs[:5]) + (", ..." if len(ggufs) > 5 else "")
        return f"It holds GGUF files. Give the path of one of them on this machine. ({shown})"
    for patterns, what in _OTHERS:
        if _any(names, *patterns):
            return f"It holds {what}."
    if "config.json" in names:
        return "It holds config.json, but no weights (model.safetensors or pytorch_model.bin)."
    if _has_weights(names):
        return "It holds weights, but no config.json."
    inner = sorted({name.partition("/")[0] for name in names if name.endswith("/config.json")})
    return f"It holds folders of models: give one of {', '.join(inner[:5])}." if inner else ""


@dataclass(frozen=True)
class Place:
    """Where in a folder the model lies."""

    subfolder: str = ""
    gguf: str | None = None


def look_into(folder: str) -> Place:
    """Return where the model lies in a folder; an OSError says what it holds if not one model."""
    subfolder = transformer_folder(partial(existing, folder))
    if not existing(folder, os.path.join(subfolder, "config.json")):
        subfolder = ""
    folder = os.path.join(folder, subfolder)
    names = set(os.listdir(folder))
    if not _is_whole(names):
        ggufs = [name for name in names if name.lower().endswith(".gguf")]
        ggufs = [name for name in ggufs if not name.startswith("mmproj")]  # reads pictures
        if len(ggufs) == 1:
            return Place(subfolder, ggufs[0])
    if what := _trouble(folder, names):
        raise OSError(what)
    return Place(subfolder)


def _trouble(folder: str, names: Collection[str]) -> str:
    """Say why a folder is not one whole model; "" if it is."""
    if not _is_whole(names):
        below = [entry for entry in os.scandir(folder) if entry.is_dir()]
        inner = {entry.name: os.listdir(entry) for entry in below}
        if commits := sorted(inner.get("snapshots", [])):
            return (
                f"It is a folder of the hub's cache: give the model's hub id, or a snapshot such "
                f"as {os.path.join(folder, 'snapshots', commits[0])!r}."
            )
        config = existing(folder, "config.json")
        if config is not None and "pooling_mode" in Path(config).read_text(encoding="utf-8"):
            return "It holds the pooling of a sentence-transformers model alone."
        names = {*names, *(f"{name}/{file}" for name, files in inner.items() for file in files)}
        return describe(names) or f"It must hold {MUST}."
    if what := describe(names):
        return what
    if lost := _lost_shards(folder, names):
        return f"It lacks {len(lost)} of the files that its index names, such as {lost[0]!r}."
    if not _any(names, *_TOKENIZERS):
        return (
            "It holds no tokenizer (tokenizer.json and tokenizer_config.json). Save the model's "
            "own there with tokenizer.save_pretrained."
        )
    return ""


def existing(folder: str, name: str) -> str | None:
    """Return the path of a file in a folder, None where it is not there."""
    path = os.path.join(folder, name)
    return path if os.path.isfile(path) else None


def _lost_shards(folder: str, names: Collection[str]) -> list[str]:
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        # A whole file goes before the parts.
        if index in names and index.removesuffix(".index.json") not in names:
            parts = _json(os.path.join(folder, index)).get("weight_map")
            return sorted(set(parts.values()) - set(names)) if isinstance(parts, dict) else []
    return []


# --- sentence-transformers ---------------------------------------------------------------------


@dataclass(frozen=True)
class SentenceSettings:
    """What sentence-transformers does to texts before the model reads them."""

    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""


NO_SETTINGS = SentenceSettings()
_STATIC = frozenset({"BoW", "StaticEmbedding", "WordEmbeddings"})


#: Returns the path of a file by its name, None where there is none.
Read = Callable[[str], str | None]


def transformer_folder(read: Read) -> str:
    """Return the folder of the first part that modules.json names, "" where it has none."""
    path = read("modules.json")
    parts = [] if path is None else _json(path, list)
    first = parts[0] if parts and isinstance(parts[0], dict) else {}
    if str(first.get("type")).rpartition(".")[2] in _STATIC:
        raise OSError("It looks words up (static embeddings), and has no layers to choose from.")
    folder = str(first.get("path", ""))
    return folder if re.fullmatch(r"\w[\w.-]*", folder) else ""


def sentence_settings(read: Read, subfolder: str, model_type: str) -> SentenceSettings:
    """Return the limit, the case and the prompts that sentence-transformers keeps for a model."""
    before = f"{subfolder}/" if subfolder else ""
    names = ["sentence_bert_config.json", f"sentence_{model_type}_config.json"]
    paths = (read(before + name) for name in dict.fromkeys(names))
    path, prompts = next(filter(None, paths), None), read("config_sentence_transformers.json")
    own = {} if path is None else _json(path)
    shared = {} if prompts is None else _json(prompts)
    limit, named = own.get("max_seq_length"), shared.get("prompts") or {}
    default = shared.get("default_prompt_name")
    if not isinstance(named, dict):
        raise ValueError(f"{prompts}: prompts must be texts by their names; got {named!r}.")
    if default is not None and default not in named:
        raise ValueError(
            f"{prompts}: default_prompt_name is {default!r}, but there are the prompts "
            f"{sorted(named)}."
        )
    return SentenceSettings(
        max_length=limit if isinstance(limit, int) and limit > 0 else None,
        lower_case=bool(own.get("do_lower_case")),
        prompts={str(name): str(text or "") for name, text in named.items()},
        default_prompt=str(named.get(default) or ""),
    )


def _json(path: str, kind: type = dict) -> Any:
    """Return what a JSON file holds."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} must hold a JSON {kind.__name__}; got {content!r}.")
    return content
