"""From a hub id, folder or GGUF file to a `Backbone`: the only file that names transformers.

`resolve` finds out what a model is without its weights; `load` brings them.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import re
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .backbone import Backbone, Source, position_limit, shape
from .digests import cache_folder, file_digest, folder_digest

_DTYPES = ("float32", "bfloat16", "float16", "float64")

#: Keys of `model_kwargs` that are set elsewhere, mean another model, write files or run code, by
#: what to use instead.
_REFUSED = {
    "the parameter dtype": ("dtype", "torch_dtype"),
    "the parameter device": ("device", "device_map", "device_mesh", "tp_plan"),
    "the parameter revision": ("revision", "code_revision"),
    "the parameter trust_remote_code": ("trust_remote_code",),
    "the parameter model": ("pretrained_model_name_or_path", "gguf_file"),
    "the hub's environment variables (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE)": (
        *("cache_dir", "force_download", "local_files_only", "proxies"),
        *("token", "use_auth_token"),
    ),
    "a Backbone, for a model that you load yourself": (
        *("adapter_kwargs", "config", "key_mapping", "offload_folder", "output_loading_info"),
        *("state_dict", "subfolder", "use_safetensors", "weights_only"),
        *("allow_all_kernels", "kernel_config", "use_kernels"),
    ),
}

# --- what is known without weights -----------------------------------------------------------

_RESOLVED: dict[tuple[Any, ...], Source] = {}


def resolve(
    model: str | os.PathLike[str] | Backbone,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Source:
    """Return which model is meant, its depth and width, reading its config alone."""
    if isinstance(model, Backbone):
        return model._source()
    path = os.fspath(model)
    if path.lower().endswith(".gguf"):
        return _resolve_gguf(path)
    local = os.path.isdir(path)
    # A hub id stays at the commit that this process saw first; a folder is looked at each time.
    identity = f"folder:{folder_digest(path)}" if local else ""
    key = (path, identity, revision, trust_remote_code)
    if key not in _RESOLVED:
        config = _config(path, revision=revision, trust_remote_code=trust_remote_code)
        if not local:
            revision = _commit(path, revision)
            identity = f"hub:{path}@{revision}"
        more: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        _RESOLVED[key] = _source(path, path, identity, config, **more)
    return _RESOLVED[key]


def resolve_again(
    identity: str, model: Any, *, revision: str | None, trust_remote_code: bool
) -> Source:
    """Return the model of the parameters, which must be the one that `fit` saw.

    Nothing is opened that only a fitted state names; a hub id stays at the commit of `fit`.
    """
    name, _, commit = identity.rpartition("@")
    same_id = not isinstance(model, Backbone) and name == f"hub:{os.fspath(model)}"
    if same_id and re.fullmatch("[0-9a-f]{40}", commit):
        revision = commit
    source = resolve(model, revision=revision, trust_remote_code=trust_remote_code)
    if source.identity != identity:
        raise ValueError(
            f"{model!r} is not the model, or no longer has the weights and files, with which this "
            f"embedder was fitted: it has changed since fit, so that new vectors would not agree "
            f"with the old ones. Call fit again. A Backbone also has its adapters, attributes and "
            f"forward hooks; one with functions of your own is another model in each process."
        )
    return source


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
        _RESOLVED[key] = _source(path, str(converted), f"gguf:{digest}", config, gguf=path)
    return _RESOLVED[key]


def _source(name: str, location: str, identity: str, config: Any, **more: Any) -> Source:
    try:
        n_layers, width = shape(config)
    except ValueError as error:
        raise ValueError(f"Cannot embed with {name!r}: {error}") from None
    positions, fixed = position_limit(config)
    saved = str(getattr(config, "dtype", None)).removeprefix("torch.")
    return Source(
        name=name,
        location=location,
        identity=identity,
        n_layers=n_layers,
        width=width,
        max_positions=positions,
        fixed_positions=fixed,
        # A GGUF file's conversion is dequantised in float32, whatever its config says.
        saved_dtype=saved if saved in _DTYPES and "gguf" not in more else "float32",
        **more,
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


def _commit(name: str, revision: str | None) -> str:
    """Return the commit of a hub model whose config was read; not every transformers says it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(found, str):
        raise _not_loaded(name, revision, OSError("its config.json is not in the hub's cache"))
    return Path(found).parent.name


# --- loading ---------------------------------------------------------------------------------

# The model used last stays loaded, so that the clones of a search do not load it again.
_LOADED: OrderedDict[tuple[str, ...], Backbone] = OrderedDict()
_KEEP_LOADED = 1
_LOAD_LOCK = threading.Lock()


def resolve_device(device: Any) -> str:
    """Return the device's name: cuda, mps, cpu in that order where none is asked for."""
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
    """Return the dtype to compute in: float32 on a CPU, bfloat16 on a GPU that has it."""
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


def describe_kwargs(
    model_kwargs: Mapping[str, Any] | None, trust_remote_code: bool
) -> dict[str, Any] | None:
    """Return checked `model_kwargs` as plain values that are the same in every process."""
    model_kwargs = model_kwargs or {}
    for instead, keys in _REFUSED.items():
        for key in model_kwargs.keys() & set(keys):
            raise ValueError(f"model_kwargs cannot hold the key {key!r}. Use {instead}.")
    described = {key: _describe(value, key) for key, value in model_kwargs.items()}
    attention = described.get("attn_implementation")
    if "/" in str(attention) and not trust_remote_code:
        raise ValueError(
            f"model_kwargs={{'attn_implementation': {attention!r}}} runs code from the hub. If "
            f"you trust it, set trust_remote_code=True; otherwise use 'eager' or 'sdpa'."
        )
    return described or None


def _describe(value: Any, key: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return str.__str__(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return {str(k): _describe(v, key) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_describe(entry, key) for entry in value]
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
        return str(value)
    if hasattr(value, "to_dict") and not isinstance(value, type):  # a quantisation config
        return {"class": type(value).__qualname__, **_describe(value.to_dict(), key)}
    raise TypeError(
        f"model_kwargs[{key!r}] holds {value!r}, of which it cannot be said in another process "
        f"whether it is the same. Use plain values, lists, dicts, torch dtypes and objects with "
        f"to_dict(), or load the model yourself and give it as a Backbone."
    )


def load(
    source: Source, *, device: str, dtype: str, model_kwargs: Mapping[str, Any] | None = None
) -> Backbone:
    """Load weights and tokenizer, or return the model that is loaded already."""
    described = describe_kwargs(model_kwargs, source.trust_remote_code)
    key = (source.identity, device, dtype, str(described))
    with _LOAD_LOCK:
        if key not in _LOADED:
            while len(_LOADED) >= _KEEP_LOADED:
                _LOADED.popitem(last=False)
            folder = _converted(source) if source.gguf else source.location
            _LOADED[key] = _load(source, folder, device, dtype, model_kwargs or {})
        _LOADED.move_to_end(key)
        return _LOADED[key]


def release() -> None:
    """Let go of the loaded model, whose memory is freed once no pass uses it."""
    with _LOAD_LOCK:
        _LOADED.clear()


def _load(
    source: Source, folder: str, device: str, dtype: str, model_kwargs: Mapping[str, Any]
) -> Backbone:
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

    options: dict[str, Any] = {"trust_remote_code": source.trust_remote_code}
    if source.revision:
        options["revision"] = source.revision
    config = _config(folder, **options)
    own = getattr(config, "quantization_config", None)
    placed: dict[str, Any] = {}
    if device == "auto":
        placed = {"device_map": "auto"}
    elif own is not None or model_kwargs.get("quantization_config") is not None:
        placed = {"device_map": {"": device}}  # a quantised model must not be moved with .to
    # The encoder class of a T5 kind of model, so that its decoder is never loaded.
    encoder = config.model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
    cls = transformers.AutoModelForTextEncoding if encoder else transformers.AutoModel
    try:
        with quiet():
            model, info = cls.from_pretrained(
                folder,
                config=config,
                dtype=getattr(torch, resolve_dtype(dtype, device, dtype)),
                output_loading_info=True,
                **copy.deepcopy(dict(model_kwargs)),  # transformers writes into configs
                **options,
                **placed,
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
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
    return Backbone(model if placed else model.to(device), tokenizer)


def _converted(source: Source) -> str:
    """Dequantise a GGUF file once; loading the copy is 5 to 20 times faster."""
    if os.path.isdir(source.location):
        return source.location
    import torch
    from transformers import AutoModel, AutoTokenizer, GgufConfig

    assert source.gguf is not None
    folder, name = os.path.split(os.path.abspath(source.gguf))
    target = Path(source.location)
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
