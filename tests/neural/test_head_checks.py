"""scikit-learn's own checks on the neural head."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from skfusion.neural.classifier import FusionMLPClassifier
from skfusion.neural.regressor import FusionMLPRegressor

SMALL: dict[str, Any] = {"n_components": 16, "hidden_layer_sizes": (32, 16), "random_state": 0}


@parametrize_with_checks([FusionMLPClassifier(**SMALL), FusionMLPRegressor(**SMALL)])
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
