"""A search over layers, poolings and C, which must cost one pass per text."""

from __future__ import annotations

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

GRID = {
    "embed__layer": [0, 1, 0.67, -1],
    "embed__pooling": ["mean", "last"],
    "clf__C": [0.1, 10.0],
}


def search(embedder, texts, labels, n_jobs=1) -> GridSearchCV:
    pipe = Pipeline(
        [
            ("embed", embedder),
            ("scale", StandardScaler()),
            ("clf", LogisticRegression(max_iter=300)),
        ]
    )
    return GridSearchCV(pipe, GRID, cv=3, n_jobs=n_jobs).fit(texts, labels)
