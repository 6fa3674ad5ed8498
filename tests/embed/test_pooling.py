from __future__ import annotations

import numpy as np
import pytest
import torch
from _support.by_hand import by_hand
from hypothesis import given
from hypothesis import strategies as st

from skfusion.embed.pooling import POOLINGS


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    left=st.booleans(),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("name", POOLINGS)
def test_equals_the_value_without_padding(name, lengths, left, seed):
    rng = np.random.default_rng(seed)
    longest = max(lengths) + 1
    hidden = np.full((len(lengths), longest, 3), np.nan, dtype=np.float32)
    mask = np.zeros((len(lengths), longest), dtype=bool)
    rows = [rng.normal(size=(n, 3)).astype(np.float32) for n in lengths]
    for i, states in enumerate(rows):
        cut = slice(longest - len(states), None) if left else slice(0, len(states))
        hidden[i, cut], mask[i, cut] = states, True
    pooled = POOLINGS[name](torch.from_numpy(hidden), torch.from_numpy(mask))
    assert pooled.dtype == torch.float32
    expected = np.stack([by_hand(name, states) for states in rows])
    np.testing.assert_allclose(pooled.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_pools_in_float32(name, dtype):
    hidden = torch.full((1, 1000, 2), 100.0, dtype=dtype)
    pooled = POOLINGS[name](hidden, torch.ones(1, 1000, dtype=torch.bool))
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, torch.full((1, 2), 100.0), rtol=1e-6, atol=0)
