"""Measures of stability, against enumeration and values computed by hand."""

from __future__ import annotations

from itertools import chain, combinations, permutations

import numpy as np
import pytest

from skfusion.inspection.stability import (
    complementarity,
    cvar,
    expected_minimum,
    harm_rate,
    pareto_front,
    sampled_shapley_values,
    shapley_values,
)


@pytest.mark.parametrize("m", range(1, 7))
def test_expected_minimum_is_the_mean_over_all_draws(rng, m):
    scores = rng.normal(size=6)
    scores[3] = scores[1]  # a tie
    drawn = [min(chosen) for chosen in combinations(scores, m)]
    assert expected_minimum(scores, m) == pytest.approx(np.mean(drawn), rel=1e-12)


def test_expected_minimum_of_many_scores(rng):
    scores = rng.normal(size=4095)  # C(4095, 2000) is beyond any float
    assert scores.min() <= expected_minimum(scores, 2000) <= np.quantile(scores, 0.01)


@pytest.mark.parametrize("m", [0, 4])
def test_expected_minimum_of_more_than_there_are(m):
    with pytest.raises(ValueError, match=f"m={m} of 3 scores"):
        expected_minimum([1.0, 2.0, 3.0], m)


def test_cvar_counts_the_last_score_by_the_rest():
    assert cvar([4.0, 1.0, 2.0, 3.0, 5.0], alpha=0.5) == pytest.approx((1 + 2 + 0.5 * 3) / 2.5)
    assert cvar([4.0, 1.0], alpha=0.1) == 1.0
    assert cvar([4.0, 1.0], alpha=1.0) == 2.5
    with pytest.raises(ValueError, match="alpha=0"):
        cvar([1.0], alpha=0)


def test_gain_and_harm_by_hand():
    scores, members = [0.8, 0.6, 0.5], [[0.7, 0.8], [0.5, 0.7], [0.4, 0.6]]
    np.testing.assert_allclose(complementarity(scores, members), [0.0, -0.1, -0.1])
    np.testing.assert_allclose(complementarity(scores, members, against="mean"), [0.05, 0, 0])
    assert harm_rate(scores, members) == pytest.approx(2 / 3)
    assert harm_rate([0.8, 0.5], members[:2], against="mean") == 0.5
    with pytest.raises(ValueError, match="do not fit 2 scores"):
        harm_rate([0.8, 0.5], members)
    with pytest.raises(ValueError, match="against='worst'"):
        complementarity(scores, members, against="worst")


def _random_game(rng, members):
    subsets = chain.from_iterable(combinations(members, k) for k in range(len(members) + 1))
    return {frozenset(subset): float(rng.normal()) for subset in subsets}


def test_shapley_values_are_the_mean_over_all_orders(rng):
    game = _random_game(rng, "abcd")
    exact = shapley_values(game)
    assert exact == pytest.approx(sampled_shapley_values(game, permutations("abcd")), rel=1e-9)
    assert sum(exact.values()) == pytest.approx(game[frozenset("abcd")] - game[frozenset()])


def test_any_orders_share_out_the_whole(rng):
    game = _random_game(rng, "abcd")
    shares = sampled_shapley_values(game, ["acbd", "dcba", "acbd"])
    assert sum(shares.values()) == pytest.approx(game[frozenset("abcd")] - game[frozenset()])


def test_a_missing_subset_is_named(rng):
    game = _random_game(rng, "ab")
    del game[frozenset("b")]
    with pytest.raises(ValueError, match="the subset of b is missing"):
        shapley_values(game)
    with pytest.raises(ValueError, match="No order"):
        sampled_shapley_values(game, [])


def test_pareto_front_is_what_nothing_beats(rng):
    scores, costs = rng.integers(0, 6, 40) / 6, rng.integers(0, 6, 40) * 1.0
    front = pareto_front(scores, costs)
    beaten = [
        any(
            scores[j] >= scores[i]
            and costs[j] <= costs[i]
            and (scores[j] > scores[i] or costs[j] < costs[i])
            for j in range(40)
        )
        for i in range(40)
    ]
    kept = {(scores[i], costs[i]) for i in range(40) if not beaten[i]}
    assert {(scores[i], costs[i]) for i in front} == kept and len(front) == len(kept)
    assert (np.diff(costs[front]) > 0).all() and (np.diff(scores[front]) > 0).all()


def test_a_score_that_is_not_known_is_not_on_the_front():
    assert pareto_front([np.nan, 0.5], [0.0, 1.0]).tolist() == [1]
