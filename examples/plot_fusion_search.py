"""
====================================================
Two models, four operators, one forward pass per text
====================================================

A sentence encoder and a decoder language model see different things in a text. Here the layer and
pooling of the second one and the way in which both are fused are searched together. The grid has
32 combinations and 161 fits; each text passes through each model once.

The picture shows the cross-validated score by operator and layer, and beside it what each model
reaches alone.
"""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from quickstart import CARRIED_DATA, get_model, read_rows
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from small_models import cache_folder

from skfusion import EmbedderUnion, FusionTransformer, LLMLayerEmbedder, ProjectionWarning

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


def best_scores(results: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the best mean score over the poolings: fused, SmolLM2 alone, and MiniLM alone."""
    fused = np.full((len(OPERATORS), len(LAYERS)), -np.inf)
    smol, minilm = np.full(len(LAYERS), -np.inf), -np.inf
    for params, score in zip(results["params"], results["mean_test_score"], strict=True):
        if params.get("embed__smol") == "drop":
            minilm = score
            continue
        column = LAYERS.index(params["embed__smol__layer"])
        if params.get("embed__minilm") == "drop":
            smol[column] = max(smol[column], score)
        else:
            row = OPERATORS.index(params["fuse__operator"])
            fused[row, column] = max(fused[row, column], score)
    return fused, smol, minilm


# %%
# The picture
# -----------


def draw(fused: np.ndarray, smol: np.ndarray, minilm: float) -> Figure:
    """Draw operator by layer, with each model alone as rows of their own."""
    rows = [*OPERATORS, "SmolLM2 alone", "MiniLM alone"]
    scores = np.vstack([fused, smol, np.full(len(LAYERS), minilm)])
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(scores, cmap="YlGnBu", aspect="auto")
    middle = (scores.min() + scores.max()) / 2
    for (row, column), score in np.ndenumerate(scores):
        best = score == fused.max() and row < len(OPERATORS)
        axis.text(
            column,
            row,
            f"{score:.3f}",
            ha="center",
            va="center",
            weight="bold" if best else "normal",
            color="white" if score > middle + (scores.max() - middle) * 0.3 else "black",
        )
    axis.axhline(len(OPERATORS) - 0.5, color="white", linewidth=4)
    axis.set_xticks(range(len(LAYERS)), ["last" if k == -1 else str(k) for k in LAYERS])
    axis.set_yticks(range(len(rows)), rows)
    axis.set(
        xlabel="layer of SmolLM2-135M", title="Fusing MiniLM-L6 (last layer) and SmolLM2-135M"
    )
    figure.colorbar(image, ax=axis, label="macro-F1, cross-validated, best pooling")
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
    fused, smol, minilm = best_scores(result.cv_results_)
    print("operator   " + "".join(f"{f'layer {k}':>12}" for k in LAYERS))
    for operator, scores in zip([*OPERATORS, "smol alone"], [*fused, smol], strict=True):
        print(f"{operator:<11}" + "".join(f"{score:12.3f}" for score in scores))
    print(f"minilm alone: {minilm:.3f}; best: {result.best_params_} {result.best_score_:.3f}")
    draw(fused, smol, minilm).savefig(args.out, dpi=150)
    print(f"picture: {args.out.resolve()}")


if __name__ == "__main__":
    main()
