"""A search over layers, poolings and C: each text through the model once, in all."""

from __future__ import annotations

import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
from _support import tiny
from _support.by_hand import by_hand
from _support.doubles import CountingEmbedder, read_log
from _support.layer_search import search
from _support.processes import run_python
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from skfusion import VectorStore
from skfusion.embed import loading


@pytest.fixture(scope="module")
def problem() -> tuple[list[str], np.ndarray]:
    """60 rows, 50 different texts, classes that the words tell."""
    rng = np.random.default_rng(3)
    texts, labels = {}, []
    while len(texts) < 50:
        label = len(texts) % 2
        words = ["good", "bright", "fast"] if label else ["bad", "dull", "slow"]
        noise = rng.choice(tiny.WORDS[:26], size=rng.integers(2, 7)).tolist()
        text = " ".join(rng.permutation([rng.choice(words), *noise]))
        if text not in texts:
            texts[text] = label
    rows = list(texts) + list(texts)[:10]
    labels = [texts[text] for text in rows]
    return rows, np.array(["neg", "pos"])[labels]


class Plain(TransformerMixin, BaseEstimator):
    """The same features without a store: every text alone, each time anew."""

    def __init__(self, model: str, layer: float = -1, pooling: str = "mean") -> None:
        self.model, self.layer, self.pooling = model, layer, pooling

    def fit(self, X, y=None):
        self.n_ = len(X)
        return self

    def transform(self, X):
        import torch
        from transformers import AutoModel, AutoTokenizer

        model = AutoModel.from_pretrained(self.model)
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        layer = round(self.layer * tiny.DEPTH) if isinstance(self.layer, float) else self.layer
        rows = []
        for text in X:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            with torch.no_grad():
                states = model(ids, output_hidden_states=True).hidden_states[layer][0].numpy()
            rows.append(by_hand(self.pooling, states))
        return np.stack(rows)


@pytest.fixture(scope="module")
def expected(folder, problem) -> np.ndarray:
    return search(Plain(folder()), *problem).cv_results_["mean_test_score"]


MEMORIES = {
    "none": lambda path: None,
    "path": lambda path: str(path),
    "pathlib": lambda path: Path(path),
    "joblib": lambda path: joblib.Memory(path, verbose=0),
    "store": lambda path: VectorStore(path, size_limit="100M"),
}


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("memory", MEMORIES)
def test_each_text_passes_once(folder, tmp_path, problem, expected, memory, n_jobs):
    texts, labels = problem
    model = str(tiny.save_folder(tmp_path / "model"))
    embedder = CountingEmbedder(model, memory=MEMORIES[memory](tmp_path / "store"))
    result = search(embedder, texts, labels, n_jobs)
    _, passed = read_log(model)
    assert 0 < passed <= len(set(texts)) * n_jobs
    np.testing.assert_allclose(result.cv_results_["mean_test_score"], expected)
    assert result.predict(texts[:5]).shape == (5,)
    search(embedder, texts, labels, n_jobs)
    assert read_log(model) == (0, 0)


@pytest.mark.slow
def test_pipeline_memory_and_nested_parallel(folder, tmp_path, problem):
    texts, labels = problem
    model = str(tiny.save_folder(tmp_path / "model"))
    pipe = Pipeline(
        [("embed", CountingEmbedder(model)), ("clf", LogisticRegression(max_iter=300))],
        memory=str(tmp_path / "pipe"),
    )
    grid = {"embed__layer": [1, 2], "clf__C": [0.1, 1.0]}
    inner = GridSearchCV(pipe, grid, cv=2)
    with warnings.catch_warnings():
        # joblib says so when storing took longer than 5 % of the time, which is beside the point.
        warnings.simplefilter("ignore", UserWarning)
        joblib.Parallel(n_jobs=2)(joblib.delayed(inner.fit)(texts, labels) for _ in range(2))
    _, passed = read_log(model)
    assert passed <= 2 * len(set(texts))


@pytest.mark.slow
def test_a_second_process_loads_nothing(tmp_path, problem):
    texts, labels = problem
    model = str(tiny.save_folder(tmp_path / "model"))
    memory = str(tmp_path / "store")
    search(CountingEmbedder(model, memory=memory), texts, labels)
    read_log(model)
    code = f"""
import sys
from _support.doubles import CountingEmbedder
from _support.layer_search import search
from skfusion.embed import loading
search(CountingEmbedder({model!r}, memory={memory!r}), {texts!r}, {labels.tolist()!r})
assert not loading._LOADED
"""
    run_python(code)
    assert read_log(model) == (0, 0)


@pytest.mark.slow
def test_workers_share_the_store_of_their_parent(folder, problem):
    """Without memory=, what the parent has encoded no worker encodes again."""
    texts, labels = problem
    loading.release()
    model = folder("gpt2")
    CountingEmbedder(model).fit_transform(texts)
    assert read_log(model)[1] == len(set(texts))
    search(CountingEmbedder(model), texts, labels, n_jobs=2)
    assert read_log(model) == (0, 0)
