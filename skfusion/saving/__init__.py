"""Fitted estimators on disk without pickle."""
