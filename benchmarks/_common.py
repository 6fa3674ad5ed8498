"""What the benchmarks share: data, models, threads, timing, tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every model is a local folder or file

import numpy as np
import pandas as pd
import torch
import transformers
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from skfusion import TruncationWarning

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "examples"))

from small_models import cache_folder, fetch  # noqa: E402 - a script beside the examples, not a package

#: What benchmarks keep from run to run.
KEPT = cache_folder() / "benchmarks"
#: What classifiers are compared on.
DATA_SETS = [
    "legalbench_canada_tax_court_outcomes",
    "legalbench_cuad_effective_date",
    "legalbench_cuad_irrevocable_or_perpetual_license",
    "legalbench_function_of_decision_section",
    "legalbench_definition_classification",
    "legalbench_overruling",
    "rotten_tomatoes",
    "r8",
    "r52",
]

# --- inputs ----------------------------------------------------------------------------------


def read_split(name: str, split: str = "train") -> pd.DataFrame:
    """Read one split of a data set: the columns text and label."""
    folder = Path(os.environ.get("SKFUSION_DATA", ROOT.parent / "shared" / "data"))
    path = folder / name / f"{split}.csv.gz"
    if not path.is_file():
        raise SystemExit(
            f"There is no {path}. Set SKFUSION_DATA to the folder that holds {name}/{split}.csv.gz"
        )
    return pd.read_csv(path, keep_default_na=False)


def read_sample(name: str, n_rows: int, split: str = "train") -> pd.DataFrame:
    """Draw at most so many rows of a split, no text twice."""
    rows = read_split(name, split).drop_duplicates("text")
    return rows.sample(min(n_rows, len(rows)), random_state=0)


def model_path(name: str) -> str:
    """Fetch a small model and give its folder or file."""
    return str(fetch(name))


def parse_arguments(doc: str, configure: Callable[[Any], None]) -> argparse.Namespace:
    """Read the options that every benchmark has, and those that `configure` adds."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few texts and runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    configure(parser)
    return parser.parse_args()


# --- running ---------------------------------------------------------------------------------


def silence() -> None:
    """Hide expected warnings and the peers' progress bars and reports."""
    warnings.filterwarnings("ignore", category=TruncationWarning)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@contextlib.contextmanager
def threads(n: int) -> Iterator[None]:
    """Hold torch, BLAS and the tokenizers to a number of threads (the tokenizers to 1 or all)."""
    before, tokenizers = torch.get_num_threads(), os.environ.get("TOKENIZERS_PARALLELISM")
    torch.set_num_threads(n)
    os.environ["TOKENIZERS_PARALLELISM"] = "false" if n == 1 else "true"
    try:
        with threadpool_limits(n):
            yield
    finally:
        torch.set_num_threads(before)
        del os.environ["TOKENIZERS_PARALLELISM"]
        if tokenizers is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = tokenizers


def quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with one thread, and hide expected warnings; for processes of joblib."""
    with threads(1), warnings.catch_warnings():
        silence()
        # Few rows have classes of fewer members than folds.
        warnings.filterwarnings("ignore", message="The least populated class")
        return function(*arguments)


def alternate(
    contenders: Mapping[str, Callable[[], Any]], repeats: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Run the contenders in turn, `repeats` times; give each one's median seconds, last result."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, run in contenders.items():
            results.pop(name, None)
            start = time.perf_counter()
            results[name] = run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(runs) for name, runs in seconds.items()}, results


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


# --- what comes out --------------------------------------------------------------------------


def mean_with_error(cells: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the mean of the cells' means and half of its 95 % interval, over draws in a cell.

    Cells are as they are and draws are chance: Student's t with Welch's degrees of freedom. With
    one draw in each there is no interval, and it is nan.
    """
    means = [np.mean(cell) for cell in cells]
    freedom = np.array([len(cell) - 1 for cell in cells])
    if (freedom < 1).all():
        return float(np.mean(means)), float("nan")
    squares = np.array(
        [np.var(cell, ddof=1) / len(cell) if len(cell) > 1 else 0.0 for cell in cells]
    )
    total = squares.sum()
    if total == 0:
        return float(np.mean(means)), 0.0
    welch = total**2 / (squares**2 / np.maximum(freedom, 1)).sum()
    half = stats.t.ppf(0.975, welch) * np.sqrt(total) / len(cells)
    return float(np.mean(means)), float(half)


def machine_line() -> str:
    """Name the machine and the versions that decide the speed."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), cpu)
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return (
        f"{cpu}, {os.cpu_count()} cores, load before {load}; Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}"
    )


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns: the first to the left, numbers to the right."""
    cells = [list(header), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    print(f"\n{title}")
    for row in cells:
        first, *others = zip(row, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *[text.rjust(n) for text, n in others]]))


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def finish(figures: Mapping[str, float], path: Path | None) -> None:
    """Print the figures, and write them where that was asked for."""
    print_table("figures", ["name", "value"], list(figures.items()))
    if path is not None:
        path.write_text(json.dumps(dict(figures), indent=2) + "\n", encoding="utf-8")
