"""What a store makes of damage, killed writers and crowds, and the memory that tidying takes.

flips      one byte of a shard or of the file beside it changed, in the header or anywhere, then
           all that a user can call. Counted: vectors that are not those that were stored,
           exceptions, damage that is still there at the next use.
kills      a writer killed (SIGKILL) at a random moment, then all read that it has published.
crowd      threads of one process and other processes that read, write, evict, merge and verify
           two stores at once, one of them with a size limit.
tidy       a store of 1 GB in shards of 1 MB, tidied in a new process: the most memory above what
           the process had before, and the longest call.

The campaigns are those of tests/faults, with a fixed seed. Needs a system that can fork.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import ROOT, finish, machine_line, parse_arguments, print_table

sys.path.append(str(ROOT / "tests"))

from _support import faults


@dataclass(frozen=True)
class Sizes:
    """How much is tried."""

    flips: int
    kills: int
    threads: int
    processes: int
    crowd_seconds: float
    tidy_mb: int


FULL = Sizes(flips=2000, kills=300, threads=8, processes=6, crowd_seconds=30.0, tidy_mb=1024)
QUICK = Sizes(flips=100, kills=10, threads=3, processes=2, crowd_seconds=1.0, tidy_mb=128)


def campaigns(sizes: Sizes, seed: int) -> dict[str, float]:
    """Run all, each in a process of its own."""
    rows: list[list[Any]] = []
    figures: dict[str, float] = {}

    def run(name: str, *arguments: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            found = faults.run(name, str(Path(folder)), *arguments)
            figures[f"{name}_s"] = time.perf_counter() - start
        for message in found["messages"]:
            print(message, file=sys.stderr)
        rows.append([name, *(found[key] for key in ("wrong", "raised", "lost"))])
        return found

    flips = run("flips", sizes.flips, seed)
    kills = run("kills", sizes.kills, seed)
    crowd = run("crowd", sizes.threads, sizes.processes, sizes.crowd_seconds, seed)
    with tempfile.TemporaryDirectory() as folder:
        before = faults.run("fill_small", folder, sizes.tidy_mb)
        tidy = faults.run("tidy", folder)
    print_table("counts, all to be 0", ["campaign", "wrong", "raised", "lost"], rows)
    return {
        "flips": sizes.flips,
        "flips_wrong": flips["wrong"],
        "flips_raised": flips["raised"],
        "flips_unrepaired": flips["unrepaired"],
        "flips_lost_rows": flips["lost"],
        "kills": sizes.kills,
        "kills_published": kills["rows"],
        "kills_lost_rows": kills["lost"],
        "kills_wrong": kills["wrong"],
        "kills_raised": kills["raised"],
        "threads": sizes.threads,
        "processes": sizes.processes,
        "crowd_calls": crowd["calls"],
        "crowd_wrong": crowd["wrong"],
        "crowd_raised": crowd["raised"],
        "crowd_lost_rows": crowd["lost"],
        "crowd_over_limit": crowd["most_bytes"] / faults.CROWD_LIMIT,
        "tidy_mb": sizes.tidy_mb,
        "tidy_files_before": before["files"],
        "tidy_lost_rows": before["texts"] - tidy["texts"],
        "tidy_files": tidy["files"],
        "tidy_damaged": tidy["damaged"],
        "peak_mb_tidy_1gb": tidy["peak_mb"],  # of tidy_mb, which is less with --quick
        "tidy_s": tidy["seconds"],
        "tidy_longest_call_s": tidy["slowest"],
        **figures,
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0)


def main() -> None:
    args = parse_arguments(__doc__, configure)
    print(machine_line())
    finish(campaigns(QUICK if args.quick else FULL, args.seed), args.json)


if __name__ == "__main__":
    main()
