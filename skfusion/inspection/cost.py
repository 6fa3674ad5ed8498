"""What extracting the vectors of a model costs: seconds, memory, and bytes on disk."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joblib.externals.loky import ProcessPoolExecutor
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils._optional_dependencies import check_pandas_support

from ..embed.embedder import LLMLayerEmbedder
from ..embed.store import VectorStore
from ..embed.texts import check_texts

if TYPE_CHECKING:
    import pandas as pd

    from ..embed.union import EmbedderUnion


def measure_costs(
    union: EmbedderUnion, texts: ArrayLike, y: ArrayLike | None = None
) -> pd.DataFrame:
    """Measure what each embedder of a union costs, with nothing loaded and nothing stored.

    Embedders run one after another, each in a new process, which alone shows the peak of its
    memory, with a store of its own that is removed afterwards. Starting that process takes some
    seconds, which do not count.

    Parameters
    ----------
    union : EmbedderUnion
        The union. It is not changed, and its store neither read nor written.
    texts : sequence of str of shape (n_texts,)
        Texts like those that will be embedded; a few dozen are enough.
    y : array-like of shape (n_texts,) or None, default=None
        Targets, where an embedder needs them.

    Returns
    -------
    pandas.DataFrame
        One row per embedder, by name, without those that are dropped. `ModelSubsetSearchCV` takes
        it as `cost`, and `rank_models` as `costs`. The columns are

        - ``load_seconds``: until the weights are in memory and one text has passed; 0.0 for an
          embedder without a language model;
        - ``seconds_per_text``: to embed one text after that;
        - ``peak_bytes``: main memory that the process needed beyond what it had before; NaN on
          Windows, where it is unknown. Memory of a GPU is not counted;
        - ``bytes_per_text``: what the store keeps per text.

    Raises
    ------
    ValueError
        If there is no text.
    ImportError
        If pandas is not installed.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import TfidfVectorizer
    >>> from skfusion import EmbedderUnion, measure_costs
    >>> union = EmbedderUnion([("words", TfidfVectorizer())])
    >>> costs = measure_costs(union, ["a good film", "a dull film"])
    >>> float(costs.loc["words", "bytes_per_text"])
    0.0
    """
    pandas = check_pandas_support("measure_costs")
    rows = check_texts(texts)
    if not rows:
        raise ValueError("There are no texts to measure with. Give one at least.")
    costs = {}
    for name, embedder in union.embedders:
        if not (isinstance(embedder, str) and embedder == "drop"):
            with ProcessPoolExecutor(max_workers=1) as fresh:
                costs[name] = fresh.submit(_measure, clone(embedder), rows, y).result()
    frame: pd.DataFrame = pandas.DataFrame.from_dict(costs, orient="index")
    return frame.rename_axis("model")


def _measure(embedder: Any, texts: list[str], y: ArrayLike | None) -> dict[str, float]:
    """Run one embedder; called in a process that has not run anything."""
    with tempfile.TemporaryDirectory(prefix="skfusion-cost-") as folder:
        store, warmup = Path(folder, "store"), Path(folder, "warmup")
        models = language_models(embedder)
        alike = [
            clone(model).set_params(layer=-1, pooling="mean", memory=warmup).fit(texts[:1])
            for model in models
        ]  # fitting imports libraries, which are not part of a model's cost
        memory_before, start = _peak_memory(), time.perf_counter()
        for model, one in zip(models, alike, strict=True):
            model.set_params(memory=store)
            one.precompute(texts[:1], verbose=0)
        loaded = time.perf_counter()
        embedder.fit_transform(texts, y)
        done = time.perf_counter()
        stored = VectorStore(store).info()["n_bytes"]
    return {
        "load_seconds": loaded - start if models else 0.0,
        "seconds_per_text": (done - loaded) / len(texts),
        "peak_bytes": _peak_memory() - memory_before,
        "bytes_per_text": stored / len(set(texts)),
    }


def language_models(embedder: Any) -> list[LLMLayerEmbedder]:
    """Return the language models that an embedder of a union is or contains."""
    params = embedder.get_params(deep=True) if hasattr(embedder, "get_params") else {}
    return [part for part in (embedder, *params.values()) if isinstance(part, LLMLayerEmbedder)]


def _peak_memory() -> float:
    """Return the most memory that this process has had so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux getrusage includes the peak of the parent
        (line,) = (row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return 1024.0 * int(line.split()[1])
    if sys.platform == "win32":
        return float("nan")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
