"""Texts encoded and seconds of a search over layers, poolings and C, from a cold store.

`GridSearchCV` with 5 folds and refit over 7 layers x 2 poolings x 3 C of
`Pipeline([embed, StandardScaler, LogisticRegression])`, minilm-l6 on rotten_tomatoes, with

skfusion   `LLMLayerEmbedder` on an empty store; and once more on the store that this leaves, which
           is the price of the 210 fits of scaler and classifier alone.
plain      a transformer as one writes it with transformers: `output_hidden_states=True`, batches
           of 32 sorted by length, layer and pooling as parameters. Its weights are loaded once a
           process, not once a fit.
skrub      LLMEncoder (the new name of TextEncoder). It has neither layer nor pooling, so it
           searches an equal number of settings of its `random_state`, which changes nothing here.

plain and skrub also with `Pipeline(memory=)`, an empty joblib folder. They would take long: unless
--full is given, they run one (layer, pooling) with all C and folds, without refit, and what they
need for all 14 pairs and the refit is scaled by the number of texts encoded. The table says which
rows are measured and which are scaled. Texts are counted where they enter the model's forward.
Weights are loaded and warm before the clock runs (but skrub loads them again in every fit).

Needs sentence-transformers and skrub beside skfusion and pandas.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from _common import (
    alternate,
    finish,
    machine_line,
    model_path,
    parse_arguments,
    print_table,
    read_split,
    silence,
    threads,
)
from _peers import PlainLoop
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from transformers import BertModel

from skfusion import LLMLayerEmbedder

Grid = dict[str, list[Any]]


@dataclass(frozen=True)
class Sizes:
    """How much is searched."""

    rows: int
    layers: list[int]
    poolings: list[str]
    cs: list[float]
    folds: int
    repeats: int


FULL = Sizes(300, list(range(7)), ["mean", "last"], [0.01, 0.1, 1.0], 5, 3)
QUICK = Sizes(60, [3, 6], ["mean", "last"], [0.1], 2, 1)


# --- contenders ------------------------------------------------------------------------------


@functools.cache
def plain_loop(folder: str) -> PlainLoop:
    """Load the model once a process."""
    return PlainLoop(folder)


class PlainTransformer(TransformerMixin, BaseEstimator):
    """One layer and one pooling of a model, encoded anew in every call."""

    def __init__(self, model: str, layer: int = -1, pooling: str = "mean") -> None:
        self.model = model
        self.layer = layer
        self.pooling = pooling

    def fit(self, X: pd.Series, y: Any = None) -> PlainTransformer:
        """Do nothing."""
        return self

    def transform(self, X: pd.Series) -> NDArray[np.float32]:
        """Encode texts."""
        return plain_loop(self.model)(list(X), [(self.layer, self.pooling)])[:, 0].numpy()

    def __sklearn_is_fitted__(self) -> bool:
        return True


@dataclass(frozen=True)
class Contender:
    """An encoder, and the parameters that stand for layer and pooling."""

    embed: Any
    pairs: Grid  # every (layer, pooling)
    one: Grid  # one of them
    pipeline_memory: bool = False


def make_peers(model: str, sizes: Sizes) -> dict[str, Contender]:
    """List the peers, each with and without a pipeline memory."""
    from skrub import LLMEncoder

    plain = PlainTransformer(model)
    skrub = LLMEncoder(model, n_components=None, device="cpu", cache_folder=model)
    n_pairs = len(sizes.layers) * len(sizes.poolings)
    settings = {"embed__random_state": list(range(n_pairs))}
    peers = {}
    for memory in (False, True):
        suffix = " + memory" if memory else ""
        one = {"embed__layer": sizes.layers[-1:], "embed__pooling": ["mean"]}
        peers[f"plain{suffix}"] = Contender(plain, layer_grid(sizes), one, memory)
        one = {"embed__random_state": [0]}
        peers[f"skrub{suffix}"] = Contender(skrub, settings, one, memory)
    return peers


def layer_grid(sizes: Sizes) -> Grid:
    """Return the parameters that choose layer and pooling."""
    return {"embed__layer": sizes.layers, "embed__pooling": sizes.poolings}


# --- running ---------------------------------------------------------------------------------


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Count the rows that enter the model, whoever calls it, in a list of one number."""
    forward, count = BertModel.forward, [0]

    @functools.wraps(forward)
    def counting(self: Any, input_ids: Any = None, *args: Any, **options: Any) -> Any:
        count[0] += len(input_ids)
        return forward(self, input_ids, *args, **options)

    BertModel.forward = counting
    try:
        yield count
    finally:
        BertModel.forward = forward


@dataclass(frozen=True)
class Outcome:
    """What a search came to."""

    texts: int
    search: GridSearchCV


def run_search(
    embed: Any, grid: Grid, data: pd.DataFrame, sizes: Sizes, memory: str | None, refit: bool
) -> Outcome:
    """Search over `grid` and all C."""
    steps = [("embed", embed), ("scale", StandardScaler())]
    pipeline = Pipeline([*steps, ("clf", LogisticRegression(max_iter=300))], memory=memory)
    search = GridSearchCV(pipeline, {**grid, "clf__C": sizes.cs}, cv=sizes.folds, refit=refit)
    with counted() as count:
        search.fit(data["text"], data["label"])
    return Outcome(count[0], search)


def run_ours(model: str, data: pd.DataFrame, sizes: Sizes, memory: str) -> Outcome:
    """Search all of it with skfusion."""
    embed = LLMLayerEmbedder(model, memory=memory, max_length=256, device="cpu")
    return run_search(embed, layer_grid(sizes), data, sizes, None, refit=True)


def run_peer(
    peer: Contender, data: pd.DataFrame, sizes: Sizes, scratch: str, full: bool
) -> Outcome:
    """Search all of it, or one (layer, pooling), with a peer."""
    memory = tempfile.mkdtemp(dir=scratch) if peer.pipeline_memory else None
    return run_search(peer.embed, peer.pairs if full else peer.one, data, sizes, memory, full)


def check_scores(ours: GridSearchCV, plain: GridSearchCV, rows: int) -> None:
    """Stop unless skfusion's scores are those of the plain transformer (but for rounding)."""
    theirs = plain.cv_results_
    for parameters, score in zip(theirs["params"], theirs["mean_test_score"], strict=True):
        i = ours.cv_results_["params"].index(parameters)
        found = ours.cv_results_["mean_test_score"][i]
        if not abs(found - score) < max(0.02, 1.5 / rows):
            raise SystemExit(f"{parameters} scores {found:.3f} with skfusion, plainly {score:.3f}")


def compare(args: argparse.Namespace, sizes: Sizes) -> dict[str, float]:
    """Run all contenders in turn and print their table."""
    model = model_path("minilm-l6")
    data = read_split(args.data).sample(sizes.rows, random_state=0)
    peers = make_peers(model, sizes)
    with tempfile.TemporaryDirectory() as scratch, threads(args.threads):
        warm_up = data["text"][:2]
        LLMLayerEmbedder(model, memory=scratch + "/warm-up", device="cpu").fit_transform(warm_up)
        for peer in peers.values():
            peer.embed.fit_transform(warm_up)
        stores: list[str] = []

        def cold() -> Outcome:
            stores.append(tempfile.mkdtemp(dir=scratch))
            return run_ours(model, data, sizes, stores[-1])

        runs = {
            "skfusion": cold,
            "skfusion, warm": lambda: run_ours(model, data, sizes, stores[-1]),
        }
        for name, peer in peers.items():
            runs[name] = functools.partial(run_peer, peer, data, sizes, scratch, args.full)
        seconds, outcomes = alternate(runs, 1 if args.full else sizes.repeats)
    check_scores(outcomes["skfusion"].search, outcomes["plain"].search, sizes.rows)
    return report(args, sizes, seconds, {name: o.texts for name, o in outcomes.items()})


def report(
    args: argparse.Namespace, sizes: Sizes, seconds: dict[str, float], texts: dict[str, int]
) -> dict[str, float]:
    """Scale what was run in part, print, and give the figures."""
    n_pairs = len(sizes.layers) * len(sizes.poolings)
    rows, totals = [], {}
    for name, measured in seconds.items():
        scaled = not args.full and not name.startswith("skfusion")
        all_texts = texts[name] * n_pairs + sizes.rows if scaled else texts[name]
        totals[name] = measured * all_texts / texts[name] if scaled else measured
        kind = f"scaled from {texts[name]} texts, {measured:.1f} s" if scaled else "measured"
        rows.append([name, all_texts, totals[name], totals[name] / totals["skfusion"], kind])
    size = f"{len(sizes.layers)} layers x {len(sizes.poolings)} poolings x {len(sizes.cs)} C"
    texts_of = f"{sizes.rows} texts of {args.data}"
    title = f"{size} x {sizes.folds} folds, {texts_of}, {args.threads} thread(s)"
    print_table(title, ["", "texts encoded", "seconds", "x skfusion's", "how"], rows)
    best = min(total for name, total in totals.items() if not name.startswith("skfusion"))
    return {
        "search_speedup": best / totals["skfusion"],
        "search_texts_encoded": texts["skfusion"],
        "search_s": totals["skfusion"],
        "search_warm_s": totals["skfusion, warm"],
        "search_best_peer_s": best,
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--data", default="rotten_tomatoes", help="mr_imdb has longer texts")
    parser.add_argument("--full", action="store_true", help="scale nothing: takes very long")


def main() -> None:
    args = parse_arguments(__doc__, configure)
    silence()
    print(machine_line())
    finish(compare(args, QUICK if args.quick else FULL), args.json)


if __name__ == "__main__":
    main()
