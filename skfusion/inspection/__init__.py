"""Stability and cost of what was selected."""
