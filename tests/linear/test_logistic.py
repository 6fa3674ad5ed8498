"""The path of penalised logistic regressions against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from skfusion.linear.logistic import log_chances, logistic_path, predict_logits


@pytest.mark.parametrize("n_classes", [2, 3])
def test_every_fold_and_penalty_is_a_regression_of_its_own(n_classes, rng):
    rows = np.linalg.qr(rng.normal(size=(60, 4)) - 0.1)[0] * [20, 10, 5, 2]
    y = (rows[:, :n_classes] + rng.normal(size=(60, n_classes))).argmax(axis=1)
    weights = np.stack([np.ones(60), np.arange(60) % 3 > 0, rng.uniform(size=60)], axis=1)
    penalties = [1.0, 0.1, 0.01]
    path = logistic_path(rows, np.eye(n_classes)[y], weights, penalties, 400)
    for penalty, coefficients in zip(penalties, path, strict=True):
        found = np.exp(log_chances(predict_logits(rows, coefficients)))
        for fold in range(3):
            w = weights[:, fold]
            plain = LogisticRegression(C=1 / (penalty * w.sum()), tol=1e-8, max_iter=2000)
            expected = plain.fit(rows, y, sample_weight=w).predict_proba(rows)
            assert np.allclose(found[:, fold], expected, atol=2e-3)
