"""Latency of one new text at a time, through a whole fitted pipeline.

A pipeline of MiniLM-L6 (last layer, mean) and logistic regression answers
``predict_proba([text])`` for texts that it has not seen, short ones of rotten_tomatoes. Contenders
answer each text in turn:

no store    ours with ``memory=False``, as `skfusion.load` gives it
store       ours with a store in a folder, which keeps every layer and pooling of each text
bare        tokenizer, forward of the same model, mean over the mask, the same head; nothing else
st          sentence-transformers' ``encode`` and the same head (left out where not installed)

``latency_ratio_no_store`` and ``latency_ratio_store`` are medians over those of `bare`,
``p99_over_median`` is ours without a store, and ``threads_ratio`` how many texts a second 8
threads get from one estimator without a store, over what they get from `bare`. One thread of torch
each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from _common import (
    finish,
    machine_line,
    model_path,
    parse_arguments,
    print_table,
    read_sample,
    silence,
    threads,
)
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from skfusion import LLMLayerEmbedder

TRAINED, WARM_UP, THREADS = 64, 20, 8
Answer = Callable[[str], NDArray[Any]]


def bare_answer(folder: str, head: LogisticRegression, max_length: int = 256) -> Answer:
    """Return what answers with nothing but the model and the head."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(text: str) -> NDArray[Any]:
        tokens = tokenizer([text], truncation=True, max_length=max_length, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][..., None]
            vector = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        return head.predict_proba(vector.numpy())

    return answer


def library_answer(folder: str, head: LogisticRegression) -> Answer | None:
    """Return what answers with sentence-transformers, or None where it is missing."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return None
    model = SentenceTransformer(folder, device="cpu")
    # Its own vectors have unit length, which for the time of an answer does not matter.
    return lambda text: head.predict_proba(model.encode([text], show_progress_bar=False))


def measure(contenders: dict[str, Answer], texts: list[str]) -> dict[str, NDArray[np.float64]]:
    """Return the seconds of each answer, contenders in turn text by text."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for i, text in enumerate(texts):
        for name, answer in contenders.items():
            start = time.perf_counter()
            answer(text)
            if i >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def texts_a_second(answer: Answer, texts: list[str]) -> float:
    """Return how many texts a second several threads get."""
    with ThreadPoolExecutor(THREADS) as pool:
        start = time.perf_counter()
        list(pool.map(answer, texts))
    return len(texts) / (time.perf_counter() - start)


def main() -> None:
    """Run the benchmark."""

    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--texts", type=int, default=None, help="new texts (2,000)")

    args = parse_arguments(__doc__ or "", configure)
    silence()
    print(machine_line())
    n_texts = args.texts or (150 if args.quick else 2000)
    rows = read_sample("rotten_tomatoes", TRAINED + n_texts)
    texts, labels = rows["text"].tolist(), rows["label"].to_numpy()
    seen, new = texts[:TRAINED], texts[TRAINED:]
    folder = model_path("minilm-l6")
    with threads(1), tempfile.TemporaryDirectory() as store:
        pipes = {
            name: make_pipeline(LLMLayerEmbedder(folder, memory=memory), LogisticRegression()).fit(
                seen, labels[:TRAINED]
            )
            for name, memory in (("no store", False), ("store", store))
        }
        contenders: dict[str, Answer] = {
            name: lambda text, pipe=pipe: pipe.predict_proba([text])  # type: ignore[misc]
            for name, pipe in pipes.items()
        }
        head = pipes["no store"][-1]
        contenders["bare"] = bare_answer(folder, head)
        np.testing.assert_allclose(
            contenders["no store"](new[0]), contenders["bare"](new[0]), atol=1e-3
        )
        library = library_answer(folder, head)
        if library is not None:
            contenders["sentence-transformers"] = library
        seconds = measure(contenders, new)
        several = new[: max(100, n_texts // 5)]
        rates = {name: texts_a_second(contenders[name], several) for name in ("no store", "bare")}
    median = {name: float(np.median(values)) for name, values in seconds.items()}
    high = {name: float(np.percentile(values, 99)) for name, values in seconds.items()}
    print_table(
        f"milliseconds of an answer, {n_texts} new texts",
        ["", "median", "p99", "over bare"],
        [
            [name, 1000 * median[name], 1000 * high[name], median[name] / median["bare"]]
            for name in contenders
        ],
    )
    figures = {
        "latency_ratio_no_store": median["no store"] / median["bare"],
        "latency_ratio_store": median["store"] / median["bare"],
        "p99_over_median": high["no store"] / median["no store"],
        "threads_ratio": rates["no store"] / rates["bare"],
    }
    if library is not None:
        ours = median["no store"]
        figures["latency_vs_sentence_transformers"] = ours / median["sentence-transformers"]
    finish(figures, args.json)


if __name__ == "__main__":
    main()
