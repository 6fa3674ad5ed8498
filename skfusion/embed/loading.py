"""From a hub id, folder or GGUF file to a `Backbone`: the only file that names transformers.

`resolve` finds out what a model is without its weights; `load` brings them.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from .backbone import Backbone, Source
from .body import check_type, position_limit, shape, text_config
from .digests import cache_folder, file_digest, folder_digest
from .folders import MUST, describe, existing, look_into, sentence_settings, transformer_folder

_LOG = logging.getLogger(__name__)
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
_COMMIT = re.compile("[0-9a-f]{40}")


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
    if os.path.isdir(path):
        return _resolve_folder(path, trust_remote_code)
    if os.path.isfile(path):
        raise ValueError(f"model={path!r} is a file. Give the folder that it is in.")
    # A hub id stays at the commit that this process saw first; a folder is looked at each time.
    key = (path, revision, trust_remote_code)
    if key not in _RESOLVED:
        _RESOLVED[key] = _resolve_hub(path, revision, trust_remote_code)
    return _RESOLVED[key]


def _resolve_folder(path: str, trust_remote_code: bool) -> Source:
    try:
        place = look_into(path)
    except OSError as error:
        raise OSError(f"Cannot load model {path!r}. {error}") from error
    location = os.path.join(path, place.subfolder) if place.subfolder else path
    if place.gguf is not None:
        return _resolve_gguf(os.path.join(location, place.gguf))
    identity = f"folder:{folder_digest(path)}"
    if place.subfolder:
        identity += f"+{folder_digest(location)}"
    key = (path, identity, trust_remote_code)
    if key not in _RESOLVED:
        config = _config(location, trust_remote_code=trust_remote_code)
        sentence = sentence_settings(partial(existing, path), place.subfolder, config.model_type)
        more = {"trust_remote_code": trust_remote_code, "sentence": sentence}
        _RESOLVED[key] = _source(path, location, identity, config, **more)
    return _RESOLVED[key]


def _resolve_hub(name: str, revision: str | None, trust_remote_code: bool) -> Source:
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    config: Any = None
    failed, subfolder = None, ""
    try:
        config = _config(name, revision=revision, **options)
        revision = _commit(name, revision, "")
    except OSError as error:
        failed = error
    read = partial(_hub_file, name, revision)
    try:  # an older sentence-transformers model is in a folder of its own
        folder = transformer_folder(read)
    except OSError as error:
        raise OSError(f"Cannot load model {name!r}. {error}") from error
    if folder and read(f"{folder}/config.json"):
        subfolder = folder
        config = _config(name, revision=revision, subfolder=folder, **options)
        revision = _commit(name, revision, folder)
    elif failed is not None:
        raise failed
    return _source(
        *(name, name, f"hub:{name}@{revision}", config),
        revision=revision,
        subfolder=subfolder,
        sentence=sentence_settings(
            partial(_hub_file, name, revision), subfolder, config.model_type
        ),
        **options,
    )


def _hub_file(name: str, revision: str | None, file: str) -> str | None:
    """Return a small file of a hub repository; one that is not there or out of reach is None."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    try:
        known = try_to_load_from_cache(name, file, revision=revision)
        # Of a commit it is known for good, also that a file is not there.
        if known is not None and _COMMIT.fullmatch(revision or ""):
            return known if isinstance(known, str) else None
        with quiet():
            return str(hf_hub_download(name, file, revision=revision))
    except (EntryNotFoundError, OSError, ValueError):
        return None


def resolve_again(
    identity: str, model: Any, *, revision: str | None, trust_remote_code: bool
) -> Source:
    """Return the model of the parameters, which must be the one that `fit` saw.

    Nothing is opened that only a fitted state names; a hub id stays at the commit of `fit`.
    """
    name, _, commit = identity.rpartition("@")
    same_id = not isinstance(model, Backbone) and name == f"hub:{os.fspath(model)}"
    if same_id and _COMMIT.fullmatch(commit):
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
        check_type(config)
        n_layers, width = shape(config)
        _check_reads_texts(config)
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


def _check_reads_texts(config: Any) -> None:
    """Refuse models of pictures or sound, and weights in another tool's form."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    if isinstance(getattr(config, "quantization", None), dict):
        raise ValueError("its weights are quantised for MLX. Give what it was made from.")
    kind = text_config(config).model_type
    texts = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
    )
    speech = kind in auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    if not speech and any(kind in names for names in texts):
        return
    # A class is imported for the others only, which takes a second.
    name = auto.MODEL_MAPPING_NAMES.get(kind)
    cls = getattr(transformers, name if isinstance(name, str) else name[0], None) if name else None
    read = getattr(cls, "main_input_name", "input_ids")
    if read != "input_ids":
        raise ValueError(
            f"it is a model of type {kind!r}, which reads {read}, and not the tokens of texts. "
            f"Use a language model."
        )


def _config(location: str, **options: Any) -> Any:
    from transformers import AutoConfig

    with _named(location, options.get("revision")), quiet():
        try:
            return AutoConfig.from_pretrained(location, **options)
        except ImportError as error:
            if options.get("gguf_file"):
                raise ImportError(
                    "Reading GGUF files needs the packages gguf and accelerate: "
                    "pip install 'skfusion[gguf]'"
                ) from error
            raise


@contextlib.contextmanager
def _named(name: str, revision: str | None) -> Iterator[None]:
    """Say of which model it is that reading it has failed, whatever transformers raises."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        if "memory" in str(error):  # a RuntimeError of one kind or another
            raise
        raise _not_loaded(name, revision, error) from error


def _not_loaded(location: str, revision: str | None, error: Exception) -> OSError:
    at = f" at revision {revision!r}" if revision else ""
    if os.path.isdir(location):
        hint = f"The folder must hold {MUST}."
    else:
        hint = _hub_contents(location, revision) or (
            "It is neither a folder nor a .gguf file here, so it was looked up on the Hugging "
            "Face hub. Check the spelling, the revision, the network, access to a gated model, "
            "and HF_HUB_OFFLINE, with which only models already in the hub's cache are found."
        )
    reason = " ".join(str(error).split())
    if "ignore_mismatched_sizes" in reason:  # which points to a report that is silenced
        reason = "Its weights have other sizes than its config says."
    kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    shown = reason if len(reason) <= 300 else f"{reason[:297]}..."
    return OSError(f"Cannot load model {location!r}{at}. {hint} ({kind}{shown})")


def _hub_contents(name: str, revision: str | None) -> str:
    """Say what a hub repository holds that is not one whole model, if it can be reached."""
    from huggingface_hub import HfApi

    try:
        return describe(HfApi().list_repo_files(name, revision=revision))
    except Exception:  # whatever it is, there is an error already
        return ""


def _commit(name: str, revision: str | None, subfolder: str) -> str:
    """Return the commit of a hub model whose config was read; not every transformers says it."""
    from huggingface_hub import try_to_load_from_cache

    file = f"{subfolder}/config.json" if subfolder else "config.json"
    found = try_to_load_from_cache(name, file, revision=revision)
    if not isinstance(found, str):
        raise _not_loaded(name, revision, OSError(f"its {file} is not in the hub's cache"))
    return Path(found).parents[1 if subfolder else 0].name


# --- loading ---------------------------------------------------------------------------------

# The model used last stays loaded, so that the clones of a search do not load it again.
_LOADED: OrderedDict[tuple[str, ...], Backbone] = OrderedDict()
_KEEP_LOADED = 1
# Those that someone else still holds, such as an embedder that serves.
_ALIVE: WeakValueDictionary[tuple[str, ...], Backbone] = WeakValueDictionary()
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
        if key in _LOADED:
            return _LOADED[key]
        while len(_LOADED) >= _KEEP_LOADED:
            _LOADED.popitem(last=False)
        backbone = _ALIVE.get(key)
        if backbone is None:
            _LOG.info("loading %s on %s in %s", source.name, device, dtype)
            started = time.perf_counter()
            folder = _converted(source) if source.gguf else source.location
            backbone = _load(source, folder, device, dtype, model_kwargs or {})
            _LOG.info("loaded %s in %.1f s", source.name, time.perf_counter() - started)
        _LOADED[key] = _ALIVE[key] = backbone
        return backbone


def release() -> None:
    """Let go of the loaded model, whose memory is freed once no pass uses it."""
    with _LOAD_LOCK:
        _LOADED.clear()
        _ALIVE.clear()


def _load(
    source: Source, folder: str, device: str, dtype: str, model_kwargs: Mapping[str, Any]
) -> Backbone:
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
        MODEL_MAPPING_NAMES,
    )

    options: dict[str, Any] = {"trust_remote_code": source.trust_remote_code}
    if source.revision:
        options["revision"] = source.revision
    if source.subfolder:
        options["subfolder"] = source.subfolder
    config = _config(folder, **options)
    own = getattr(config, "quantization_config", None)
    placed: dict[str, Any] = {}
    if device == "auto":
        placed = {"device_map": "auto"}
    elif own is not None or model_kwargs.get("quantization_config") is not None:
        placed = {"device_map": {"": device}}  # a quantised model must not be moved with .to
    # The encoder class of a T5 kind of model, so that its decoder is never loaded. Those of
    # models with parts, which have a config each, do not take the whole config.
    parts = config.sub_configs
    whole = parts and (config.is_encoder_decoder or "encoder" not in parts)
    encoder = config.model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES and not whole
    cls: Any = transformers.AutoModelForTextEncoding if encoder else transformers.AutoModel
    if config.model_type not in MODEL_MAPPING_NAMES and not hasattr(config, "auto_map"):
        cls = getattr(transformers, (config.architectures or [""])[0], cls)
    if device != "cpu" and torch.cuda.is_available():
        torch.cuda.current_device()  # starts CUDA, whose random state is then kept, too
    with _named(source.name, source.revision), quiet():
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
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            f"{source.name!r} holds an adapter (PEFT) beside or instead of a model. Load both "
            f"with peft and give them as a Backbone."
        )
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            f"The tokenizer of {source.name!r} has no vocabulary: its files are missing. Save the "
            f"model's own there with tokenizer.save_pretrained."
        )
    backbone = Backbone(model.eval() if placed else model.to(device).eval(), tokenizer)
    absent = sorted(_absent(backbone, info["missing_keys"]))
    if absent:
        raise ValueError(
            f"The checkpoint {source.name!r} lacks {len(absent)} weights of the model's body, for "
            f"example {absent[0]!r}: its vectors would be random. Check that the folder "
            f"holds a whole model of type {config.model_type!r}."
        )
    backbone._private = True
    return backbone


def _absent(backbone: Backbone, missing: Collection[str]) -> set[str]:
    """Return which of the weights that a checkpoint lacks its hidden states depend on."""
    model, body = backbone.model, backbone._body
    modules = list(model.named_modules())
    before = next((f"{name}." for name, part in modules if part is body and name), "")
    # Tables of sines are computed, and need not be saved.
    sines = {f"{name}.weight" for name, part in modules if "Sinusoid" in type(part).__name__}
    return {n for n in missing if n.startswith(before) and "pooler" not in n} - sines


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


_QUIET_LOCK = threading.Lock()
_QUIET = contextlib.ExitStack()
_quiet_depth = 0


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers and the hub, keep the random state, and put all back afterwards.

    These are one for all threads, so the first that is inside sets them and the last puts back.
    """
    global _quiet_depth
    with _QUIET_LOCK:
        if _quiet_depth == 0:
            _QUIET.enter_context(_silence())
        _quiet_depth += 1
    try:
        yield
    finally:
        with _QUIET_LOCK:
            _quiet_depth -= 1
            if _quiet_depth == 0:
                _QUIET.close()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    import torch
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bar = not are_progress_bars_disabled()
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    # Building a model draws its initial weights before the saved ones replace them.
    with torch.random.fork_rng(devices):
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
