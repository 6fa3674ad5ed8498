"""
===============================================
The paper's figures, from a search of one's own
===============================================

Gwak and Jung (ACL 2026) show four pictures: scores by layer (their Figure 2), what operators
change for pairs of models (3), poolings (4), and scores against what the models cost (5). Any
search that tries layers, poolings, operators and each model alone has all four in its
``cv_results_``, and a display draws each.

What to look for: whether differences are larger than the intervals. With the 256 support messages
that the examples carry, most are not, and the pictures say so: rings mark what is within one
standard error of the best, hatching what fusing two models changes by less than its interval.
"""

import argparse
import warnings
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from quickstart import CARRIED_DATA, get_model, read_rows
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from small_models import cache_folder

from skfusion import (
    PAPER_OPERATORS,
    EmbedderUnion,
    FusionHeatmapDisplay,
    FusionTransformer,
    LayerProfileDisplay,
    LLMLayerEmbedder,
    PoolingDisplay,
    ProjectionWarning,
    TradeoffDisplay,
    layer_space,
    measure_costs,
)

#: The layer in a pair: the last of a sentence encoder, a middle one of a decoder.
MODELS = {"minilm": ("minilm-l6", -1), "smol": ("smollm2-135m", 10), "gemma": ("gemma3-270m", 9)}
TITLES = {2: "layers", 3: "operators", 4: "poolings", 5: "cost"}
POOLINGS = ["mean", "mean_no_first", "last", "max"]

# %%
# One search
# ----------
# Every model alone with each of its layers and poolings, and every pair with each operator, at
# one layer of both. Folds are the same for all, so that differences are paired. A text
# passes through each model once, whatever is tried.


def build_pipeline(models: Sequence[str], memory: Path) -> Pipeline:
    """Return embedding, fusion and classifier."""
    embedders = []
    for name in models:
        model, layer = MODELS[name]
        embedders.append((name, LLMLayerEmbedder(get_model(model), layer=layer)))
    return Pipeline(
        [
            ("embed", EmbedderUnion(embedders, memory=memory)),
            ("fuse", FusionTransformer("concat", random_state=0)),
            ("clf", LogisticRegression(C=0.1, max_iter=1000)),
        ]
    )


def make_grid(
    union: EmbedderUnion, parts: int | str, poolings: list[str]
) -> list[dict[str, list[Any]]]:
    """Return a grid for each model alone, and two for each pair of models."""
    embedders = dict(union.embedders)
    single, pairs = [], []
    for name, embedder in embedders.items():
        others = {f"embed__{other}": ["drop"] for other in embedders if other != name}
        layers = layer_space(embedder, parts)
        searched = {f"embed__{name}__layer": layers, f"embed__{name}__pooling": poolings}
        single.append({**others, **searched})
    for pair in combinations(embedders, 2):
        others = {f"embed__{other}": ["drop"] for other in embedders if other not in pair}
        for setting in PAPER_OPERATORS:
            operator = {f"fuse__{key}": [value] for key, value in setting.items()}
            pairs.append({**others, **operator})
    return single + pairs


# %%
# Four pictures
# -------------
# Figure 5 needs to know what a model costs, which the search does not: it found all vectors in the
# store. `measure_costs` runs each model on a few texts, in a process that has nothing loaded.


def draw(
    search: GridSearchCV, models: Sequence[str], seconds: dict[str, float], wanted: Sequence[int]
) -> Figure:
    """Draw some of the paper's figures, each in a row of its own."""
    heights = {2: 4, 3: 1 + len(models), 4: 3, 5: 4}
    ratios = [heights[number] for number in wanted]
    figure = Figure(figsize=(5 * len(models), 1.02 * sum(ratios)), layout="constrained")
    rows = np.atleast_1d(figure.subfigures(len(wanted), 1, hspace=0.08, height_ratios=ratios))
    for number, row in zip(wanted, rows, strict=True):
        if number == 3:
            FusionHeatmapDisplay.from_cv_results(search, ax=row.subplots())
        elif number == 5:
            draw_costs(search, models, seconds, row.subplots())
        else:
            draw_each_model(search, models, number, row.subplots(1, len(models), sharey=True))
        row.suptitle(f"Figure {number}: {TITLES[number]}", weight="bold")
    return figure


def draw_each_model(search: GridSearchCV, models: Sequence[str], number: int, axes: Any) -> None:
    """Draw layers or poolings of each model beside each other."""
    for axis, name in zip(axes, models, strict=True):
        layer, pooling = f"embed__{name}__layer", f"embed__{name}__pooling"
        if number == 2:
            LayerProfileDisplay.from_cv_results(search, layer=layer, by=pooling, ax=axis)
        else:
            PoolingDisplay.from_cv_results(search, layer=layer, pooling=pooling, ax=axis)
        axis.set_title(name)


def draw_costs(
    search: GridSearchCV, models: Sequence[str], seconds: dict[str, float], axis: Any
) -> None:
    """Draw each model and pair, with what is best for it, over the seconds of its models."""
    results = search.cv_results_
    best: dict[tuple[str, ...], int] = {}
    for i, params in enumerate(results["params"]):
        kept = tuple(name for name in models if params.get(f"embed__{name}") != "drop")
        if (
            kept not in best
            or results["mean_test_score"][i] > results["mean_test_score"][best[kept]]
        ):
            best[kept] = i
    splits = [results[f"split{k}_test_score"] for k in range(search.n_splits_)]
    TradeoffDisplay.from_scores(
        np.stack(splits, axis=1)[list(best.values())],
        [1000 * sum(seconds[name] for name in kept) for kept in best],
        [" + ".join(kept) for kept in best],
        name="macro-F1",
        cost_name="milliseconds a text",
        ax=axis,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the search and save the picture."""
    parser = argparse.ArgumentParser(description="Draw the paper's Figures 2 to 5.")
    parser.add_argument("--data", type=Path, default=CARRIED_DATA, help="csv with text,label")
    parser.add_argument("--out", type=Path, default=Path("inspection.png"), metavar="PNG")
    parser.add_argument("--figures", type=int, nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--quick", action="store_true", help="two models, few layers, 2 folds")
    args = parser.parse_args(argv)
    texts, labels = read_rows(args.data)
    models = list(MODELS)[: 2 if args.quick else 3]
    pipe = build_pipeline(models, cache_folder() / "quickstart")
    union = pipe["embed"]
    search = GridSearchCV(
        pipe,
        make_grid(union, 2, POOLINGS[:2]) if args.quick else make_grid(union, "all", POOLINGS),
        cv=2 if args.quick else 5,
        n_jobs=None if args.quick else 2,
        scoring="f1_macro",
    )
    with warnings.catch_warnings():
        # A fold has fewer rows than the narrowest block has columns, which is what it says.
        warnings.simplefilter("ignore", ProjectionWarning)
        search.fit(texts, labels)
    measured = measure_costs(union, texts[:30]) if 5 in args.figures else {"seconds_per_text": {}}
    seconds = dict(measured["seconds_per_text"])
    n_fits = len(search.cv_results_["params"]) * search.n_splits_
    print(f"{n_fits} fits; best: {search.best_score_:.3f} with {search.best_params_}")
    draw(search, models, seconds, args.figures).savefig(args.out, dpi=120)
    print(f"picture: {args.out.resolve()}")


if __name__ == "__main__":
    main()
