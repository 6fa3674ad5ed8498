"""
==============================================
Projections, operator and head in one training
==============================================

`FusionTransformer` fuses and leaves the rest to any classifier. `FusionMLPClassifier` takes the
blocks of `EmbedderUnion` as they are and trains the projections, the fusion operator and the
classifying head together, as the paper does.

Here all nine operators of the paper are cross-validated with both solvers: "auto", the default,
and "paper", which is the paper's recipe to the letter. That one leaves the inputs unscaled and
takes 120 epochs, which with few texts, all in one batch, are 120 steps. Whatever has the larger
numbers then counts more, here SmolLM2, whatever it knows: concatenation and sums lose by it.
All networks are a quarter as wide as the paper's, so that this takes a minute or two.

The picture shows by solver what each operator changes against the better model alone, (R) with a
residual; what is hatched is within the 95 % interval over the folds.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from quickstart import CARRIED_DATA, get_model, read_rows
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import Pipeline
from small_models import cache_folder

from skfusion import (
    PAPER_OPERATORS,
    EmbedderUnion,
    EmbeddingBlocks,
    FusionHeatmapDisplay,
    FusionMLPClassifier,
    LLMLayerEmbedder,
)

NAMES = {"minilm": "MiniLM", "smol": "SmolLM2"}
SOLVERS = ["auto", "paper"]
SMALLER: dict[str, Any] = {"n_components": 256, "hidden_layer_sizes": (256, 64), "random_state": 0}
Folds = list[tuple[np.ndarray, np.ndarray]]

# %%
# The models
# ----------
# `EmbedderUnion` keeps the boundaries between the models, which is all that the network needs.


def build_embedder(memory: Path) -> EmbedderUnion:
    """Return a sentence encoder and a decoder language model."""
    return EmbedderUnion(
        [
            ("minilm", LLMLayerEmbedder(get_model("minilm-l6"))),
            (
                "smol",
                LLMLayerEmbedder(get_model("smollm2-135m"), layer=10, pooling="mean_no_first"),
            ),
        ],
        memory=memory,
    )


# %%
# Nine operators
# --------------
# Each is trained and scored on the same folds. One model alone is a block alone.


def cross_validate(
    heads: Sequence[FusionMLPClassifier], X: EmbeddingBlocks, y: np.ndarray, folds: Folds
) -> np.ndarray:
    """Return the macro-F1 of each head on each fold."""
    return np.array(
        [
            [
                f1_score(y[test], head.fit(X[train], y[train]).predict(X[test]), average="macro")
                for train, test in folds
            ]
            for head in heads
        ]
    )


def compare(X: EmbeddingBlocks, y: np.ndarray, folds: Folds) -> dict[str, np.ndarray]:
    """Return the scores (solver, fold) of each operator and of each model alone."""
    heads = [
        FusionMLPClassifier(**setting, solver=solver, **SMALLER)
        for setting in PAPER_OPERATORS
        for solver in SOLVERS
    ]
    scores = cross_validate(heads, X, y, folds).reshape(-1, len(SOLVERS), len(folds))
    labels = [
        setting["operator"] + (" (R)" if setting["residual"] else "")
        for setting in PAPER_OPERATORS
    ]
    found = dict(zip(labels, scores, strict=True))
    alone = [FusionMLPClassifier(solver=solver, **SMALLER) for solver in SOLVERS]
    for name, label in NAMES.items():
        found[f"{label} alone"] = cross_validate(alone, X.select([name]), y, folds)
    return found


# %%
# Gates, and doing without a model
# --------------------------------
# ``operator="gated"`` weights the models for each text anew. With `block_dropout`, a model is now
# and then left out in training, so that the network can do without it later: hand it the other
# blocks only. The pipeline is that of any classifier.


def build_pipeline(embed: EmbedderUnion) -> Pipeline:
    """Return embedding and the network, which fuses by gates."""
    head = FusionMLPClassifier("gated", block_dropout=0.3, **SMALLER)
    return Pipeline([("embed", embed), ("clf", head)])


def describe_gates(pipe: Pipeline, texts: list[str], labels: list[str]) -> list[str]:
    """Return lines on the gates of a fitted pipeline, and its scores with and without a model."""
    blocks, head = pipe[:-1].transform(texts), pipe[-1]
    gates = head.compute_gates(blocks)
    lines = ["gates, mean over the test texts and least to most:"]
    for name, gate in zip(head.block_indices_, gates.T, strict=True):
        lines.append(f"  {NAMES[name]}: {gate.mean():.2f} ({gate.min():.2f} to {gate.max():.2f})")
    lines.append("macro-F1 of the same network on the test texts:")
    for names in (["minilm", "smol"], ["minilm"], ["smol"]):
        score = f1_score(labels, head.predict(blocks.select(names)), average="macro")
        lines.append(f"  given {' and '.join(NAMES[name] for name in names)}: {score:.3f}")
    return lines


# %%
# The picture
# -----------


def draw(found: dict[str, np.ndarray]) -> Figure:
    """Draw what each operator changes against the better model alone, by solver."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    for i, (solver, axis) in enumerate(zip(SOLVERS, figure.subplots(2, 1), strict=True)):
        pair = tuple(NAMES.values())
        alone = {name: found[f"{name} alone"][i] for name in pair}
        operators = [label for label in found if not label.endswith(" alone")]
        fused = {(pair, label): found[label][i] for label in operators}
        FusionHeatmapDisplay.from_scores(fused, alone, name="macro-F1", ax=axis)
        best = max(scores.mean() for scores in alone.values())
        axis.set_title(f'solver="{solver}": the better model alone {best:.3f}')
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Compare operators and solvers, show the gates and save the picture."""
    parser = argparse.ArgumentParser(description="Train projections, operator and head together.")
    parser.add_argument("--data", type=Path, default=CARRIED_DATA, help="csv with text,label")
    parser.add_argument("--out", type=Path, default=Path("joint_fusion.png"), metavar="PNG")
    parser.add_argument("--quick", action="store_true", help="2 folds instead of 5")
    args = parser.parse_args(argv)
    texts, labels = read_rows(args.data)
    embed = build_embedder(cache_folder() / "quickstart")
    X, y = embed.fit_transform(texts), np.array(labels)
    cv = StratifiedKFold(2 if args.quick else 5, shuffle=True, random_state=0)
    found = compare(X, y, list(cv.split(y, y)))
    print(f"{'macro-F1':<20}" + "".join(f"{solver:>16}" for solver in SOLVERS))
    for label, scores in found.items():
        cells = [f"{score.mean():.3f} ± {score.std():.3f}" for score in scores]
        print(f"{label:<20}" + "".join(f"{cell:>16}" for cell in cells))
    train, test, y_train, y_test = train_test_split(
        texts, labels, test_size=0.25, stratify=labels, random_state=0
    )
    pipe = build_pipeline(embed).fit(train, y_train)
    print("\n".join(describe_gates(pipe, test, y_test)))
    draw(found).savefig(args.out, dpi=150)
    print(f"picture: {args.out.resolve()}")


if __name__ == "__main__":
    main()
