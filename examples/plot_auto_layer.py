"""
========================
The layer chooses itself
========================

``LLMLayerEmbedder(model, layer="auto")`` chooses a layer in `fit`. It asks how well ridge
regression tells the class of a row that it was fitted without, each class counting the same. That
is known in closed form, from one decomposition a layer instead of a classifier a fold. From the
best layer it goes on to shallower ones as long as they are as good, since they cost less to
compute.

The picture shows these scores above what takes far longer: the cross-validated macro-F1 of the
real classifier on every layer, with its 95 % intervals. Rings mark the layers that cannot be told
from the best; that there are many is why the choice need not be the best of them. Since the choice
is made inside `fit`, the last line of the output is an honest estimate: each fold chose its layer
without its test texts.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from quickstart import CARRIED_DATA, get_model, read_rows
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from small_models import cache_folder

from skfusion import LayerProfileDisplay, LLMLayerEmbedder

# %%
# The pipeline
# ------------
# Nothing but ``layer="auto"`` tells it from any other.


def build_pipeline(embedder: LLMLayerEmbedder) -> Pipeline:
    """Return embedding, scaling and classifier."""
    return make_pipeline(embedder, StandardScaler(), LogisticRegression(C=0.01, max_iter=300))


# %%
# What it replaces
# ----------------
# A classifier for every layer and fold, on the same stored vectors.


def cross_validate_layers(
    embedder: LLMLayerEmbedder, layers: Sequence[int], texts: list[str], labels: list[str], cv: int
) -> np.ndarray:
    """Return the macro-F1 (layer, fold) of the real classifier."""
    pipes = [build_pipeline(clone(embedder).set_params(layer=layer)) for layer in layers]
    return np.stack(
        [cross_val_score(pipe, texts, labels, cv=cv, scoring="f1_macro") for pipe in pipes]
    )


# %%
# The picture
# -----------


def draw(auto: LLMLayerEmbedder, layers: Sequence[int], scores: np.ndarray) -> Figure:
    """Draw both scores by layer, with the choice."""
    figure = Figure(figsize=(7, 6.4), layout="constrained")
    above, below = figure.subplots(2, 1)
    LayerProfileDisplay.from_estimator(auto, ax=above)
    above.set(title="without a classifier", ylabel="minus the log-loss, nats")
    LayerProfileDisplay.from_scores(
        {"macro-F1": scores}, layers=layers, name="macro-F1, cross-validated", ax=below
    )
    below.set_title("with one on each layer")
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Choose a layer, compare it with cross-validation of all, and save the picture."""
    parser = argparse.ArgumentParser(description="Choose a layer without a classifier a layer.")
    parser.add_argument("--data", type=Path, default=CARRIED_DATA, help="csv with text,label")
    parser.add_argument("--out", type=Path, default=Path("auto_layer.png"), metavar="PNG")
    parser.add_argument("--quick", action="store_true", help="3 folds and every fifth layer")
    args = parser.parse_args(argv)
    texts, labels = read_rows(args.data)
    n_folds, step = (3, 5) if args.quick else (5, 1)
    auto = LLMLayerEmbedder(
        get_model("smollm2-135m"),
        layer="auto",
        pooling="mean_no_first",
        memory=cache_folder() / "quickstart",
    )
    # So that the model's time is not taken for the choice's.
    auto.precompute(texts, labels, verbose=0)
    start = time.perf_counter()
    auto.fit(texts, labels)
    middle = time.perf_counter()
    layers = range(0, auto.n_layers_ + 1, step)
    fixed = LLMLayerEmbedder(auto.model, pooling=auto.pooling, memory=auto.memory)
    scores = cross_validate_layers(fixed, layers, texts, labels, n_folds)
    end = time.perf_counter()
    means = scores.mean(axis=1)
    print(f"chosen: layer {auto.layer_} of {auto.n_layers_}, in {middle - start:.2f} s")
    print(
        f"best of {len(layers)} cross-validated layers: {layers[int(np.argmax(means))]}, "
        f"macro-F1 {means.max():.3f}, in {end - middle:.2f} s; last layer {means[-1]:.3f}"
    )
    honest = cross_validate(
        build_pipeline(auto), texts, labels, cv=n_folds, scoring="f1_macro", return_estimator=True
    )
    chosen = Counter(pipe[0].layer_ for pipe in honest["estimator"])
    print(
        f"layer='auto', nested: macro-F1 {honest['test_score'].mean():.3f}, layers "
        f"{', '.join(f'{layer} ({n} folds)' for layer, n in sorted(chosen.items()))}"
    )
    draw(auto, layers, scores).savefig(args.out, dpi=150)
    print(f"picture: {args.out.resolve()}")


if __name__ == "__main__":
    main()
