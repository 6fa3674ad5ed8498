"""Neural heads of a search over subsets."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import cross_val_score

from skfusion import EmbeddingBlocks, FusionMLPClassifier, ModelSubsetSearchCV


@pytest.fixture
def network() -> FusionMLPClassifier:
    return FusionMLPClassifier(
        n_components=4,
        hidden_layer_sizes=(8,),
        dropout=0.1,
        solver="paper",
        max_epochs=20,
        random_state=0,
    )


@pytest.fixture
def data(rng) -> tuple[EmbeddingBlocks, np.ndarray]:
    y = np.repeat(["no", "yes"], 30)
    blocks = {name: rng.normal(size=(60, 5)) for name in ("a", "b")}
    blocks["a"][:, 0] += 2 * (y == "yes")
    return EmbeddingBlocks(blocks), y


def test_scores_are_those_of_networks_trained_one_by_one(network, data):
    X, y = data
    search = ModelSubsetSearchCV(network, cv=3, scoring="neg_log_loss", error_score="raise").fit(
        X, y
    )
    for subset, score in zip(
        search.cv_results_["param_blocks"], search.cv_results_["mean_test_score"], strict=True
    ):
        alone = cross_val_score(network, X.select(subset), y, cv=3, scoring="neg_log_loss")
        assert score == pytest.approx(alone.mean(), abs=1e-4)
    assert (search.cv_results_["mean_fit_time"] > 0).all()


@pytest.mark.filterwarnings("ignore:One or more of the test scores:UserWarning")
def test_a_failing_network_takes_no_other_with_it(network, data):
    X, y = data
    broken = EmbeddingBlocks({**X.blocks, "b": np.full((60, 5), np.nan)})
    search = ModelSubsetSearchCV(network, cv=3)
    with pytest.warns(FitFailedWarning, match="6 fits failed out of a total of 9"):
        search.fit(broken, y)
    assert search.best_subset_ == ("a",)
    with pytest.raises(ValueError, match="NaN"):
        ModelSubsetSearchCV(network, cv=3, error_score="raise").fit(broken, y)
