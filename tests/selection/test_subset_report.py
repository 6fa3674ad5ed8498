"""Costs of subsets, and the choice of the cheapest good one, by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from skfusion.selection.choice import cheapest_within_one_error
from skfusion.selection.subset_report import subset_costs


def test_folds_are_compared_in_pairs():
    """A small but steady loss counts, a larger one that comes from noise does not."""
    best = np.array([0.9, 0.7, 0.8, 0.6])
    steady, noisy = best - 0.01, best - [0.1, -0.1, 0.1, 0.0]
    costs = np.array([3.0, 2.0, 1.0])
    assert cheapest_within_one_error(np.array([best, steady, noisy]), costs) == 2
    assert cheapest_within_one_error(np.array([best, steady]), costs[:2]) == 0
    loss = best - noisy  # at the very edge of one standard error
    assert loss.mean() < loss.std(ddof=1) / 2
    shifted = noisy - 1.01 * (loss.std(ddof=1) / 2 - loss.mean())
    assert cheapest_within_one_error(np.array([best, shifted]), costs[[0, 2]]) == 0


def test_equal_costs_leave_the_choice_to_the_score():
    scores = np.array([[0.5, 0.7], [0.6, 0.7], [0.6, 0.7]])
    assert cheapest_within_one_error(scores, np.ones(3)) == 1


def test_subsets_that_failed_are_left_out():
    scores = np.array([[np.nan, 0.9], [0.5, 0.5]])
    assert cheapest_within_one_error(scores, np.array([1.0, 2.0])) == 1
    with pytest.raises(ValueError, match="error_score='raise'"):
        cheapest_within_one_error(scores[:1], np.ones(1))


def test_of_a_single_fold_only_the_best_is_good():
    assert cheapest_within_one_error(np.array([[0.8], [0.9]]), np.array([1.0, 2.0])) == 1


def test_measured_costs_add_up_but_for_the_peak_of_memory():
    measured = pd.DataFrame(
        {"seconds_per_text": [0.5, 0.25], "peak_bytes": [2e9, 3e9], "bytes_per_text": [100, 10]},
        index=["a", "b"],
    )
    costs = subset_costs(measured, ("a", "b"), [("a",), ("a", "b")])
    assert costs["cost"].tolist() == costs["seconds_per_text"].tolist() == [0.5, 0.75]
    assert costs["bytes_per_text"].tolist() == [100, 110]
    assert costs["peak_bytes"].tolist() == [2e9, 3e9]
    with pytest.raises(ValueError, match="says nothing of 'c'"):
        subset_costs(measured, ("a", "c"), [("a",)])
    with pytest.raises(ValueError, match="without a column 'seconds_per_text'"):
        subset_costs(measured[["peak_bytes"]], ("a", "b"), [("a",)])


@pytest.mark.parametrize("kind", [dict, pd.Series])
def test_numbers_by_model(kind):
    plain = subset_costs(kind({"a": 1, "b": 0.25}), ("a", "b"), [("a", "b")])
    assert plain["cost"].tolist() == [1.25] and list(plain) == ["cost"]


def test_without_costs_models_are_counted():
    assert subset_costs(None, ("a", "b"), [("a",), ("a", "b")])["cost"].tolist() == [1, 2]
