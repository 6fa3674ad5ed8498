"""
====================================================
Two models, four operators, one forward pass per text
====================================================

A sentence encoder and a decoder language model see different things in a text. Here the layer and
pooling of the second one and the way in which both are fused are searched together. The grid has
32 combinations and 161 fits; each text passes through each model once.

The picture shows the cross-validated score by operator and layer, with SmolLM2 alone below, and
what each operator changes against the better model alone. Frames mark what is within one standard
error of the best, hatching what is within the 95 % interval of the change: with 256 texts that is
most of what is good.
"""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from quickstart import CARRIED_DATA, get_model, read_rows
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from small_models import cache_folder

from skfusion import (
    EmbedderUnion,
    FusionHeatmapDisplay,
    FusionTransformer,
    LayerHeatmapDisplay,
    LLMLayerEmbedder,
    ProjectionWarning,
)

LAYERS = [10, 15, 20, -1]
OPERATORS = ["concat", "sum", "hadamard", "quaternion"]

# %%
# The pipeline
# ------------
# `EmbedderUnion` keeps the boundaries between the models, `FusionTransformer` needs them. Both
# embedders share one store.


def build_pipeline(memory: Path) -> Pipeline:
    """Return embedding, fusion and classifier."""
    embed = EmbedderUnion(
        [
            ("minilm", LLMLayerEmbedder(get_model("minilm-l6"))),
            ("smol", LLMLayerEmbedder(get_model("smollm2-135m"), layer=15, pooling="last")),
        ],
        memory=memory,
    )
    return Pipeline(
        [
            ("embed", embed),
            ("fuse", FusionTransformer("hadamard", residual="concat", random_state=0)),
            ("clf", LogisticRegression(max_iter=1000)),
        ]
    )


# %%
# The search
# ----------
# An embedder is a parameter too: ``"drop"`` leaves it out, which gives the scores of one model
# alone in the same search.


def search(pipe: Pipeline, texts: list[str], labels: list[str], n_folds: int) -> GridSearchCV:
    """Search layers, poolings and operators, and each model alone."""
    together = {
        "embed__smol__layer": LAYERS,
        "embed__smol__pooling": ["mean", "last"],
        "fuse__operator": OPERATORS,
    }
    smol_alone = {**together, "embed__minilm": ["drop"], "fuse__operator": ["concat"]}
    smol_alone["fuse__residual"] = [False]
    minilm_alone = {"embed__smol": ["drop"], "fuse__operator": ["concat"]}
    grid = [together, smol_alone, minilm_alone]
    return GridSearchCV(pipe, grid, cv=n_folds, n_jobs=2, scoring="f1_macro").fit(texts, labels)


def best_splits(result: GridSearchCV) -> dict[str, np.ndarray]:
    """Return the folds' scores (layer, fold) of each operator and of SmolLM2 alone.

    Of the poolings, the one that is better on average.
    """
    found = result.cv_results_
    splits = np.stack([found[f"split{k}_test_score"] for k in range(result.n_splits_)], axis=1)
    best: dict[tuple[str, int], np.ndarray] = {}
    for params, scores in zip(found["params"], splits, strict=True):
        if params.get("embed__smol") == "drop":
            continue
        alone = params.get("embed__minilm") == "drop"
        cell = "SmolLM2 alone" if alone else params["fuse__operator"], params["embed__smol__layer"]
        if cell not in best or scores.mean() > best[cell].mean():
            best[cell] = scores
    rows = [*OPERATORS, "SmolLM2 alone"]
    return {row: np.stack([best[row, layer] for layer in LAYERS]) for row in rows}


# %%
# The picture
# -----------


def draw(result: GridSearchCV, splits: dict[str, np.ndarray]) -> Figure:
    """Draw operator by layer, and operators against the better model alone."""
    figure = Figure(figsize=(7.5, 6.6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[5, 2])
    LayerHeatmapDisplay.from_scores(
        splits, layers=LAYERS, name="macro-F1, better pooling", ax=above
    )
    above.set(xlabel="layer of SmolLM2-135M", title="MiniLM-L6 (last layer) with SmolLM2-135M")
    FusionHeatmapDisplay.from_cv_results(result, ax=below)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Run the search, print the table and save the picture."""
    parser = argparse.ArgumentParser(description="Search layers, poolings and fusion operators.")
    parser.add_argument("--data", type=Path, default=CARRIED_DATA, help="csv with text,label")
    parser.add_argument("--out", type=Path, default=Path("fusion_search.png"), metavar="PNG")
    parser.add_argument("--quick", action="store_true", help="3 folds instead of 5")
    args = parser.parse_args(argv)
    texts, labels = read_rows(args.data)
    pipe = build_pipeline(cache_folder() / "quickstart")
    with warnings.catch_warnings():
        # A fold has fewer rows than the narrowest block has columns, which is what it says.
        warnings.simplefilter("ignore", ProjectionWarning)
        result = search(pipe, texts, labels, n_folds=3 if args.quick else 5)
    splits = best_splits(result)
    print(f"{'operator':<14}" + "".join(f"{f'layer {k}':>12}" for k in LAYERS))
    for row, scores in splits.items():
        print(f"{row:<14}" + "".join(f"{score:12.3f}" for score in scores.mean(axis=1)))
    print(f"best: {result.best_params_} {result.best_score_:.3f}")
    draw(result, splits).savefig(args.out, dpi=150)
    print(f"picture: {args.out.resolve()}")


if __name__ == "__main__":
    main()
