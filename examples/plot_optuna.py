"""
==============================================
How good, and how dear? Optuna over two models
==============================================

A grid over the layers of two models, their poolings, nine ways to fuse them and the choice of one
model alone has thousands of cells. Optuna looks at some dozens. The space is conditional: a model
that is left out has no layer, and a single block no operator.

Beside the score a cost is minimised: how much arithmetic a new text needs, which is what layers
and models cost in use. `OptunaSearchCV` then takes the cheapest candidate that is within one
standard error of the best. The study is kept in a file, and is stopped and gone on with on the
way.

The picture shows all trials with their 95 % intervals over the folds, the Pareto front and the
choice, and how the best score rose.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from quickstart import CARRIED_DATA, get_model, read_rows
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from small_models import cache_folder

from skfusion import (
    EmbedderUnion,
    FusionTransformer,
    LLMLayerEmbedder,
    OptunaSearchCV,
    TradeoffDisplay,
    fusion_space,
)

# %%
# The pipeline and its cost
# -------------------------
# A transformer block of width d takes about 12 d² multiplications for each token, and a pass ends
# behind the layer that is asked for.


def build_pipeline(memory: Path) -> Pipeline:
    """Return embedding, fusion and classifier."""
    embed = EmbedderUnion(
        [
            ("minilm", LLMLayerEmbedder(get_model("minilm-l6"))),
            ("smol", LLMLayerEmbedder(get_model("smollm2-135m"))),
        ],
        memory=memory,
    )
    fuse = FusionTransformer(n_components=64, random_state=0)
    return Pipeline(
        [("embed", embed), ("fuse", fuse), ("clf", LogisticRegression(C=0.01, max_iter=5000))]
    )


def million_multiplications(pipe: Pipeline, X: Any, y: Any) -> float:
    """Return the millions of multiplications that one token needs."""
    models = pipe["embed"].named_embedders_.values()
    return sum(12 * max(model.layers_) * model.hidden_size_**2 for model in models) / 1e6


# %%
# The search
# ----------
# With a name and a file, `fit` goes on where the last one ended. So may another process, on this
# or another machine that sees the file.


def search(
    pipe: Pipeline, texts: list[str], labels: list[str], *, n_trials: int, storage: Path
) -> OptunaSearchCV:
    """Search layers, poolings, operators and models; go on with a study that is there."""
    return OptunaSearchCV(
        pipe,
        fusion_space(pipe["embed"], poolings=["mean", "last", "mean_no_first"], subsets=True),
        n_trials=n_trials,
        scoring="f1_macro",
        cost=million_multiplications,
        storage=storage,
        study_name="support-messages",
        random_state=0,
    ).fit(texts, labels)


# %%
# The picture
# -----------


def draw(result: OptunaSearchCV) -> Figure:
    """Draw score against cost, and the best score so far by trial."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    layer = "embed__minilm__layer"
    TradeoffDisplay.from_cv_results(result, cost="mean_cost", label_by=layer, ax=left)
    left.set_xscale("symlog", linthresh=1)
    left.set(xlabel="million multiplications a token", title="trials; numbers: layer of MiniLM")
    numbers, scores = (result.cv_results_[key] for key in ("trial_number", "mean_test_score"))
    right.plot(numbers, scores, ".", color="0.6")
    right.plot(numbers, np.maximum.accumulate(scores), color="black")
    right.set(xlabel="trial", title="best score so far")
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Run the search in two parts, print the Pareto front and save the picture."""
    parser = argparse.ArgumentParser(description="Search score and cost with Optuna.")
    parser.add_argument("--data", type=Path, default=CARRIED_DATA, help="csv with text,label")
    parser.add_argument("--out", type=Path, default=Path("optuna.png"), metavar="PNG")
    parser.add_argument("--quick", action="store_true", help="12 trials instead of 80")
    args = parser.parse_args(argv)
    texts, labels = read_rows(args.data)
    pipe = build_pipeline(cache_folder() / "quickstart")
    n_trials = 12 if args.quick else 80
    with TemporaryDirectory() as folder:
        storage = Path(folder) / "search.journal"
        half = search(pipe, texts, labels, n_trials=n_trials // 2, storage=storage)
        print(f"stopped after {half.n_trials_} trials; best macro-F1 {half.best_score_:.3f}")
        result = search(pipe, texts, labels, n_trials=n_trials, storage=storage)
        # A combination that was drawn twice is there twice.
        front = sorted({tuple(trial.values) for trial in result.study_.best_trials})
    print(f"gone on to {result.n_trials_} trials; the Pareto front:")
    for score, cost in front:
        print(f"  macro-F1 {score:.3f} at {cost:6.1f} million multiplications a token")
    print(f"chosen: {result.best_params_} {result.best_score_:.3f}")
    draw(result).savefig(args.out, dpi=150)
    print(f"picture: {args.out.resolve()}")


if __name__ == "__main__":
    main()
