"""Statistics of vectors: no estimator and no torch."""
