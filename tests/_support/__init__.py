"""Helpers of the tests: tiny models, stand-ins, real data. No test imports a test."""
