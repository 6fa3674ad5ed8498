"""Choosing layers, hyperparameters and sets of models."""
