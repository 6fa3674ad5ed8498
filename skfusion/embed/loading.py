"""From a hub id, folder or GGUF file to a `Backbone`: the only file that names transformers.

`resolve` finds out what a model is without its weights; `load` brings them.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .backbone import Backbone, Source, position_limit, shape
from .digests import cache_folder, file_digest, folder_digest

_DTYPES = ("float32", "bfloat16", "float16", "float64")

# --- what is known without weights -----------------------------------------------------------

_RESOLVED: dict[tuple[Any, ...], Source] = {}


def resolve(
    model: str | os.PathLike[str] | Backbone,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Source:
    """Find out which model is meant, its depth and width, reading its config alone.

    Parameters
    ----------
    model : str, path-like or Backbone
        Hub id, folder, GGUF file, or a model in memory.
    revision : str or None, default=None
        Branch, tag or commit of a hub id.
    trust_remote_code : bool, default=False
        Passed to transformers.

    Returns
    -------
    Source
        Its `identity` changes whenever a weight or the tokenizer does.

    Raises
    ------
    OSError
        If there is no such model, or it cannot be reached.
    ValueError
        If its config does not say how many layers it has.
    """
    if isinstance(model, Backbone):
        return model.source()
    path = os.fspath(model)
    if path.lower().endswith(".gguf"):
        return _resolve_gguf(path)
    local = os.path.isdir(path)
    # A hub id stays at the commit that this process saw first; a folder is looked at each time.
    identity = f"folder:{folder_digest(path)}" if local else ""
    key = (path, identity, revision, trust_remote_code)
    if key not in _RESOLVED:
        config = _config(path, revision=revision, trust_remote_code=trust_remote_code)
        commit = None if local else getattr(config, "_commit_hash", None)
        if not local:
            identity = f"hub:{path}@{commit or _snapshot_digest(path, revision)}"
        _RESOLVED[key] = replace(
            _source(path, path, identity, config),
            revision=commit or revision,
            trust_remote_code=trust_remote_code,
        )
    return _RESOLVED[key]


def _resolve_gguf(path: str) -> Source:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no GGUF file {path!r}. Check the path.")
    digest = file_digest(path)
    key = (path, digest)
    if key not in _RESOLVED:
        converted = cache_folder() / "gguf" / digest
        if converted.is_dir():
            config = _config(str(converted))
        else:
            folder, name = os.path.split(os.path.abspath(path))
            config = _config(folder, gguf_file=name)
        source = _source(path, str(converted), f"gguf:{digest}", config)
        # The conversion is dequantised in float32, whatever the file's config says.
        _RESOLVED[key] = replace(source, gguf=path, saved_dtype="float32")
    return _RESOLVED[key]


def _source(name: str, location: str, identity: str, config: Any) -> Source:
    try:
        n_layers, width = shape(config)
    except ValueError as error:
        raise ValueError(f"Cannot embed with {name!r}: {error}") from None
    positions, fixed = position_limit(config)
    saved = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return Source(
        name=name,
        location=location,
        identity=identity,
        n_layers=n_layers,
        width=width,
        max_positions=positions,
        fixed_positions=fixed,
        saved_dtype=saved if saved in _DTYPES else "float32",
    )


def _config(location: str, **options: Any) -> Any:
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(location, **options)
    except ImportError as error:
        if options.get("gguf_file"):
            raise ImportError(
                "Reading GGUF files needs the packages gguf and accelerate: "
                "pip install 'skfusion[gguf]'"
            ) from error
        raise
    except (OSError, ValueError) as error:
        raise _not_loaded(location, options.get("revision"), error) from error


def _not_loaded(location: str, revision: str | None, error: Exception) -> OSError:
    at = f" at revision {revision!r}" if revision else ""
    if os.path.isdir(location):
        hint = "The folder must hold config.json, the weights and the tokenizer's files."
    else:
        hint = (
            "It is neither a folder nor a .gguf file here, so it was looked up on the Hugging "
            "Face hub. Check the spelling, the revision, the network, access to a gated model, "
            "and HF_HUB_OFFLINE, with which only models already in the hub's cache are found."
        )
    reason = str(error).strip().splitlines()
    return OSError(
        f"Cannot load model {location!r}{at}. {hint} ({reason[0] if reason else error})"
    )


def _snapshot_digest(name: str, revision: str | None) -> str:
    """Identify a hub model whose commit is unknown by what was downloaded."""
    from huggingface_hub import snapshot_download

    return folder_digest(snapshot_download(name, revision=revision, local_files_only=True))


# --- loading ---------------------------------------------------------------------------------

# The model used last stays loaded, so that the clones of a search do not load it again.
_LOADED: OrderedDict[tuple[str, ...], Backbone] = OrderedDict()
_KEEP_LOADED = 1
_LOAD_LOCK = threading.Lock()


def resolve_device(device: Any) -> str:
    """Name the device: cuda, mps, cpu in that order where none is asked for."""
    import torch

    if device is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if device == "auto":
        return "auto"
    try:
        return str(torch.device(device))
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device must be None, 'auto' or a torch device such as 'cpu', 'cuda:0' or 'mps'; "
            f"got {device!r}."
        ) from error


def resolve_dtype(dtype: Any, device: str, saved: str) -> str:
    """Name the dtype to compute in: float32 on a CPU, bfloat16 on a GPU that has it."""
    import torch

    if dtype is None:
        on_gpu = torch.cuda.is_available() and (device == "auto" or device.startswith("cuda"))
        return "bfloat16" if on_gpu and torch.cuda.is_bf16_supported() else "float32"
    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        return saved
    if name not in _DTYPES:
        raise ValueError(
            f"dtype must be None, 'auto', one of {', '.join(_DTYPES)} or a torch dtype of that "
            f"name; got {dtype!r}."
        )
    return name


def load(source: Source, *, device: str, dtype: str, attn_implementation: str | None) -> Backbone:
    """Load weights and tokenizer, or give the model that is loaded already.

    Parameters
    ----------
    source : Source
        From `resolve`.
    device, dtype : str
        From `resolve_device` and `resolve_dtype`.
    attn_implementation : str or None
        Passed to transformers.

    Returns
    -------
    Backbone
        In evaluation mode, on the device.

    Raises
    ------
    OSError
        If the model cannot be found or reached.
    ValueError
        If the checkpoint lacks weights of the model's body, or a folder's content is no longer
        what `source` describes.
    """
    key = (source.identity, device, dtype, attn_implementation or "")
    with _LOAD_LOCK:
        if key not in _LOADED:
            while len(_LOADED) >= _KEEP_LOADED:
                _LOADED.popitem(last=False)
            folder = _converted(source) if source.gguf else source.location
            if source.identity.startswith("folder:"):
                _check_unchanged(source)
            _LOADED[key] = _load(source, folder, device, dtype, attn_implementation)
        _LOADED.move_to_end(key)
        return _LOADED[key]


def release() -> None:
    """Let go of the loaded model, whose memory is freed once no pass uses it."""
    with _LOAD_LOCK:
        _LOADED.clear()


def _check_unchanged(source: Source) -> None:
    if f"folder:{folder_digest(source.location)}" != source.identity:
        raise ValueError(
            f"The files in {source.location!r} have changed since fit, so that new vectors would "
            f"not agree with the old ones. Call fit again."
        )


def _load(source: Source, folder: str, device: str, dtype: str, attention: str | None) -> Backbone:
    import torch
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"trust_remote_code": source.trust_remote_code}
    if source.revision:
        options["revision"] = source.revision
    config = _config(folder, **options)
    if device == "auto":
        options["device_map"] = "auto"
    elif getattr(config, "quantization_config", None) is not None:
        options["device_map"] = {"": device}  # a quantised model must not be moved with .to
    if attention is not None:
        options["attn_implementation"] = attention
    try:
        with quiet():
            model, info = _auto_class(config).from_pretrained(
                folder,
                config=config,
                dtype=getattr(torch, dtype),
                output_loading_info=True,
                **options,
            )
            tokenizer = AutoTokenizer.from_pretrained(
                folder,
                **{k: options[k] for k in ("trust_remote_code", "revision") if k in options},
            )
    except OSError as error:
        raise _not_loaded(source.name, source.revision, error) from error
    absent = [name for name in info["missing_keys"] if "pooler" not in name]
    if absent:
        raise ValueError(
            f"The checkpoint {source.name!r} lacks {len(absent)} weights of the model's body, for "
            f"example {sorted(absent)[0]!r}: its vectors would be random. Check that the folder "
            f"holds a whole model of type {config.model_type!r}."
        )
    model = model.eval()
    return Backbone(model if "device_map" in options else model.to(device), tokenizer)


def _auto_class(config: Any) -> Any:
    """Take the encoder class of a T5 kind of model, so that its decoder is never loaded."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

    if config.model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return transformers.AutoModelForTextEncoding
    return transformers.AutoModel


def _converted(source: Source) -> str:
    """Dequantise a GGUF file once; loading the copy is 5 to 20 times faster."""
    if os.path.isdir(source.location):
        return source.location
    import torch
    from transformers import AutoModel, AutoTokenizer, GgufConfig

    assert source.gguf is not None
    digest = file_digest(source.gguf)
    if f"gguf:{digest}" != source.identity:
        raise ValueError(f"The file {source.gguf!r} has changed since fit. Call fit again.")
    folder, name = os.path.split(os.path.abspath(source.gguf))
    target = cache_folder() / "gguf" / digest  # a saved source could name any place
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        # The bar of the conversion obeys none of the switches, so it is written to nowhere.
        with quiet(), contextlib.redirect_stderr(io.StringIO()):
            model = AutoModel.from_pretrained(
                folder,
                gguf_file=name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
            )
            # Without these the copy would be loaded as a quantised model.
            if hasattr(model.config, "quantization_config"):
                del model.config.quantization_config
            model.hf_quantizer, model.is_quantized = None, False
            model.save_pretrained(temporary)
            AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(temporary)
        # Another process may have been faster; its copy is the same.
        with contextlib.suppress(OSError):
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return str(target)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers and the hub, keep the random state, and put all back afterwards."""
    import torch
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bar = not are_progress_bars_disabled()
    # Building a model draws its initial weights before the saved ones replace them.
    with torch.random.fork_rng():
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        disable_progress_bars()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bar:
                logging.enable_progress_bar()
            (enable_progress_bars if hub_bar else disable_progress_bars)()
