"""Measure `FusionClassifier` against what users of scikit-learn do today.

Of nine data sets 50, 200 or 1,000 training rows are drawn, three times each (1,000 twice),
from a pool of at most 1,000 rows of the training and 500 of the test split; all other rows are
test rows. A data set takes part in the sizes that leave 40 of them. Of a text the first 128 tokens
count, in TF-IDF all words. The draws are those of `layer_choice.py`.

- TF-IDF (words and pairs of words) + tuned logistic regression;
- vectors of sentence-transformers (MiniLM, mpnet) + tuned logistic regression: the mean over the
  tokens in the last layer, of unit length, as its `encode` gives them, here cut at 128 tokens;
- the paper: last layers of all models side by side, `FusionMLPClassifier(solver="paper")`;
- the best single layer of all models, in hindsight: by the test rows of each draw, which nobody
  has. Standardised, logistic regression with C = 0.01;
- ours: `FusionClassifier` with one model, two, three and all, in an order that was fixed before
  anything was measured, and with each model alone.

Tuned: nine values of C (0.01 to 10,000) and `class_weight` None or "balanced", by 5-fold
cross-validated macro-F1.
The log-loss is that of test rows whose class was among the training rows; a chance counts as
1.2e-7 at least.

A cell is a data set with one size. Intervals are those of chance in the draws (95 %, Student's t
over the draws of each cell, paired); data sets are as they are. Draws of one pool share rows, so
that the true intervals are somewhat wider. Seconds are those of the processor, for `fit` and
`predict` from stored vectors, reading included. `FusionClassifier.fit` repeats itself in five
folds for what `summary` reports, which changes nothing else: it does so here in the first draw of
up to 200 rows only, for its seconds.

Vectors and results are kept in the user's cache folder, so a run that was stopped goes on where it
was. A change of the library is measured anew under another `VERSIONS["ours"]` of `_contenders.py`;
`--fresh` trains everything anew. `--setfit PYTHON` adds SetFit, trained by the Python of another
environment, on three data sets, 50 rows, two draws.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

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
from _contenders import MEMORY, Contender, Result, result
from _draws import Cell, Plan, add_options, make_plan, run_all, train_layers
from numpy.typing import NDArray

QUICK = ["legalbench_function_of_decision_section", "legalbench_overruling"]
ENOUGH = 200  # rows from which the figures of most of the targets are
SENTENCE_MODELS = ("minilm-l6", "mpnet")
SETFIT_SETS, SETFIT_ROWS, SETFIT_DRAWS = ["legalbench_overruling", "rotten_tomatoes", "r8"], 50, 2
HINDSIGHT = "best layer in hindsight"

Case = tuple[str, int]  # data set, size
Values = dict[Case, NDArray[np.float64]]  # one per draw


# --- what is compared ------------------------------------------------------------------------


class Field:
    """Who takes part with some models."""

    def __init__(self, models: list[str]) -> None:
        names = tuple(models)
        self.logistic = [
            Contender("TF-IDF"),
            *(Contender("sentence-transformers", (m,)) for m in names if m in SENTENCE_MODELS),
        ]
        self.peers = [*self.logistic, Contender("paper", names)]
        self.sentence = self.logistic[1:]
        self.growing = [Contender("ours", names[: n + 1]) for n in range(len(names))]
        self.single = [Contender("ours", (model,)) for model in names]
        self.recipe = self.growing[-1]
        self.with_report = Contender("ours with its report", names)

    def all(self) -> list[Contender]:
        """Return each contender once."""
        return list(dict.fromkeys([*self.peers, *self.growing, *self.single]))


def best_layer(models: tuple[str, ...], cell: Cell) -> Result:
    """Return the best score of all layers of all models, on the test rows."""
    scores = [score for model in models for score in train_layers(cell, model)]
    return Result(max(scores, key=lambda score: score.f1), float("nan"))


# --- measuring -------------------------------------------------------------------------------


class Totals:
    """All results: by contender's name, then by data set and size, one per draw."""

    def __init__(self) -> None:
        self.f1: dict[str, Values] = defaultdict(dict)  # in points
        self.log_loss: dict[str, Values] = defaultdict(dict)
        self.seconds: dict[str, Values] = defaultdict(dict)

    def add(self, name: str, cells: list[Cell], results: list[Result]) -> None:
        """Sort the results of a contender."""
        by_case: dict[Case, list[Result]] = defaultdict(list)
        for cell, found in zip(cells, results, strict=True):
            by_case[cell.data_set, cell.size].append(found)
        for case, draws in by_case.items():
            self.f1[name][case] = 100 * np.array([found.score.f1 for found in draws])
            self.log_loss[name][case] = np.array([found.score.log_loss for found in draws])
            self.seconds[name][case] = np.array([found.seconds for found in draws])

    def best(self, names: list[str]) -> Values:
        """Return the scores of that one of some which is best in each cell, in the mean."""
        return {
            case: max((self.f1[name][case] for name in names), key=np.mean)
            for case in self.f1[names[0]]
        }

    def steadily_best(self, names: list[str]) -> Values:
        """Return the scores of that one of some which is best on each data set, over all sizes."""
        cases = list(self.f1[names[0]])
        chosen = {
            data_set: max(
                names,
                key=lambda name: np.mean(
                    [self.f1[name][case].mean() for case in cases if case[0] == data_set]
                ),
            )
            for data_set in {case[0] for case in cases}
        }
        return {case: self.f1[chosen[case[0]]][case] for case in cases}


def lead(ours: Values, other: Values, sizes: list[int]) -> tuple[float, float]:
    """Return the mean over cells of ours minus another's, and half of its interval."""
    cases = [case for case in ours if case[1] in sizes]
    return mean_with_error([ours[case] - other[case] for case in cases])


def worst_lead(ours: Values, other: Values, sizes: list[int]) -> tuple[float, float, str]:
    """Return the lead on the data set where it is lowest, half of its interval, and the set."""
    data_sets = dict.fromkeys(case[0] for case in ours if case[1] in sizes)

    def lead_on(data_set: str) -> tuple[float, float]:
        return lead({case: x for case, x in ours.items() if case[0] == data_set}, other, sizes)

    leads = {data_set: lead_on(data_set) for data_set in data_sets}
    worst = min(leads, key=lambda data_set: leads[data_set][0])
    return *leads[worst], worst


def measure(plan: Plan, field: Field, n_jobs: int) -> Totals:
    """Train everything that is not kept yet."""
    totals, cells = Totals(), plan.cells()
    # Contenders of one draw after each other, so that a stopped run has whole cells.
    calls = [(contender, cell) for cell in cells for contender in field.all()]
    found = dict(zip(calls, run_all(result, calls, n_jobs), strict=True))
    for contender in field.all():
        totals.add(str(contender), cells, [found[contender, cell] for cell in cells])
    first = [cell for cell in cells if cell.seed == 0 and cell.size <= ENOUGH]
    reported = run_all(result, [(field.with_report, cell) for cell in first], n_jobs)
    totals.add(str(field.with_report), first, reported)
    models = tuple(plan.models)
    # By model, so that a process reads the layers of a pool once.
    layers = [(cell, model) for model in models for cell in cells]
    run_all(train_layers, layers, n_jobs)
    totals.add(HINDSIGHT, cells, [best_layer(models, cell) for cell in cells])
    return totals


# --- what comes out --------------------------------------------------------------------------


def print_scores(totals: Totals, field: Field, size: int) -> None:
    """Print the mean macro-F1 of each contender on each data set."""
    names = [*map(str, field.all()), HINDSIGHT]
    data_sets = [data_set for data_set, n in totals.f1[names[0]] if n == size]
    means = {
        name: [float(totals.f1[name][data_set, size].mean()) for data_set in data_sets]
        for name in names
    }
    short = [data_set.replace("legalbench_", "lb_")[:20] for data_set in data_sets]
    rows = [
        [name, *(f"{mean:.1f}" for mean in row), f"{np.mean(row):.1f}"]
        for name, row in means.items()
    ]
    print_table(f"macro-F1 in points, {size} training rows", ["", *short, "mean"], rows)


def print_leads(totals: Totals, field: Field, sizes: list[int]) -> None:
    """Print what all models lead each contender by, and the other measures."""
    recipe = str(field.recipe)
    rows = []
    for name in [*map(str, field.all()), HINDSIGHT]:
        if name == recipe:
            continue
        leads = [lead(totals.f1[recipe], totals.f1[name], [size]) for size in sizes]
        leads.append(lead(totals.f1[recipe], totals.f1[name], sizes))
        ratio = ratio_of(totals.log_loss[recipe], totals.log_loss[name])
        rows.append([name, *(f"{mean:+.2f} ± {half:.2f}" for mean, half in leads), f"{ratio:.2f}"])
    header = ["", *(f"{size} rows" for size in sizes), "all", "log-loss ratio"]
    print_table(f"lead of {recipe} in points of macro-F1", header, rows)
    spent = [
        [name, *(seconds_of(totals.seconds[name], size) for size in sizes)]
        for name in map(str, [*field.all(), field.with_report])
    ]
    print_table("seconds of fit and predict, mean", ["", *(f"{n} rows" for n in sizes)], spent)


def print_losses(totals: Totals, field: Field) -> None:
    """Print the cells in which all models are below the best peer."""
    recipe = totals.f1[str(field.recipe)]
    peers = {str(peer): totals.f1[str(peer)] for peer in field.peers}
    rows = []
    for case, scores in recipe.items():
        name = max(peers, key=lambda peer: peers[peer][case].mean())
        mean, half = mean_with_error([scores - peers[name][case]])
        if mean < 0:
            rows.append([f"{case[0]}, {case[1]} rows", f"{mean:+.2f} ± {half:.2f}", name])
    title = f"where it loses: {len(rows)} of {len(recipe)} cells"
    print_table(title, ["", "points of macro-F1", "to"], rows)


def ratio_of(values: Values, other: Values) -> float:
    """Return the mean over cells of the ratio of means."""
    return float(np.mean([values[case].mean() / other[case].mean() for case in values]))


def seconds_of(values: Values, size: int) -> str:
    """Return the mean over the cells of a size, in words."""
    means = [draws.mean() for (_, n), draws in values.items() if n == size]
    return f"{np.mean(means):.2f}" if means else "-"


def figures_of(totals: Totals, field: Field, sizes: list[int]) -> dict[str, float]:
    """Return the flat figures, each lead with half of its interval."""
    enough = [size for size in sizes if size >= ENOUGH] or sizes
    recipe = str(field.recipe)
    ours, peer = totals.f1[recipe], totals.best([str(peer) for peer in field.peers])
    single = totals.steadily_best([str(one) for one in field.single])
    leads = {
        "recipe_minus_best_peer_mean_pp": lead(ours, peer, sizes),
        "recipe_minus_best_peer_worst_pp": worst_lead(ours, peer, enough)[:2],
        "more_models_mean_pp": lead(ours, single, sizes),
        "more_models_worst_pp": worst_lead(ours, single, sizes)[:2],
        "recipe_minus_best_layer_mean_pp": lead(ours, totals.f1[HINDSIGHT], sizes),
    }
    for name, (_, _, where) in (
        ("best peer", worst_lead(ours, peer, enough)),
        ("best single model", worst_lead(ours, single, sizes)),
    ):
        print(f"\nleast lead over the {name}: on {where}")
    logistic = {
        case: min((totals.log_loss[str(one)][case] for one in field.logistic), key=np.mean)
        for case in ours
    }
    sentence = [totals.seconds[str(one)] for one in field.sentence]
    seconds = {case: np.mean([one[case] for one in sentence], axis=0) for case in ours}
    with_report = totals.seconds[str(field.with_report)]
    return {
        **{name: mean for name, (mean, _) in leads.items()},
        **{name.replace("_pp", "_interval_pp"): half for name, (_, half) in leads.items()},
        "logloss_vs_logistic": ratio_of(totals.log_loss[recipe], logistic),
        "recipe_seconds_vs_st_logistic": ratio_of(with_report, seconds),
        "recipe_without_report_seconds_vs_st_logistic": ratio_of(totals.seconds[recipe], seconds),
        "cells_below_best_peer": float(sum((ours[c] - peer[c]).mean() < 0 for c in ours)),
        "cells": float(len(ours)),
    }


def print_setfit(python: str, plan: Plan, totals: Totals, field: Field) -> None:
    """Print SetFit beside all models, on the draws that both have."""
    cells = [
        cell
        for cell in plan.cells()
        if cell.data_set in SETFIT_SETS and cell.size == SETFIT_ROWS and cell.seed < SETFIT_DRAWS
    ]
    contender = Contender("SetFit", (python,))
    found = run_all(result, [(contender, cell) for cell in cells], 1)
    recipe = totals.f1[str(field.recipe)]
    rows = [
        [
            f"{cell.data_set}, draw {cell.seed}",
            f"{100 * one.score.f1:.1f}",
            f"{recipe[cell.data_set, cell.size][cell.seed]:.1f}",
        ]
        for cell, one in zip(cells, found, strict=True)
    ]
    print_table("macro-F1 in points, 50 training rows", ["", "SetFit", str(field.recipe)], rows)


def configure(parser: Any) -> None:
    add_options(parser)
    parser.add_argument("--setfit", metavar="PYTHON", help="the Python that has setfit")


def main() -> None:
    """Print the tables and write the figures."""
    args = parse_arguments(str(__doc__), configure)
    print(machine_line())
    silence()
    plan = make_plan(args, DATA_SETS, QUICK)
    if args.fresh:
        MEMORY.clear(warn=False)
        train_layers.clear(warn=False)
    field = Field(plan.models)
    totals = measure(plan, field, args.n_jobs)
    for size in plan.sizes:
        print_scores(totals, field, size)
    print_leads(totals, field, plan.sizes)
    print_losses(totals, field)
    if args.setfit:
        print_setfit(args.setfit, plan, totals, field)
    finish(figures_of(totals, field, plan.sizes), args.json)


if __name__ == "__main__":
    main()
