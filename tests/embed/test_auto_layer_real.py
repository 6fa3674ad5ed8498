"""The chosen layer of a real model is as good as the best one."""

from __future__ import annotations

import pytest
from _support.realdata import fetched, macro_f1, vectors

from skfusion import LLMLayerEmbedder

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("users_cache")]


def test_the_chosen_layer_is_within_a_hundredth_of_the_best(rotten_tomatoes, real_store):
    train, _ = rotten_tomatoes
    auto = LLMLayerEmbedder(
        fetched("smollm2-135m"), layer="auto", max_length=256, memory=real_store
    ).fit(train["text"], train["label"])
    scores = [
        macro_f1(rotten_tomatoes, vectors(rotten_tomatoes, real_store, "smollm2-135m", layer=k))
        for k in range(auto.n_layers_ + 1)
    ]
    assert scores[auto.layer_] > max(scores) - 0.01
    assert scores[-1] < max(scores) - 0.04
