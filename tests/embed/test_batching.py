from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skfusion.embed.batching import pad, plan_batches

lengths = st.lists(st.integers(1, 50), max_size=40)


@given(lengths, st.integers(1, 200), st.none() | st.integers(1, 10))
def test_batches_cover_all_texts_and_keep_the_budget(lengths, budget, max_rows):
    batches = plan_batches(lengths, budget, max_rows)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
        assert max_rows is None or len(batch) <= max_rows


@given(lengths, st.integers(1, 200), st.none() | st.integers(1, 10))
def test_batches_of_equal_length_hold_no_padding(lengths, budget, max_rows):
    batches = plan_batches(lengths, budget, max_rows, equal=True)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        n = lengths[batch[0]]
        assert {lengths[i] for i in batch} == {n}
        assert len(batch) == 1 or len(batch) * n <= budget
        assert max_rows is None or len(batch) <= max_rows
    # No more batches than these limits ask for.
    rows = {n: max(1, min(budget // n, max_rows or len(lengths))) for n in lengths}
    assert len(batches) == sum(-(-lengths.count(n) // most) for n, most in rows.items())


@given(lengths)
def test_longest_texts_come_first(lengths):
    ordered = [lengths[i] for batch in plan_batches(lengths, 60) for i in batch]
    assert ordered == sorted(lengths, reverse=True)


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=6))
def test_padding_is_on_the_right_and_masked(rows):
    ids, mask = pad(rows, fill=0)
    assert mask.sum(axis=1).tolist() == [len(row) for row in rows]
    for row, padded, real in zip(rows, ids, mask, strict=True):
        assert padded[: len(row)].tolist() == row
        assert not padded[len(row) :].any()
        assert real[: len(row)].all()
    assert ids.dtype == np.int64
