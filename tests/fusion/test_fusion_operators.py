"""Each operator against its definition, in numpy and in torch."""

from __future__ import annotations

import subprocess
import sys
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from skfusion.fusion import operators
from skfusion.fusion.projection import count_sketch
from skfusion.fusion.registry import BUILT_IN, OPERATORS

QUATERNION = arrays(np.float64, 4, elements=st.floats(-100, 100))
NAMES = sorted(BUILT_IN)
PAIRED = ["multiplication", "quaternion"]


def sample(n_blocks: int, shape: tuple[int, ...], dtype: type = np.float64) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(dtype) for _ in range(n_blocks)]


def test_small_examples():
    pair = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    assert operators.concat(pair).tolist() == [1, 2, 3, 4]
    assert operators.sum(pair).tolist() == [4, 6]
    assert operators.mean(pair).tolist() == [2, 3]
    assert operators.hadamard(pair).tolist() == [3, 8]
    p, q = np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0, 8.0])
    assert operators.quaternion([p, q]).tolist() == [-60, 12, 30, 24]
    assert operators.quaternion([q, p]).tolist() == [-60, 20, 14, 32]
    assert operators.multiplication([p, q]).tolist() == [19, 22, 43, 50]


def test_quaternion_units():
    one, i, j, k = np.eye(4)
    times = lambda *parts: operators.quaternion(parts)  # noqa: E731
    for unit in (i, j, k):
        np.testing.assert_array_equal(times(unit, unit), -one)
    np.testing.assert_array_equal(times(i, j, k), -one)
    np.testing.assert_array_equal(times(i, j), k)


@given(QUATERNION, QUATERNION, QUATERNION)
def test_quaternion_norms_and_associativity(p, q, r):
    times = lambda *parts: operators.quaternion(parts)  # noqa: E731
    norm = np.linalg.norm
    np.testing.assert_allclose(norm(times(p, q)), norm(p) * norm(q), rtol=1e-9, atol=1e-9)
    left, right = times(times(p, q), r), times(p, times(q, r))
    np.testing.assert_allclose(left, right, atol=1e-9 * (1 + norm(p) * norm(q) * norm(r)))
    np.testing.assert_array_equal(left, times(p, q, r))


def test_quaternion_parts_are_quarters_of_the_columns():
    p, q = sample(2, (5, 12))
    fused = operators.quaternion([p, q])
    for m in range(3):
        np.testing.assert_allclose(fused[:, m::3], operators.quaternion([p[:, m::3], q[:, m::3]]))


def test_multiplication_against_loops():
    blocks = sample(3, (4, 9))
    expected = np.empty((4, 9))
    for row in range(4):
        product = np.eye(3)
        for block in blocks:
            matrix = np.array([[block[row, 3 * i + j] for j in range(3)] for i in range(3)])
            product = np.array(
                [
                    [sum(product[i, m] * matrix[m, j] for m in range(3)) for j in range(3)]
                    for i in range(3)
                ]
            )
        expected[row] = product.ravel()
    np.testing.assert_allclose(operators.multiplication(blocks), expected)


def test_bilinear_against_loops():
    u, v = sample(2, (3, 5))
    expected = [
        [sum(a[m] * b[(k - m) % 5] for m in range(5)) for k in range(5)]
        for a, b in zip(u, v, strict=True)
    ]
    np.testing.assert_allclose(operators.bilinear([u, v]), expected)


@pytest.mark.parametrize("widths", [(7, 5), pytest.param((4, 6, 5), marks=pytest.mark.slow)])
def test_compact_bilinear_keeps_inner_products_in_the_mean(widths):
    rng = np.random.RandomState(0)
    x, y = ([rng.normal(size=w) + 0.5 for w in widths] for _ in range(2))
    exact = np.prod([a @ b for a, b in zip(x, y, strict=True)])
    found = []
    for _ in range(3000):
        sketches = [count_sketch(w, 64, rng) for w in widths]
        both = [s(np.stack([a, b])) for s, a, b in zip(sketches, x, y, strict=True)]
        fused = operators.bilinear(both)
        found.append(fused[0] @ fused[1])
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - exact) < 4 * error
    assert error < 0.1 * abs(exact)


def test_compact_bilinear_is_the_sketch_of_the_outer_product():
    rng = np.random.RandomState(1)
    first, second = count_sketch(6, 16, rng), count_sketch(4, 16, rng)
    x, y = rng.normal(size=6), rng.normal(size=4)
    expected = np.zeros(16)
    for i in range(6):
        for j in range(4):
            at = (first.buckets[i] + second.buckets[j]) % 16
            expected[at] += first.signs[i] * second.signs[j] * x[i] * y[j]
    fused = operators.bilinear([first(x[None]), second(y[None])])[0]
    np.testing.assert_allclose(fused, expected, atol=1e-12)


@pytest.mark.parametrize("n_blocks", [2, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_numpy_and_torch_agree(name, n_blocks):
    blocks = sample(n_blocks, (6, 16))
    expected = OPERATORS[name](blocks)
    found = OPERATORS[name]([torch.from_numpy(block) for block in blocks])
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-9)
    for dtype in (np.float32, np.float64):
        cast = [block.astype(dtype) for block in blocks]
        assert OPERATORS[name](cast).dtype == dtype
        tensors = [torch.from_numpy(block) for block in cast]
        single = OPERATORS[name](tensors)
        assert single.dtype == tensors[0].dtype
        scale = np.abs(expected).max()
        np.testing.assert_allclose(single.numpy(), expected, atol=2e-6 * scale)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    blocks = [torch.from_numpy(block).requires_grad_() for block in sample(3, (2, 16))]
    assert torch.autograd.gradcheck(lambda *parts: OPERATORS[name](parts), blocks)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 5))
@settings(max_examples=20)
def test_more_blocks_are_folded_from_the_left(name, n_blocks, half, seed):
    width = (2 * half) ** 2
    rng = np.random.default_rng(seed)
    blocks = [rng.normal(size=(3, width)) for _ in range(n_blocks)]
    pairwise = lambda a, b: OPERATORS[name]([a, b])  # noqa: E731
    expected = reduce(pairwise, blocks)
    if name == "mean":
        expected = np.mean(blocks, axis=0)
    np.testing.assert_allclose(
        OPERATORS[name](blocks), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max()
    )


@pytest.mark.parametrize("name", NAMES)
def test_order_matters_where_it_is_said_to(name):
    u, v = sample(2, (3, 16))
    same = np.allclose(OPERATORS[name]([u, v]), OPERATORS[name]([v, u]))
    assert same == (name not in [*PAIRED, "concat"])


@pytest.mark.parametrize("name", NAMES)
def test_one_block(name):
    (block,) = sample(1, (3, 16))
    function = getattr(operators, name)
    if name in PAIRED:
        for call in (function, OPERATORS[name]):
            with pytest.raises(ValueError, match=f"{name!r} needs at least two blocks, got 1"):
                call([block])
    else:
        assert OPERATORS[name]([block]) is block
        np.testing.assert_allclose(function([block]), block)


@pytest.mark.parametrize("name", NAMES)
def test_no_blocks_and_different_widths(name):
    with pytest.raises(ValueError, match=r"needs (a block|at least two blocks), got 0"):
        OPERATORS[name]([])
    if name != "concat":
        pair = [np.zeros((3, 4)), np.zeros((3, 1))]
        for call in (getattr(operators, name), OPERATORS[name]):
            with pytest.raises(ValueError, match=r"blocks of equal width, got \[4, 1\]"):
                call(pair)


@pytest.mark.parametrize(
    ("name", "width", "nearest"),
    [
        ("quaternion", 6, "4 and 8"),
        ("quaternion", 3, "are 4"),
        ("multiplication", 24, "16 and 25"),
    ],
)
def test_invalid_widths_name_the_nearest(name, width, nearest):
    with pytest.raises(ValueError, match=f"got {width}.*{nearest}"):
        OPERATORS[name]([np.zeros((2, width))] * 2)


def test_fusion_does_not_import_torch():
    code = (
        "import sys, importlib, types; sys.modules['skfusion'] = m = types.ModuleType('skfusion');"
        "m.__path__ = [sys.argv[1]]; import skfusion.fusion.transformer; "
        "assert 'torch' not in sys.modules"
    )
    package = operators.__file__.rsplit("fusion/", 1)[0]
    subprocess.run([sys.executable, "-c", code, package], check=True)
