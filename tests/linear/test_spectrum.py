"""The smaller Gram matrix gives the singular values, whatever the shape."""

from __future__ import annotations

import numpy as np
import pytest

from skfusion.linear.spectrum import principal_components, spectrum


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (4, 9), (9, 4), (6, 6)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_singular_values_and_vectors(rng, shape, dtype):
    """A matrix of one row or column too, where scipy 1.13's driver "evd" crashes."""
    rows = rng.normal(size=shape).astype(dtype)
    found = spectrum(rows)
    tolerance = {np.float32: 1e-4, np.float64: 1e-9}[dtype]
    exact = np.linalg.svd(rows.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(np.sqrt(found.eigenvalues)[::-1], exact, rtol=tolerance)
    # U S Sᵀ Uᵀ is the Gram matrix of the rows.
    np.testing.assert_allclose(found.basis @ found.basis.T, rows @ rows.T, atol=tolerance * 20)


def test_directions_without_variation_are_left_out_or_zero():
    assert len(spectrum(np.outer(np.arange(5.0), np.ones(3))).eigenvalues) == 1
    assert len(spectrum(np.zeros((3, 2))).eigenvalues) == 0
    mean, components = principal_components(np.ones((4, 3)), 2, np.random.RandomState(0))
    assert mean.tolist() == [1, 1, 1] and not components.any()


@pytest.mark.parametrize("shape", [(2, 1), (2, 7), (7, 2)])
def test_one_component_of_the_smallest_blocks(rng, shape):
    block = rng.normal(size=shape)
    mean, components = principal_components(block, 1, np.random.RandomState(0))
    first = np.linalg.svd(block - mean)[2][0]
    np.testing.assert_allclose(components[:, 0], first * np.sign(first[np.abs(first).argmax()]))
