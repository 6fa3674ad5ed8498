"""scikit-learn's own checks, on numeric input that is taken for one block."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from skfusion.fusion.transformer import FusionTransformer

CONFIGURATIONS = [
    FusionTransformer(block_sizes="single"),
    FusionTransformer("hadamard", residual="concat", scale="l2", block_sizes="single"),
    FusionTransformer("sum", n_components=1, block_sizes="single", random_state=0),
    FusionTransformer(
        "bilinear", residual="add", n_components=3, block_sizes="single", random_state=0
    ),
    FusionTransformer(
        "mean",
        projection="random",
        n_components=4,
        scale=None,
        block_sizes="single",
        random_state=0,
    ),
]


@parametrize_with_checks(CONFIGURATIONS)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
