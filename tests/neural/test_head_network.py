"""The network of the neural head against numpy by hand; missing blocks; wrong parameters."""

from __future__ import annotations

import pickle
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.preprocessing import StandardScaler

from skfusion import EmbeddingBlocks, FusionMLPClassifier, FusionMLPRegressor, register_operator
from skfusion.fusion.registry import OPERATORS as OPERATORS_BY_NAME
from skfusion.neural.modules import draw_dropout, draw_present

SMALL: dict[str, Any] = {"n_components": 16, "hidden_layer_sizes": (32, 16), "random_state": 0}
#: Few steps, but large ones: every weight moves.
BRIEF: dict[str, Any] = {**SMALL, "solver": "paper", "lr": 0.01, "max_epochs": 2}
OPERATORS = ["sum", "mean", "hadamard", "quaternion", "multiplication", "bilinear", "gated"]


def make_blocks(n: int = 60, sizes: dict[str, int] | None = None, seed: int = 0) -> Any:
    """Blocks that each know the class, and three classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    made = {
        name: 2 * rng.normal(size=(3, width))[y] + rng.normal(size=(n, width))
        for name, width in (sizes or {"a": 7, "b": 5, "c": 6}).items()
    }
    return EmbeddingBlocks(made), y


def weights_of(head: Any) -> dict[str, Any]:
    return {name: w.numpy() for name, w in head.net_.module_.state_dict().items()}


def layer(weights: dict[str, Any], name: str, rows: Any) -> Any:
    return rows @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def hamilton(p: Any, q: Any) -> Any:
    a, b, c, d = np.split(p, 4, axis=1)
    e, f, g, h = np.split(q, 4, axis=1)
    return np.hstack(
        [
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        ]
    )


def convolve(p: Any, q: Any) -> Any:
    d = p.shape[1]
    return np.stack([sum(p[:, i] * q[:, (k - i) % d] for i in range(d)) for k in range(d)], axis=1)


def multiply(p: Any, q: Any) -> Any:
    side = round(p.shape[1] ** 0.5)
    matrices = p.reshape(-1, side, side) @ q.reshape(-1, side, side)
    return matrices.reshape(p.shape)


PAIRS: dict[str, Any] = {
    "sum": np.add,
    "hadamard": np.multiply,
    "quaternion": hamilton,
    "multiplication": multiply,
    "bilinear": convolve,
}


def fused_by_hand(head: Any, weights: dict[str, Any], blocks: list[Any]) -> Any:
    if head.operator == "concat":
        return np.hstack(blocks)
    projected = [layer(weights, f"projections.{i}", E) for i, E in enumerate(blocks)]
    mean = np.mean(projected, axis=0)
    if head.operator == "gated":
        gates = softmax(np.hstack(projected) @ weights["gate"], axis=1)
        fused = sum(gates[:, [i]] * u for i, u in enumerate(projected))
    elif head.operator == "mean":
        fused = mean
    else:
        fused = reduce(PAIRS[head.operator], projected)
    if head.residual == "add":
        return fused + mean
    return np.hstack([*blocks, fused]) if head.residual == "concat" else fused


def logits_by_hand(head: Any, blocks: list[Any]) -> Any:
    weights, X = weights_of(head), np.hstack(blocks)
    H = (fused_by_hand(head, weights, blocks) - weights["shift"]) * weights["factor"]
    for i in range(len(head.hidden_layer_sizes)):
        H = np.maximum(layer(weights, f"hidden.{i}", H), 0)
    logits = layer(weights, "out", H)
    return logits + layer(weights, "linear", X) if "linear.weight" in weights else logits


# --- what the network computes ----------------------------------------------------------------


@pytest.mark.parametrize("residual", [False, "concat", "add"])
@pytest.mark.parametrize("operator", ["concat", *OPERATORS])
@pytest.mark.parametrize("solver", ["paper", "auto"])
def test_the_forward_is_the_formula(operator, residual, solver):
    X, y = make_blocks()
    settings = {**BRIEF, "solver": solver, "residual": residual, "early_stopping": False}
    head = FusionMLPClassifier(operator, dtype="float64", **settings).fit(X, y)
    raw = list(X.blocks.values())
    blocks = [StandardScaler().fit_transform(E) for E in raw] if solver == "auto" else raw
    np.testing.assert_allclose(head.decision_function(X), logits_by_hand(head, blocks), atol=1e-9)


@pytest.mark.parametrize("residual", [False, "concat"])
@pytest.mark.parametrize("operator", ["concat", *OPERATORS])
def test_the_papers_shapes_and_recipe(operator, residual):
    X, y = make_blocks(12)
    head = FusionMLPClassifier(operator, residual=residual, solver="paper", max_epochs=0)
    shapes = {name: w.shape for name, w in weights_of(head.fit(X, y)).items()}
    widths = list(X.block_sizes.values())
    fused = 1024
    if operator == "concat":
        fused = sum(widths)
        assert not any("projections" in name for name in shapes)
    else:
        fused += sum(widths) if residual else 0
        for i, width in enumerate(widths):
            assert shapes[f"projections.{i}.weight"] == (1024, width)
            assert shapes[f"projections.{i}.bias"] == (1024,)
    assert shapes["hidden.0.weight"] == (1024, fused)
    assert shapes["hidden.1.weight"] == (256, 1024)
    assert shapes["out.weight"] == (3, 256)


def test_the_papers_recipe_is_what_skorch_is_told():
    X, y = make_blocks(12)
    head = FusionMLPClassifier(solver="paper", hidden_layer_sizes=(8, 4)).fit(X, y)
    adam = head.net_.optimizer_
    assert isinstance(adam, torch.optim.Adam)
    assert adam.defaults["lr"] == 1e-4 and adam.defaults["weight_decay"] == 0
    assert adam.defaults["betas"] == (0.9, 0.999) and adam.defaults["eps"] == 1e-8
    assert head.net_.batch_size == 1024
    assert len(head.net_.history) == head.n_iter_ == 120
    assert head.validation_losses_ == []
    assert head.net_.module_.architecture.dropout == (0.5, 0.3)


@pytest.mark.parametrize("operator", ["concat", "hadamard", "gated"])
def test_first_weights_are_those_of_a_torch_linear(operator):
    """U(-1/√n, 1/√n) for n inputs: all inside, and nearly up to the bound."""
    X, y = make_blocks(12)
    head = FusionMLPClassifier(operator, solver="paper", max_epochs=0, random_state=0).fit(X, y)
    for name, module in head.net_.module_.named_modules():
        if isinstance(module, torch.nn.Linear):
            bound = module.in_features**-0.5
            weight, bias = module.weight.detach().numpy(), module.bias.detach().numpy()
            assert 0.99 * bound < np.abs(weight).max() <= bound, name
            assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.1), name
            assert np.abs(bias).max() <= bound, name


def test_dropout_masks_keep_the_mean():
    """0 or 1 / (1 - p), as often as p says."""
    generator = torch.Generator().manual_seed(0)
    for width, p in zip((500, 40), (0.5, 0.3), strict=True):
        mask = draw_dropout(400, width, p, generator, torch.float64)
        assert mask.shape == (400, width)
        assert set(mask.unique().tolist()) == {0.0, 1 / (1 - p)}
        assert mask.mean() == pytest.approx(1, abs=0.03)


# --- gates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [FusionMLPClassifier, FusionMLPRegressor])
def test_gates_add_up_to_one(estimator):
    X, y = make_blocks()
    head = estimator("gated", **BRIEF).fit(X, y)
    gates = head.compute_gates(X)
    assert gates.shape == (60, 3) and (gates > 0).all()
    np.testing.assert_allclose(gates.sum(axis=1), 1, atol=1e-6)
    assert np.ptp(gates, axis=0).max() > 0.01  # each row has its own
    np.testing.assert_allclose(head.gates_, gates.mean(axis=0), atol=1e-6)


def test_gates_prefer_the_block_that_knows(rng):
    X, y = make_blocks(150)
    noisy = {"noise": rng.normal(size=(150, 7)), "signal": X.blocks["a"]}
    settings = {**SMALL, "solver": "paper", "lr": 0.01, "max_epochs": 60}
    head = FusionMLPClassifier("gated", **settings).fit(EmbeddingBlocks(noisy), y)
    assert head.gates_[1] > head.gates_[0]


def test_operators_without_gates_say_so():
    X, y = make_blocks()
    head = FusionMLPClassifier("sum", **BRIEF).fit(X, y)
    assert not hasattr(head, "gates_")
    with pytest.raises(AttributeError, match=r"operator='sum' has no gates.*'gated'"):
        head.compute_gates(X)


# --- blocks that are missing ------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["hadamard", "gated"])
def test_blocks_may_be_missing_after_block_dropout(operator):
    X, y = make_blocks(150)
    head = FusionMLPClassifier(operator, block_dropout=0.4, **{**BRIEF, "max_epochs": 60}).fit(
        X[:100], y[:100]
    )
    for kept in (["a", "b"], ["b", "c"], ["c"]):
        fewer = EmbeddingBlocks({name: X.blocks[name][100:] for name in kept})
        assert head.score(fewer, y[100:]) > 0.6, kept  # by chance 1/3
        proba = head.predict_proba(fewer)
        assert proba.shape == (50, 3)
        np.testing.assert_allclose(proba.sum(axis=1), 1)


def test_a_missing_block_has_no_gate():
    X, y = make_blocks()
    head = FusionMLPClassifier("gated", block_dropout=0.3, **BRIEF).fit(X, y)
    fewer = EmbeddingBlocks({name: X.blocks[name] for name in ("a", "c")})
    gates = head.compute_gates(fewer)
    assert (gates[:, 1] == 0).all()
    np.testing.assert_allclose(gates.sum(axis=1), 1, atol=1e-6)


def test_the_order_of_the_blocks_that_are_left_does_not_matter():
    X, y = make_blocks()
    head = FusionMLPClassifier("sum", block_dropout=0.3, **BRIEF).fit(X, y)
    one, other = (
        head.predict_proba(EmbeddingBlocks({name: X.blocks[name] for name in names}))
        for names in (["a", "c"], ["c", "a"])
    )
    np.testing.assert_array_equal(one, other)


def test_without_block_dropout_a_missing_block_is_an_error():
    X, y = make_blocks()
    head = FusionMLPClassifier(**BRIEF).fit(X, y)
    with pytest.raises(ValueError, match=r"X lacks the blocks b, c of fit.*block_dropout"):
        head.predict(EmbeddingBlocks({"a": X.blocks["a"]}))


@pytest.mark.parametrize("block_dropout", [0.0, 0.3])
def test_other_blocks_are_an_error_that_names_them(block_dropout):
    X, y = make_blocks()
    head = FusionMLPClassifier(block_dropout=block_dropout, **BRIEF).fit(X, y)
    renamed = EmbeddingBlocks(list(X.blocks.values()), names=["a", "b", "stranger"])
    with pytest.raises(ValueError, match=r"stranger.*a.*b.*c.*of fit"):
        head.predict(renamed)
    wider = EmbeddingBlocks({**X.blocks, "c": np.ones((60, 9))})
    with pytest.raises(ValueError, match=r"c: 9.*c: 6.*of fit"):
        head.predict(wider)
    only = EmbeddingBlocks({"a": np.ones((60, 9))})
    with pytest.raises(ValueError, match=r"a: 9.*of fit"):
        head.predict(only)


@pytest.mark.parametrize("n_blocks", [1, 2, 4])
def test_never_all_blocks_of_a_row_are_dropped(n_blocks):
    generator = torch.Generator().manual_seed(0)
    kept = draw_present(2000, n_blocks, 0.9, generator, torch.float32)
    assert kept.shape == (2000, n_blocks) and set(kept.unique().tolist()) <= {0.0, 1.0}
    assert (kept.sum(dim=1) >= 1).all()
    if n_blocks > 1:  # each as often as the others
        np.testing.assert_allclose(kept.mean(dim=0), kept.mean(), atol=0.05)


# --- layers that are mixed --------------------------------------------------------------------

LAYERS = {"m_layer1_mean": 6, "m_layer3_mean": 6, "other": 4, "m_layer2_mean": 6}


@pytest.mark.parametrize("operator", ["concat", "sum", "gated"])
def test_mix_is_the_softmax_weighted_sum_of_layers(operator):
    X, y = make_blocks(sizes=LAYERS)
    head = FusionMLPClassifier(operator, layer="mix", dtype="float64", **BRIEF).fit(X, y)
    (name,) = [name for name in weights_of(head) if "mixes" in name]
    shares = softmax(weights_of(head)[name])
    assert np.ptp(shares) > 0  # learned
    layers = [X.blocks[k] for k in LAYERS if k != "other"]
    mixed = sum(share * E for share, E in zip(shares, layers, strict=True))
    expected = logits_by_hand(head, [mixed, X.blocks["other"]])
    np.testing.assert_allclose(head.decision_function(X), expected, atol=1e-9)


def test_a_model_alone_and_each_pooling_by_itself_are_mixed():
    """`LLMLayerEmbedder` names blocks without a model; two poolings are two mixes."""
    sizes = {f"layer{k}_{pooling}": 5 for k in (1, 2) for pooling in ("mean", "last")}
    X, y = make_blocks(sizes=sizes)
    head = FusionMLPClassifier("sum", layer="mix", **BRIEF).fit(X, y)
    assert len([name for name in weights_of(head) if "mixes" in name]) == 2
    assert len([name for name in weights_of(head) if "projections" in name]) == 2 * 2


def test_layers_that_cannot_be_mixed_say_so():
    X, y = make_blocks()
    with pytest.raises(ValueError, match=r"layer='mix'.*a, b, c.*EmbedderUnion"):
        FusionMLPClassifier(layer="mix", **SMALL).fit(X, y)
    X, y = make_blocks(sizes={"m_layer1_mean": 6, "m_layer2_mean": 5})
    with pytest.raises(ValueError, match=r"needs layers of one width.*m_layer2_mean: 5"):
        FusionMLPClassifier(layer="mix", **SMALL).fit(X, y)
    with pytest.raises(ValueError, match="'layer' parameter"):
        FusionMLPClassifier(layer="all", **SMALL).fit(X, y)


# --- parameters -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"operator": "weighted"}, r"'weighted'.*FusionTransformer.*'gated'"),
        ({"operator": "tensor"}, r"no operator 'tensor'.*hadamard.*register_operator"),
        ({"operator": "quaternion", "n_components": 15}, "multiple of 4, got 15"),
        ({"operator": "multiplication", "n_components": 15}, "perfect square, got 15"),
        ({"residual": True}, "residual=True is not known"),
        ({"residual": "sum"}, "'residual' parameter"),
        ({"dropout": (0.1,)}, r"dropout=\(0.1,\).*each of the 2 hidden layers"),
        ({"dropout": (0.1, 1.0)}, r"dropout=\(0.1, 1.0\).*below 1"),
        ({"dropout": -0.1}, "'dropout' parameter"),
        ({"hidden_layer_sizes": (4, 0)}, r"hidden_layer_sizes=\(4, 0\).*at least 1"),
        ({"block_dropout": 1.0}, "'block_dropout' parameter"),
        ({"lr": 0.0}, "'lr' parameter"),
        ({"solver": "adam"}, "'solver' parameter"),
        ({"dtype": "float16"}, "'dtype' parameter"),
    ],
    ids=str,
)
def test_wrong_parameters_say_what_is_right(parameters, message):
    X, y = make_blocks(12)
    with pytest.raises(ValueError, match=message):
        FusionMLPClassifier(**{**SMALL, **parameters}).fit(X, y)


@pytest.mark.parametrize("operator", ["quaternion", "multiplication"])
def test_products_of_one_block_say_so(operator):
    X, y = make_blocks(12)
    with pytest.raises(ValueError, match="at least two blocks, got 1"):
        FusionMLPClassifier(operator, block_sizes="single", **SMALL).fit(X, y)


@pytest.mark.parametrize("dropout", [0, 0.2, np.float32(0.2), np.array([0.2, 0.1]), [0.2, 0.1]])
def test_dropout_is_one_number_or_one_a_layer(dropout):
    X, y = make_blocks(12)
    head = FusionMLPClassifier(dropout=dropout, **BRIEF).fit(X, y)
    expected = np.broadcast_to(dropout, 2)
    np.testing.assert_allclose(head.net_.module_.architecture.dropout, expected, atol=1e-7)


@pytest.mark.parametrize("sizes", [(), (8,), (8, 6, 4)])
def test_any_number_of_hidden_layers(sizes):
    X, y = make_blocks()
    head = FusionMLPClassifier(
        "sum", n_components=16, hidden_layer_sizes=sizes, dropout=0.1, dtype="float64",
        solver="paper", max_epochs=2,
    ).fit(X, y)  # fmt: skip
    expected = logits_by_hand(head, list(X.blocks.values()))
    np.testing.assert_allclose(head.decision_function(X), expected, atol=1e-9)


@pytest.mark.parametrize("solver", ["auto", "paper"])
def test_no_epochs_are_the_first_weights(solver):
    X, y = make_blocks(150)  # enough to hold some out
    head = FusionMLPClassifier(solver=solver, max_epochs=0, **SMALL).fit(X, y)
    assert head.n_iter_ == 0 and len(head.net_.history) == 0
    assert np.isfinite(head.predict_proba(X)).all()


def test_a_registered_operator_works_and_is_pickled():
    register_operator("head_gap", lambda blocks: abs(blocks[0] - blocks[1])[..., :9])
    X, y = make_blocks()
    head = FusionMLPClassifier("head_gap", residual="concat", **{**BRIEF, "max_epochs": 40}).fit(
        X, y
    )
    assert head.score(X, y) > 0.9
    assert weights_of(head)["hidden.0.weight"].shape == (32, 7 + 5 + 6 + 9)
    expected, kept = head.predict_proba(X), pickle.dumps(head)
    OPERATORS_BY_NAME.pop("head_gap")
    again = pickle.loads(kept)
    np.testing.assert_array_equal(again.predict_proba(X), expected)
    np.testing.assert_array_equal(again.fit(X, y).predict_proba(X), expected)
    again.partial_fit(X, y)
    assert "head_gap" not in OPERATORS_BY_NAME
