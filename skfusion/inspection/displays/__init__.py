"""Pictures of layers, poolings, fusions, sets of models and weights, as scikit-learn's displays.

Each is made by `from_...`, which computes what `plot` draws.
"""
