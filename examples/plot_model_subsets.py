"""
============================================
Which models to fuse, and what each is worth
============================================

Three models can be fused in seven ways. `ModelSubsetSearchCV` tries all of them on the same folds,
while each text passes through each model once, and chooses the cheapest that is within one
standard error of the best. It says how low the scores of each size go, what each model adds, and
which subsets nothing beats at their price.

The left picture shows the scores by the number of models, the right one the scores over the
seconds a text costs, with the front of those that are not beaten. Bars are 95 % intervals over the
folds: what is chosen is the cheapest of those that the folds cannot tell from the best.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from quickstart import CARRIED_DATA, get_model, read_rows
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from small_models import cache_folder

from skfusion import (
    EmbedderUnion,
    FusionTransformer,
    LLMLayerEmbedder,
    ModelSubsetSearchCV,
    SubsetDisplay,
    TradeoffDisplay,
    VectorStore,
    measure_costs,
)

# %%
# The models
# ----------
# A sentence encoder, a decoder language model, and the words themselves, which cost next to
# nothing. All share one store.


def build_embedders(memory: Path) -> dict[str, Any]:
    """Return the embedders by name."""
    smol = get_model("smollm2-135m")
    return {
        "minilm": LLMLayerEmbedder(get_model("minilm-l6"), memory=memory),
        "smol": LLMLayerEmbedder(smol, layer=15, pooling="mean_no_first", memory=memory),
        "words": TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)),
    }


# %%
# The search
# ----------
# Costs are measured on a few texts, each model in a process of its own that has nothing loaded and
# nothing stored.


def search(embedders: dict[str, Any], texts: list[str], labels: list[str], cv: Any) -> Any:
    """Search the subsets of the models."""
    union = EmbedderUnion(list(embedders.items()))
    fuse = FusionTransformer("concat", scale="l2")
    pipe = Pipeline([("embed", union), ("fuse", fuse), ("clf", build_classifier())])
    costs = measure_costs(union, texts[:30])
    return ModelSubsetSearchCV(pipe, cost=costs, cv=cv, scoring="f1_macro").fit(texts, labels)


def build_classifier() -> LogisticRegression:
    """Return the classifier that goes on top of anything."""
    return LogisticRegression(C=10, max_iter=1000)


# %%
# Late fusion
# -----------
# The alternative that scikit-learn has already: a classifier a model, which vote, or on which
# another one is stacked. Each text is still encoded once a model, since the embedders find their
# vectors in the store.


def late_fusion(
    embedders: dict[str, Any], texts: list[str], labels: list[str], cv: Any
) -> dict[str, float]:
    """Return the macro-F1 of voting and stacking."""
    single = [
        (name, make_pipeline(embedder, build_classifier())) for name, embedder in embedders.items()
    ]
    late = {
        "voting": VotingClassifier(single, voting="soft"),
        "stacking": StackingClassifier(single, cv=3),
    }
    return {
        name: cross_val_score(estimator, texts, labels, cv=cv, scoring="f1_macro").mean()
        for name, estimator in late.items()
    }


# %%
# The picture
# -----------


def draw(result: Any, late: dict[str, float]) -> Figure:
    """Draw scores by size and scores over costs."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    SubsetDisplay.from_estimator(result, ax=left)
    for (name, score), line in zip(late.items(), ["--", "-."], strict=True):
        left.axhline(score, color="grey", linestyle=line, label=f"{name}, all models")
    left.legend(fontsize="small")
    TradeoffDisplay.from_estimator(result, cost="seconds_per_text", ax=right)
    return figure


def print_results(result: Any, late: dict[str, float]) -> None:
    """Print the scores of the subsets, the worth of the models and late fusion."""
    found = result.cv_results_
    for row in np.argsort(found["rank_test_score"]):
        chosen = " *" if row == result.best_index_ else ""
        print(
            f"{' + '.join(found['param_blocks'][row]):<24}{found['mean_test_score'][row]:8.3f}"
            f"{1000 * found['cost'][row]:9.1f} ms a text{chosen}"
        )
    shares = ", ".join(f"{model} {share:.3f}" for model, share in result.shapley_.items())
    print(f"of the {sum(result.shapley_.values()):.3f} above chance: {shares}")
    print("late fusion of all: " + ", ".join(f"{name} {s:.3f}" for name, s in late.items()))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the search, print the tables and save the picture."""
    parser = argparse.ArgumentParser(description="Search the subsets of three models.")
    parser.add_argument("--data", type=Path, default=CARRIED_DATA, help="csv with text,label")
    parser.add_argument("--out", type=Path, default=Path("model_subsets.png"), metavar="PNG")
    parser.add_argument("--quick", action="store_true", help="3 folds instead of 5")
    args = parser.parse_args(argv)
    texts, labels = read_rows(args.data)
    memory = cache_folder() / "quickstart"
    embedders = build_embedders(memory)
    cv = StratifiedKFold(3 if args.quick else 5, shuffle=True, random_state=0)
    result = search(embedders, texts, labels, cv)
    stored = VectorStore(memory).info()["n_texts"]
    late = late_fusion(embedders, texts, labels, cv)
    print_results(result, late)
    encoded = VectorStore(memory).info()["n_texts"] - stored
    print(f"texts that late fusion had to encode after the search: {encoded}")
    draw(result, late).savefig(args.out, dpi=150)
    print(f"picture: {args.out.resolve()}")


if __name__ == "__main__":
    main()
