"""Speed of every fusion operator against the bare numpy expression for the same result.

Blocks of 20,000 rows, 1,024 and 4,096 columns, are scaled, projected to 1,024 and fused, by a
fitted `FusionTransformer` and by numpy (one BLAS product a block), in turn. A second table has the
operators alone on two projected blocks, a third the time to fit. Medians; float32.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from skfusion import EmbeddingBlocks, FusionTransformer
from skfusion.fusion.registry import OPERATORS

ROWS, WIDTHS, WIDTH = 20_000, (1024, 4096), 1024


def bare_quaternion(p: Any, q: Any) -> Any:
    a, b, c, d = np.split(p, 4, axis=1)
    e, f, g, h = np.split(q, 4, axis=1)
    return np.concatenate(
        [
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        ],
        axis=1,
    )


def bare_multiplication(u: Any, v: Any) -> Any:
    side = int(u.shape[1] ** 0.5)
    return (u.reshape(-1, side, side) @ v.reshape(-1, side, side)).reshape(u.shape)


def bare_bilinear(u: Any, v: Any) -> Any:
    return np.fft.irfft(np.fft.rfft(u) * np.fft.rfft(v), n=u.shape[1])


BARE: dict[str, Callable[[Any, Any], Any]] = {
    "concat": lambda u, v: np.concatenate([u, v], axis=1),
    "sum": lambda u, v: u + v,
    "mean": lambda u, v: (u + v) / 2,
    "hadamard": lambda u, v: u * v,
    "multiplication": bare_multiplication,
    "quaternion": bare_quaternion,
    "bilinear": bare_bilinear,
}


def in_turn(
    first: Callable[[], Any], second: Callable[[], Any], repeats: int
) -> tuple[float, float]:
    """Median seconds of both, run alternately after one run to warm up."""
    runs: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        for seconds, run in zip(runs, (first, second), strict=True):
            start = time.perf_counter()
            run()
            if turn:
                seconds.append(time.perf_counter() - start)
    return statistics.median(runs[0]), statistics.median(runs[1])


def make_fuse(operator: str, blocks: EmbeddingBlocks) -> FusionTransformer:
    """Fit on few rows with a random projection: here only `transform` is timed."""
    fuse = FusionTransformer(operator, projection="random", n_components=WIDTH, random_state=0)
    return fuse.fit(blocks[:2000])


def bare_transform(fuse: FusionTransformer, blocks: EmbeddingBlocks) -> Any:
    projected = []
    for name, block in blocks.blocks.items():
        scaler = fuse.scalers_[name]
        scaled = (block - scaler.mean.astype(block.dtype)) / scaler.std.astype(block.dtype)
        project = fuse.projections_.get(name)
        if hasattr(project, "buckets"):
            # The same sums as a product with a sparse matrix would be slower than BLAS's.
            scaled = project(scaled)
        elif project is not None:
            scaled = scaled @ project.weight.astype(block.dtype) + project.bias.astype(block.dtype)
        projected.append(scaled)
    return BARE[fuse.operator](*projected)


def compare(blocks: EmbeddingBlocks, repeats: int) -> dict[str, float]:
    ratios = {}
    print(f"\n{len(blocks):,} x {WIDTHS} -> {WIDTH}: FusionTransformer.transform against numpy")
    print(f"{'operator':16}{'ours ms':>10}{'numpy ms':>10}{'ratio':>8}")
    for name in BARE:
        fuse = make_fuse(name, blocks)
        ours, bare = in_turn(
            lambda f=fuse: f.transform(blocks), lambda f=fuse: bare_transform(f, blocks), repeats
        )
        ratios[f"transform {name}"] = ours / bare
        print(f"{name:16}{ours * 1e3:10.1f}{bare * 1e3:10.1f}{ours / bare:8.2f}")
    return ratios


def compare_alone(n_rows: int, repeats: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    pair = [rng.standard_normal((n_rows, WIDTH), dtype=np.float32) for _ in range(2)]
    ratios = {}
    print(f"\n{n_rows:,} x {WIDTH} twice: the operator alone")
    print(f"{'operator':16}{'ours ms':>10}{'numpy ms':>10}{'ratio':>8}")
    for name, expression in BARE.items():
        ours, bare = in_turn(
            lambda n=name: OPERATORS[n](pair), lambda e=expression: e(*pair), repeats
        )
        ratios[f"alone {name}"] = ours / bare
        print(f"{name:16}{ours * 1e3:10.1f}{bare * 1e3:10.1f}{ours / bare:8.2f}")
    return ratios


def time_fit(blocks: EmbeddingBlocks) -> dict[str, float]:
    seconds = {}
    print(f"\n{len(blocks):,} x {WIDTHS}: FusionTransformer('sum', projection='pca').fit")
    for n_components in (32, WIDTH):
        start = time.perf_counter()
        FusionTransformer("sum", n_components=n_components, random_state=0).fit(blocks)
        seconds[f"fit_pca_{n_components}_seconds"] = time.perf_counter() - start
        print(f"{n_components:5} components {time.perf_counter() - start:8.1f} s")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rows and runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args()
    n_rows, repeats = (4000, 3) if options.quick else (ROWS, 5)
    print(f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}")
    rng = np.random.default_rng(0)
    blocks = EmbeddingBlocks(
        {f"w{w}": rng.standard_normal((n_rows, w), dtype=np.float32) for w in WIDTHS}
    )
    ratios = {**compare_alone(n_rows, repeats), **compare(blocks, repeats)}
    figures = {"operator_worst_ratio": max(ratios.values()), **time_fit(blocks[:5000])}
    print(
        f"\noperator_worst_ratio {figures['operator_worst_ratio']:.2f} "
        f"({max(ratios, key=lambda name: ratios[name])})"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
