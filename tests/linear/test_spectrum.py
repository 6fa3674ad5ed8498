"""The one decomposition on which layer scores and principal components stand."""

from __future__ import annotations

import numpy as np
import pytest

from skfusion.linear.spectrum import spectrum


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [[[5.0]], [[3.0, 4.0]], [[3.0], [4.0]]])
def test_one_row_or_one_column(rows, dtype):
    """A Gram matrix of one entry, which the driver "evd" of scipy 1.13 refuses."""
    rows = np.array(rows, dtype=dtype)
    found = spectrum(rows)
    np.testing.assert_allclose(found.squares, [25.0])
    np.testing.assert_allclose(found.basis @ found.basis.T, rows @ rows.T, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (2, 2)])
def test_nothing_varies(shape):
    found = spectrum(np.zeros(shape))
    assert found.squares.shape == (0,)
    assert found.basis.shape == (shape[0], 0)
