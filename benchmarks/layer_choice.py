"""Measure what choosing a layer, or blending all, costs and gains, in score and in time.

Of nine data sets at most 1,000 rows of the training and 500 of the test split are embedded by
every fetched model, all layers, the first 128 tokens of a text. Of all these, 50, 200 or 1,000 are
drawn for training, three times each (1,000 rows twice), and a logistic regression is trained on
every layer and tested on the rows not drawn; a data set takes part in the sizes that leave 40 rows
to test on.
The regret of a way to choose a layer is the best layer's macro-F1 on the test rows, which no way
can know, minus that of the layer it chose from the training rows alone. Part of that lead is luck:
the steady regret is to the one layer that is best on average over the draws, and the row "best on
average" is what that layer itself has lost to luck, which no way can hope to win.

`layer="blend"` chooses none; behind it stands the same logistic regression, as strong a penalty.
Intervals are those of chance in the draws (95 %, Student's t over the draws of each model, data
set and size); models and data sets are as they are. Draws of one pool share rows, so that the
true intervals are somewhat wider.

Vectors and what was trained on them are kept in the user's cache folder, so a run that was stopped
goes on where it was, and another way to choose is measured in minutes. `--fresh` trains anew. What
the library itself does is kept under the `VERSION` of this file: raise it when that has changed.

Seconds are those of the processor for one draw: of scoring all layers, of fitting a blend and what
is trained on it, vectors read, or of 5-fold cross-validation of the logistic regression on every
layer, which is done for the first draw only: what it costs and loses is of that one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from _common import (
    DATA_SETS,
    finish,
    machine_line,
    mean_with_error,
    parse_arguments,
    print_table,
    silence,
)
from _draws import (
    MEMORY,
    MODELS,
    PENALTY,
    Cell,
    Layers,
    Plan,
    Score,
    add_options,
    draw,
    embedder,
    head,
    make_plan,
    pool,
    rate,
    run_all,
    split_layers,
    train_layers,
)
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.preprocessing import StandardScaler

from skfusion import layer_scores

#: Of what the library chooses and blends by. What was kept under another version counts no more.
VERSION = "2"

N_FOLDS = 5
ENOUGH = 200  # rows from which the figures of most of the targets are
CV = "cross-validation"
DEPTH = 0.6
BEST, LUCK, AVERAGE = "best layer", "best on average", "layer mean"
BLEND, BLEND_MEAN = "blend, all poolings", "blend, one pooling"
HEADLINE = BLEND  # of the two, what the figures without a name are of


# --- ways to choose --------------------------------------------------------------------------


def by_default(X: Layers, y: NDArray[Any], **criterion: str) -> int:
    """Choose as ``layer="auto"`` does."""
    found = layer_scores(X, y, **criterion)
    return found.names.index(found.shallowest(range(len(X))))


WAYS: dict[str, Callable[[Layers, NDArray[Any]], int]] = {
    "auto": by_default,
    "logme": partial(by_default, criterion="logme"),
    "last": lambda X, y: len(X) - 1,
    "60 % depth": lambda X, y: round(DEPTH * (len(X) - 1)),
}


# --- what is trained: slow, and kept -----------------------------------------------------------


class Chosen(NamedTuple):
    """What a way has chosen, and how long that took."""

    layer: int
    seconds: float


@MEMORY.cache
def choose(way: str, version: str, cell: Cell, model: str) -> Chosen:
    """Choose a layer from the training rows."""
    X, y, _, _ = split_layers(cell, model)
    start = time.process_time()
    layer = WAYS[way](X, y)
    return Chosen(layer, time.process_time() - start)


@MEMORY.cache
def cross_validate(cell: Cell, model: str) -> Chosen:
    """Choose the layer that is best in cross-validation of the training rows."""
    X, y, _, _ = split_layers(cell, model)
    start = time.process_time()
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0)
    scores = [f1_score(y, cross_val_predict(head(), x, y, cv=folds), average="macro") for x in X]
    return Chosen(int(np.argmax(scores)), time.process_time() - start)


@MEMORY.cache
def train_layer_mean(cell: Cell, model: str) -> Score:
    """Train on what ``layer="mean"`` gives, and test."""
    X, y, X_rest, y_rest = split_layers(cell, model)
    scalers = [StandardScaler().fit(x) for x in X]
    average, average_rest = (
        np.mean([s.transform(x) for s, x in zip(scalers, part, strict=True)], axis=0)
        for part in (X, X_rest)
    )
    return rate(head().fit(average, y), average_rest, y_rest)


class Blended(NamedTuple):
    """How good a blend is, and how long it took to fit and train."""

    score: Score
    seconds: float


def blend_head(X: NDArray[np.floating[Any]], width: int) -> LogisticRegression:
    """Return the head of a single layer, for rows whose mean squared norm is not `width`."""
    return LogisticRegression(C=PENALTY * width / float(X.var(axis=0).sum()), max_iter=300)


@MEMORY.cache
def train_blend(row: str, version: str, cell: Cell, model: str) -> Blended:
    """Train on what ``layer="blend"`` gives, and test."""
    texts, labels = pool(cell.data_set, cell.n_rows).texts, pool(cell.data_set, cell.n_rows).labels
    rows, rest = draw(cell)
    pooling = "auto" if row == BLEND else MODELS[model]
    embed = embedder(model, layer="blend", pooling=pooling, random_state=0)
    start = time.process_time()
    X = embed.fit_transform(texts[rows], labels[rows])
    fitted = blend_head(X, embed.hidden_size_).fit(X, labels[rows])
    seconds = time.process_time() - start
    return Blended(rate(fitted, embed.transform(texts[rest]), labels[rest]), seconds)


@dataclass
class Trained:
    """What came out for one model and one draw of rows."""

    by_layer: NDArray[np.float64]  # macro-F1 of each layer, on the test rows
    scores: dict[str, float]  # of each row of the table
    seconds: dict[str, float]


def run(cell: Cell, model: str) -> Trained:
    """Train on every layer, choose in every way, blend."""
    by_layer = np.array([score.f1 for score in train_layers(cell, model)])
    chosen = {way: choose(way, VERSION, cell, model) for way in WAYS}
    if cell.seed == 0:
        chosen[CV] = cross_validate(cell, model)
    blended = {row: train_blend(row, VERSION, cell, model) for row in (BLEND_MEAN, BLEND)}
    scores = {way: float(by_layer[found.layer]) for way, found in chosen.items()}
    scores |= {AVERAGE: train_layer_mean(cell, model).f1, BEST: float(by_layer.max())}
    scores |= {row: found.score.f1 for row, found in blended.items()}
    seconds = {name: found.seconds for name, found in (chosen | blended).items()}
    return Trained(by_layer, scores, seconds)


# --- measuring -------------------------------------------------------------------------------

Case = tuple[str, str, int]  # model, data set, size


class Totals:
    """What the draws of all data sets and models add up to, in points of macro-F1."""

    def __init__(self, runs: dict[tuple[Cell, str], Trained]) -> None:
        by_case: dict[Case, list[Trained]] = defaultdict(list)
        for (cell, model), trained in runs.items():
            by_case[model, cell.data_set, cell.size].append(trained)
        self.scores: dict[str, dict[Case, NDArray[np.float64]]] = defaultdict(dict)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        for case, draws in by_case.items():
            steady = int(np.argmax(np.mean([one.by_layer for one in draws], axis=0)))
            for row in draws[0].scores:  # that of the first draw has all
                found = [one.scores[row] for one in draws if row in one.scores]
                self.scores[row][case] = 100 * np.array(found)
            self.scores[LUCK][case] = 100 * np.array([one.by_layer[steady] for one in draws])
            for name, seconds in draws[0].seconds.items():
                self.seconds[name].append(seconds)

    def lead(self, row: str, other: str, sizes: list[int]) -> tuple[float, float]:
        """Return the mean of a row minus that of another, and half of its interval."""
        return mean_with_error(
            [self._differences(row, other, case) for case in self.scores[row] if case[2] in sizes]
        )

    def _differences(self, row: str, other: str, case: Case) -> NDArray[np.float64]:
        """Return what a row leads another by, in the draws that both have."""
        ours, theirs = self.scores[row][case], self.scores[other][case]
        n = min(len(ours), len(theirs))
        return ours[:n] - theirs[:n]

    def worst_lead(self, row: str, other: str, sizes: list[int]) -> tuple[float, float, str]:
        """Return the lead on the model and data set where it is lowest, its interval, and both."""
        cases: dict[tuple[str, str], list[NDArray[np.float64]]] = defaultdict(list)
        for case in self.scores[row]:
            model, data_set, size = case
            if size in sizes:
                cases[model, data_set].append(self._differences(row, other, case))
        leads = {case: mean_with_error(draws) for case, draws in cases.items()}
        worst = min(leads, key=lambda case: leads[case][0])
        return *leads[worst], " on ".join(worst)


def print_regrets(totals: Totals, plan: Plan) -> None:
    """Print what each row loses to the best layer of each draw."""
    rows = []
    for way in totals.scores:
        if way != BEST:
            losses = [totals.lead(BEST, way, [size]) for size in plan.sizes]
            losses.append(totals.lead(BEST, way, plan.sizes))
            steady = totals.lead(LUCK, way, plan.sizes)[0]
            spent = f"{np.mean(totals.seconds[way]):.2f}" if way in totals.seconds else "-"
            cells = [
                f"{mean:.2f}" if np.isnan(half) else f"{mean:.2f} ± {half:.2f}"
                for mean, half in losses
            ]
            rows.append([way, *cells, f"{steady:.2f}", spent])
    header = ["chosen by", *(f"{size} rows" for size in plan.sizes), "all", "steady", "seconds"]
    print_table("regret in points of macro-F1", header, rows)


def print_worst(totals: Totals, plan: Plan) -> None:
    """Print where rows are worst against the last layer."""
    rows = []
    for way in ("auto", BLEND_MEAN, BLEND):
        for size in plan.sizes:
            mean, half, where = totals.worst_lead(way, "last", [size])
            rows.append([f"{way}, {size} rows", f"{mean:.2f} ± {half:.2f}", where])
    print_table("least lead over the last layer", ["", "points of macro-F1", "where"], rows)


def figures_of(totals: Totals, plan: Plan) -> dict[str, float]:
    """Return the flat figures."""
    enough = [size for size in plan.sizes if size >= ENOUGH] or plan.sizes
    few = plan.sizes[:1]
    return {
        **{
            f"regret_{name}_pp": totals.lead(BEST, way, plan.sizes)[0]
            for name, way in (("auto", "auto"), ("last", "last"), ("cv", CV), ("luck", LUCK))
        },
        **{
            f"steady_regret_{way}_pp": totals.lead(LUCK, way, plan.sizes)[0]
            for way in ("auto", "last")
        },
        "auto_time_share_logistic": sum(totals.seconds["auto"]) / sum(totals.seconds[CV]),
        "auto_minus_last_worst_pp": totals.worst_lead("auto", "last", enough)[0],
        "blend_minus_oracle_layer_pp": totals.lead(HEADLINE, BEST, enough)[0],
        f"blend_minus_oracle_layer_{few[0]}_pp": totals.lead(HEADLINE, BEST, few)[0],
        "blend_minus_auto_pp": totals.lead(HEADLINE, "auto", plan.sizes)[0],
        "blend_minus_last_worst_pp": totals.worst_lead(HEADLINE, "last", enough)[0],
        **{
            f"blend_{name}_minus_oracle_layer_pp": totals.lead(row, BEST, enough)[0]
            for name, row in (("one_pooling", BLEND_MEAN), ("all_poolings", BLEND))
        },
    }


def main() -> None:
    """Print the tables and write the figures."""
    args = parse_arguments(str(__doc__), add_options)
    print(machine_line())
    silence()
    plan = make_plan(args, DATA_SETS, ["rotten_tomatoes"])
    if args.fresh:
        MEMORY.clear(warn=False)
    calls = [(cell, model) for model in plan.models for cell in plan.cells()]
    totals = Totals(dict(zip(calls, run_all(run, calls, args.n_jobs), strict=True)))
    print_regrets(totals, plan)
    print_worst(totals, plan)
    finish(figures_of(totals, plan), args.json)


if __name__ == "__main__":
    # By its name, under which what was trained is found again from any folder and process.
    import layer_choice

    layer_choice.main()
