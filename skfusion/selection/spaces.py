"""Grids and Optuna spaces of layers, poolings and operators: valid combinations only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

from ..embed.embedder import LLMLayerEmbedder
from ..embed.layers import resolve_layers, resolve_poolings
from ..embed.loading import resolve
from ..embed.union import EmbedderUnion
from ..fusion.registry import PAPER_OPERATORS, SIDE_BY_SIDE, find_operator

if TYPE_CHECKING:
    from ..embed.backbone import Source

Layers = str | int | Sequence[int | float]
#: The name of an operator, or a setting in the form of `PAPER_OPERATORS`.
Setting = str | Mapping[str, Any]
Values = dict[str, list[Any]]


def layer_space(embedder: LLMLayerEmbedder, layers: Layers = "all") -> list[int]:
    """List layers of a model, reading its config alone.

    Parameters
    ----------
    embedder : LLMLayerEmbedder
        Whose model it is; it need not be fitted.
    layers : {"all", "thirds"}, int or list, default="all"
        "all" are 0, the embedding output, to L. "thirds" are the layers at L/3, 2L/3 and L, and
        an int n those of n parts. A list is of the form of the embedder's `layer`.

    Returns
    -------
    list of int
        Different layers, counted from 0; ascending, but a list keeps its order.

    Raises
    ------
    TypeError
        If `embedder` is no `LLMLayerEmbedder`.
    ValueError
        If a layer is out of the model's range.
    OSError
        If the model cannot be found or reached.

    Examples
    --------
    >>> from skfusion import LLMLayerEmbedder, layer_space
    >>> layer_space(LLMLayerEmbedder(tiny_model))
    [0, 1, 2, 3]
    >>> layer_space(LLMLayerEmbedder(tiny_model), "thirds")
    [1, 2, 3]
    """
    if not isinstance(embedder, LLMLayerEmbedder):
        raise TypeError(
            f"layer_space needs an LLMLayerEmbedder, got {embedder!r}. Take the one that is in it."
        )
    n_layers = _source(embedder).n_layers
    if isinstance(layers, str) and layers == "all":
        return list(range(n_layers + 1))
    parts = 3 if isinstance(layers, str) and layers == "thirds" else layers
    if isinstance(parts, int) and not isinstance(parts, bool) and parts >= 1:
        return sorted({round(n_layers * k / parts) for k in range(1, parts + 1)})
    if isinstance(parts, str | int):
        raise ValueError(
            f"layers={layers!r} must be 'all', 'thirds', a number of parts from 1, or a list of "
            f"layers."
        )
    return resolve_layers(parts, n_layers, name="layers")


def fusion_grid(
    union: EmbedderUnion,
    operators: Iterable[Setting] = PAPER_OPERATORS,
    *,
    layers: Layers = "thirds",
    poolings: Sequence[str] | None = None,
    n_components: Sequence[int] | None = None,
    embed: str = "embed",
    fuse: str = "fuse",
) -> list[Values]:
    """Make a parameter grid of layers, poolings and operators that has valid combinations only.

    With a single block, which every operator passes on, only "concat" is left. "concat" and
    "weighted" get no residual and no common width, since they hold the blocks side by side.

    Parameters
    ----------
    union : EmbedderUnion
        The embed step. Models in it are searched wherever they are; others stay as they are.
    operators : iterable of str or dict, default=PAPER_OPERATORS
        Names, or dicts with "operator" and "residual".
    layers : {"all", "thirds"}, int or list, default="thirds"
        Layers of each model; see `layer_space`.
    poolings : sequence of str or None, default=None
        Poolings of each model; None leaves them as they are.
    n_components : sequence of int or None, default=None
        Common widths, each rounded down to one that the operator takes and no block is narrower
        than. None leaves it as it is.
    embed, fuse : str, default="embed", "fuse"
        Names of the steps in the pipeline. The fusing step may be a `FusionMLPClassifier`.

    Returns
    -------
    list of dict of str to list
        One grid per operator, for `GridSearchCV`.

    Raises
    ------
    TypeError
        If `union` is no `EmbedderUnion`.
    ValueError
        If an operator, pooling or layer is unknown, or a width is too small for an operator.

    Examples
    --------
    >>> from skfusion import EmbedderUnion, LLMLayerEmbedder, fusion_grid
    >>> union = EmbedderUnion([(name, LLMLayerEmbedder(tiny_model)) for name in "ab"])
    >>> grid = fusion_grid(union, ["concat", "hadamard"], layers=[-1])
    >>> grid[1]
    {'embed__a__layer': [3], 'embed__b__layer': [3], 'fuse__operator': ['hadamard'],
     'fuse__residual': [False]}
    """
    models = _read_models(union, layers, poolings, embed)
    settings = _read_settings(operators, n_components, models, fuse)
    if not _several_blocks(models.values()):
        settings = {"concat": _alone(fuse)}
    searched = dict(chain.from_iterable(model.values.items() for model in models.values()))
    return [
        {**searched, f"{fuse}__operator": [operator], **values}
        for operator, values in settings.items()
    ]


def fusion_space(
    union: EmbedderUnion,
    operators: Iterable[Setting] = PAPER_OPERATORS,
    *,
    layers: Layers = "all",
    poolings: Sequence[str] | None = None,
    n_components: Sequence[int] | None = None,
    subsets: bool = False,
    embed: str = "embed",
    fuse: str = "fuse",
) -> Callable[[Any], dict[str, Any]]:
    """Make a conditional space of layers, poolings, operators and sets of models for Optuna.

    Only what matters is drawn: no layer of a model that is left out, no operator for a single
    block, no residual for an operator that has none.

    Parameters
    ----------
    union : EmbedderUnion
        The embed step.
    operators, poolings, n_components, embed, fuse
        As in `fusion_grid`.
    layers : {"all", "thirds"}, int or list, default="all"
        Layers of each model; see `layer_space`.
    subsets : bool, default=False
        Whether the set of models is drawn too: any that is not empty.

    Returns
    -------
    callable
        Takes an Optuna trial and returns parameters of the pipeline; for `OptunaSearchCV`.

    Raises
    ------
    TypeError, ValueError
        As in `fusion_grid`.

    Examples
    --------
    >>> from optuna.trial import FixedTrial
    >>> from skfusion import EmbedderUnion, LLMLayerEmbedder, fusion_space
    >>> union = EmbedderUnion([(name, LLMLayerEmbedder(tiny_model)) for name in "ab"])
    >>> space = fusion_space(union, subsets=True)
    >>> space(FixedTrial({"embed__models": "a", "embed__a__layer": 2}))
    {'embed__b': 'drop', 'embed__a__layer': 2, 'fuse__operator': 'concat', 'fuse__residual': False}
    """
    models = _read_models(union, layers, poolings, embed)
    settings = _read_settings(operators, n_components, models, fuse)
    return _FusionSpace(models, settings, subsets, embed, fuse)


@dataclass(frozen=True)
class _EmbedderSpace:
    """What is searched of one embedder of the union, and what is known of its output."""

    values: Values
    n_blocks: int
    widths: list[int]


@dataclass(frozen=True)
class _FusionSpace:
    """A callable that can be pickled and hashed."""

    models: dict[str, _EmbedderSpace]
    settings: dict[str, Values]
    subsets: bool
    embed: str
    fuse: str

    def __call__(self, trial: Any) -> dict[str, Any]:
        names = self._suggest_names(trial) if self.subsets else list(self.models)
        params = {f"{self.embed}__{name}": "drop" for name in self.models if name not in names}
        for name in names:
            for parameter, values in self.models[name].values.items():
                params[parameter] = _suggest(trial, parameter, values)
        operator, choices = "concat", _alone(self.fuse)
        if _several_blocks(self.models[name] for name in names):
            operator = _suggest(trial, f"{self.fuse}__operator", list(self.settings))
            choices = self.settings[operator]
        params[f"{self.fuse}__operator"] = operator
        for parameter, values in choices.items():
            # Operators differ in their choices, which Optuna wants to be the same for a name.
            params[parameter] = _suggest(trial, f"{parameter}[{operator}]", values)
        return params

    def _suggest_names(self, trial: Any) -> list[str]:
        sizes = range(1, len(self.models) + 1)
        sets = chain.from_iterable(combinations(self.models, size) for size in sizes)
        chosen: str = _suggest(trial, f"{self.embed}__models", ["+".join(names) for names in sets])
        return chosen.split("+")


def _suggest(trial: Any, name: str, values: list[Any]) -> Any:
    """Suggest layers that follow each other as numbers, whose order a sampler can use."""
    if len(values) == 1:
        return values[0]
    if values == list(range(len(values))):
        return trial.suggest_int(name, 0, len(values) - 1)
    return trial.suggest_categorical(name, values)


def _source(embedder: LLMLayerEmbedder) -> Source:
    return resolve(
        embedder.model, revision=embedder.revision, trust_remote_code=embedder.trust_remote_code
    )


def _read_models(
    union: EmbedderUnion, layers: Layers, poolings: Sequence[str] | None, embed: str
) -> dict[str, _EmbedderSpace]:
    if not isinstance(union, EmbedderUnion):
        raise TypeError(
            f"union must be an EmbedderUnion, got {union!r}. Of a single model use layer_space."
        )
    if poolings is not None:
        poolings = resolve_poolings(poolings, name="poolings")
    return {
        name: _read_model(f"{embed}__{name}", embedder, layers, poolings)
        for name, embedder in union.embedders
        if not isinstance(embedder, str)
    }


def _read_model(
    path: str, embedder: Any, layers: Layers, poolings: list[str] | None
) -> _EmbedderSpace:
    params = embedder.get_params(deep=True) if hasattr(embedder, "get_params") else {}
    parts = {path: embedder, **{f"{path}__{name}": part for name, part in params.items()}}
    found = {where: part for where, part in parts.items() if isinstance(part, LLMLayerEmbedder)}
    values: Values = {}
    n_blocks = 0
    for where, part in found.items():
        values[f"{where}__layer"] = layer_space(part, layers)
        if poolings is not None:
            values[f"{where}__pooling"] = poolings
        one = poolings is not None or isinstance(part.pooling, str)
        n_blocks += 1 if one else len(part.pooling)
    return _EmbedderSpace(
        values, max(n_blocks, 1), [_source(part).width for part in found.values()]
    )


def _several_blocks(models: Iterable[_EmbedderSpace]) -> bool:
    return sum(model.n_blocks for model in models) > 1


def _alone(fuse: str) -> Values:
    return {f"{fuse}__residual": [False]}


def _read_settings(
    operators: Iterable[Setting],
    n_components: Sequence[int] | None,
    models: Mapping[str, _EmbedderSpace],
    fuse: str,
) -> dict[str, Values]:
    """Gather the residuals and widths of each operator."""
    residuals: dict[str, list[Any]] = {}
    for given in operators:
        setting = {"operator": given} if isinstance(given, str) else given
        operator = setting["operator"]
        residual = False if operator in SIDE_BY_SIDE else setting.get("residual", False)
        if residual not in residuals.setdefault(operator, []):
            residuals[operator].append(residual)
    if not residuals:
        raise ValueError("operators is empty. Name at least one, or leave PAPER_OPERATORS.")
    narrowest = min(chain.from_iterable(model.widths for model in models.values()), default=None)
    settings = {name: {f"{fuse}__residual": values} for name, values in residuals.items()}
    for name, values in settings.items():
        # Those two are no functions of the blocks alone; as for "sum", any width will do.
        width = find_operator("sum" if name in ("weighted", "gated") else name).width
        if n_components is None or name in SIDE_BY_SIDE:
            continue
        rounded: dict[int, None] = {}
        for n in n_components:
            limit = n if narrowest is None else min(n, narrowest)
            valid = width.largest(limit)
            if valid is None:
                raise ValueError(
                    f"n_components holds {n}, but no width up to {limit} is {width.text}, as "
                    f"operator {name!r} needs. Use a larger number, or leave the operator out."
                )
            rounded[valid] = None
        values[f"{fuse}__n_components"] = list(rounded)
    return settings
