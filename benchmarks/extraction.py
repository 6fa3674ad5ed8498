"""Speed and memory of a cold pass that stores every layer, and speed of reading one back.

minilm     Texts a second of a cold `fit_transform` of `LLMLayerEmbedder` that pools and stores all
           layers with mean and last, against sentence-transformers, skrub's LLMEncoder (the new
           name of TextEncoder), embetter's SentenceEncoder and transformers' feature-extraction
           pipeline, each of which gives one layer and one pooling; and against `bare`, nothing but
           the forward passes of the same model over the very batches that ours runs (no
           tokenising, pooling or storing). r8 holds long texts, rotten_tomatoes short ones.
smollm2    The same against a plain loop over `AutoModel(output_hidden_states=True)` that pools all
           layers with mean and last, too.
slice      Seconds of a warm `transform` of one layer for 20,000 texts x 576, by a fresh embedder
           on a store whose files are in the page cache. A stub stands in for the model, which a
           warm call does not need.
memory     How far one batch of 64 x 256 tokens raises the peak of resident memory (the kernel's
           VmHWM, Linux only) over that of a process that holds the loaded model and has run two
           short texts: ours, all layers pooled in hooks and stored, over the plain loop's. Each in
           its own fresh process.

All models are loaded and warm before the clock runs. Contenders take turns in one process, and
medians are reported; the vectors of all of them must agree. On a CPU, in float32.

Needs sentence-transformers, skrub and embetter beside skfusion[gguf] and pandas.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from _common import (
    alternate,
    finish,
    in_fresh_process,
    machine_line,
    model_path,
    parse_arguments,
    print_table,
    read_split,
    silence,
    threads,
)
from _peers import PlainLoop, library_runs, load_libraries
from numpy.typing import NDArray

from skfusion import Backbone, LLMLayerEmbedder, VectorStore
from skfusion.embed.batching import AUTO_BATCH_TOKENS, plan_batches
from skfusion.embed.loading import load, resolve

POOLINGS = ["mean", "last"]
MAX_LENGTH = 256
WARM_UP = ["a text of the warm-up", "and a second one"]
Figures = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """How much is run."""

    repeats: int
    rows: dict[str, int]  # texts of each data set for the encoder
    llm_rows: int
    store_rows: int
    memory_rows: int


FULL = Sizes(5, {"r8": 160, "rotten_tomatoes": 600}, 48, 20_000, 64)
QUICK = Sizes(2, {"r8": 60, "rotten_tomatoes": 200}, 16, 20_000, 16)


def sample(name: str, rows: int) -> list[str]:
    """Draw different texts, since ours would encode equal ones once."""
    table = read_split(name).drop_duplicates("text")
    return table["text"].sample(rows, random_state=0).tolist()


def ours(
    model: str | Backbone,
    texts: Sequence[str],
    memory: str,
    batch_tokens: int | str,
    **options: Any,
) -> LLMLayerEmbedder:
    """Make a fitted embedder whose pass stores all layers."""
    settings = {"layer": -1, "pooling": POOLINGS, "max_length": MAX_LENGTH, "device": "cpu"}
    embedder = LLMLayerEmbedder(
        model,
        memory=VectorStore(memory, poolings="requested"),
        batch_tokens=batch_tokens,
        **{**settings, **options},
    )
    return embedder.fit(texts)


def cold_run(
    model: str, texts: list[str], batch_tokens: int | str, scratch: str
) -> Callable[[], Any]:
    """Return a call that encodes all texts into an empty store."""

    def run() -> NDArray[np.float32]:
        memory = tempfile.mkdtemp(dir=scratch)
        return ours(model, texts, memory, batch_tokens).transform(texts)

    embedder = ours(model, WARM_UP, tempfile.mkdtemp(dir=scratch), batch_tokens)
    embedder.transform(WARM_UP)
    stored = embedder.store_.info()["models"][0]
    if stored["layers"] != list(range(embedder.n_layers_ + 1)) or stored["poolings"] != sorted(
        POOLINGS
    ):
        raise SystemExit(f"Not every layer is stored with mean and last: {stored}")
    return run


# --- an encoder against other libraries -------------------------------------------------------


def bare_run(model: str, texts: list[str], batch_tokens: int | str) -> Callable[[], None]:
    """Return a call that does nothing but the forward passes of our batches."""
    source = resolve(model)
    backbone = load(source, device="cpu", dtype="float32")
    budget = AUTO_BATCH_TOKENS["cpu"] if batch_tokens == "auto" else int(batch_tokens)
    tokens = backbone._tokenize(texts, MAX_LENGTH, source.max_positions)
    plan = plan_batches(tokens.lengths(), budget)
    batches = [backbone._batch([tokens.ids[i] for i in rows]) for rows in plan]

    def run() -> None:
        for batch in batches:
            backbone._run(*batch)

    return run


def check_cosine(name: str, ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    """Stop unless both are the same vectors up to their lengths, which libraries may change."""
    dots = (ours * theirs).sum(axis=1)
    worst = (dots / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)).min()
    if not worst > 0.999:
        raise SystemExit(f"{name} gives other vectors than skfusion: smallest cosine {worst:.5f}")


def compare_encoder(args: argparse.Namespace, sizes: Sizes) -> Figures:
    """Time minilm-l6 against all peers, on long and on short texts."""
    model = model_path("minilm-l6")
    figures: Figures = {}
    by_threads: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        peers = load_libraries(model, scratch, MAX_LENGTH)
        for run in library_runs(peers, WARM_UP, MAX_LENGTH).values():
            run()
        for data in sizes.rows:
            texts = sample(data, sizes.rows[data])
            for n in args.threads:
                runs = {"skfusion": cold_run(model, texts, args.batch_tokens, scratch)}
                runs |= library_runs(peers, texts, MAX_LENGTH)
                runs["bare"] = bare_run(model, texts, args.batch_tokens)
                with threads(n):
                    seconds, results = alternate(runs, sizes.repeats)
                width = results["pipeline"].shape[1]
                for name in peers:
                    check_cosine(name, results["skfusion"][:, :width], results[name])
                print_speeds(f"minilm-l6, {data}, {len(texts)} texts", n, seconds, len(texts))
                figures |= ratios(seconds, peers, data, n, args.threads)
                if data == "r8":
                    by_threads[n] = seconds["bare"] / seconds["skfusion"]
    best = max(by_threads, key=by_threads.__getitem__)
    print(f"\nratio_vs_bare_forward: bare seconds / ours, on r8, best with {best} thread(s)")
    return figures | {"ratio_vs_bare_forward": by_threads[best]}


def print_speeds(title: str, n: int, seconds: dict[str, float], n_texts: int) -> None:
    """Print a line a contender."""
    rows = [
        [name, value, n_texts / value, value / seconds["skfusion"]]
        for name, value in seconds.items()
    ]
    header = ["", "seconds", "texts/s", "skfusion is x times as fast"]
    print_table(f"{title}, {n} thread(s)", header, rows)


def ratios(
    seconds: dict[str, float], names: Sequence[str], data: str, n: int, all_threads: list[int]
) -> Figures:
    """Name the ratios at the largest number of threads plainly, others by their number."""
    suffix = "" if n == max(all_threads) else f"_{n}_thread"
    return {
        f"ratio_vs_{name}_{data}{suffix}": seconds[name] / seconds["skfusion"] for name in names
    }


# --- a decoder against a plain loop -----------------------------------------------------------


def compare_decoder(args: argparse.Namespace, sizes: Sizes) -> Figures:
    """Time smollm2-135m against a plain loop that gives all layers, too."""
    model, data = model_path("smollm2-135m"), "rotten_tomatoes"
    texts = sample(data, sizes.llm_rows)
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        run = cold_run(model, texts, args.batch_tokens, scratch)  # converts the file, if need be
        plain = PlainLoop(resolve(model).location)
        layers = range(resolve(model).n_layers + 1)
        columns = [(layer, pooling) for layer in layers for pooling in POOLINGS]
        plain(WARM_UP, columns)
        runs = {"skfusion": run, "plain_loop": lambda: plain(texts, columns)}
        for n in args.threads:
            with threads(n):
                seconds, results = alternate(runs, sizes.repeats)
            print_speeds(f"smollm2-135m, {data}, {len(texts)} texts", n, seconds, len(texts))
            figures |= ratios(seconds, ["plain_loop"], "smollm2", n, args.threads)
        memory = tempfile.mkdtemp(dir=scratch)
        embedder = ours(model, texts, memory, args.batch_tokens, layer=list(layers))
        check_equal(embedder.transform(texts), results["plain_loop"].numpy())
    return figures


def check_equal(ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    """Stop unless all vectors agree to 2e-3 of their lengths (float16 in the store: 1e-3)."""
    errors = np.linalg.norm(ours.reshape(theirs.shape) - theirs, axis=2)
    worst = (errors / np.linalg.norm(theirs, axis=2)).max()
    if not worst < 2e-3:
        raise SystemExit(f"The plain loop gives other vectors: largest relative error {worst:.5f}")


# --- a warm slice -----------------------------------------------------------------------------


class Stub(torch.nn.Module):
    """Stands for a model of 6 blocks and width 576: layer k is k + 1 times a fixed table's row."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(512, 576, generator=torch.Generator().manual_seed(0))
        self.register_buffer("table", table)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        output_hidden_states: bool = False,
    ) -> SimpleNamespace:
        """Look the ids up."""
        hidden = self.table[input_ids]
        states = tuple(hidden * k for k in range(1, 8)) if output_hidden_states else None
        return SimpleNamespace(last_hidden_state=hidden * 7, hidden_states=states)


def stub_tokenizer(texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
    """Turn the number at a text's start into two ids, which make its vector different."""
    numbers = [int(text[:5]) for text in texts]
    return {"input_ids": [[n // 256, 256 + n % 256] for n in numbers]}


def time_slice(args: argparse.Namespace, sizes: Sizes) -> Figures:
    """Time reading one layer of many texts."""
    backbone = Backbone(Stub().eval(), stub_tokenizer)
    texts = [f"{i:05d} and about as many words more as a short review has" for i in range(99_999)]
    texts = texts[: sizes.store_rows]
    with tempfile.TemporaryDirectory() as memory:
        options = {"pooling": "mean", "max_length": None, "device": None}
        ours(backbone, texts, memory, 8192, **options).transform(texts)
        readers = [ours(backbone, texts, memory, 8192, layer=3, **options) for _ in range(5)]
        waiting = iter(readers)
        seconds, results = alternate({"warm": lambda: next(waiting).transform(texts)}, 5)
        info = readers[0].store_.info()
    if results["warm"].shape != (len(texts), 576) or info["n_texts"] != len(texts):
        raise SystemExit(f"The store is not what was to be timed: {info}")
    header = ["", "texts", "seconds", "shards", "MB"]
    row = [len(texts), seconds["warm"], info["n_shards"], info["n_bytes"] / 1e6]
    print_table("warm transform of one layer of width 576", header, [["skfusion", *row]])
    return {"warm_slice_s": seconds["warm"]}


# --- peak memory ------------------------------------------------------------------------------


def resident_peak() -> int:
    """Return the largest resident memory since the last reset, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure_increase(run: Callable[[], Any]) -> int:
    """Return the bytes by which a call raises the process's peak over what it holds before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present
    before = resident_peak()
    run()
    return resident_peak() - before


def touch(model: torch.nn.Module) -> None:
    """Bring all weights into memory, so that a pass does not seem to need it for them."""
    for parameter in model.parameters():
        parameter.detach().sum()


def memory_of(contender: str, model: str, rows: int) -> int:
    """Measure one batch of `rows` texts of 256 tokens; to be called in a fresh process."""
    silence()
    texts = [f"{i} " + "market report " * MAX_LENGTH for i in range(rows)]
    source = resolve(model)
    if contender == "plain":
        plain = PlainLoop(source.location)
        touch(plain.model)
        layers = range(source.n_layers + 1)
        columns = [(layer, pooling) for layer in layers for pooling in POOLINGS]
        plain(WARM_UP, columns)
        return measure_increase(lambda: plain(texts, columns, rows=rows))
    with tempfile.TemporaryDirectory() as memory:
        embedder = ours(model, WARM_UP, memory, rows * MAX_LENGTH)
        embedder.transform(WARM_UP)
        touch(load(source, device="cpu", dtype="float32").model)
        return measure_increase(lambda: embedder.transform(texts))


def compare_memory(args: argparse.Namespace, sizes: Sizes) -> Figures:
    """Measure the peak of a large batch for both models; the figure is the deeper one's."""
    if sys.platform != "linux":
        print("\nmemory: left out, it is read from Linux's /proc")
        return {}
    figures, table = {}, []
    for name in ("minilm-l6", "smollm2-135m"):
        model = model_path(name)
        peaks = [in_fresh_process(memory_of, x, model, sizes.memory_rows) for x in ("us", "plain")]
        ratio = peaks[0] / peaks[1]
        table.append([name, resolve(model).n_layers, *[peak / 1e6 for peak in peaks], ratio])
        figures[f"memory_ratio_{name.split('-')[0]}"] = ratio
    header = ["", "blocks", "skfusion MB", "plain loop MB", "ratio"]
    title = f"increase of peak memory, one batch of {sizes.memory_rows} x {MAX_LENGTH} tokens"
    print_table(title, header, table)
    return {"memory_ratio": figures.pop("memory_ratio_smollm2"), **figures}


PARTS = {
    "minilm": compare_encoder,
    "smollm2": compare_decoder,
    "slice": time_slice,
    "memory": compare_memory,
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--batch-tokens", type=int, metavar="N", help="budget of ours")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))


def main() -> None:
    args = parse_arguments(__doc__, configure)
    args.batch_tokens = args.batch_tokens or "auto"
    silence()
    print(machine_line())
    print(f"batch_tokens={args.batch_tokens}")
    figures: Figures = {}
    for part in args.only:
        figures |= PARTS[part](args, QUICK if args.quick else FULL)
    finish(figures, args.json)


if __name__ == "__main__":
    main()
