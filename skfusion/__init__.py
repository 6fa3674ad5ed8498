"""Hidden states of language models as scikit-learn features, one forward pass per text."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._public import PUBLIC

if TYPE_CHECKING:
    from ._blocks import EmbeddingBlocks
    from .embed.backbone import Backbone
    from .embed.callable import CallableEmbedder
    from .embed.embedder import LLMLayerEmbedder, TruncationWarning
    from .embed.store import StoreWarning, VectorStore
    from .embed.union import EmbedderUnion
    from .fusion.projection import ProjectionWarning
    from .fusion.registry import PAPER_OPERATORS, register_operator
    from .fusion.transformer import FusionTransformer
    from .inspection.compare import (
        Comparison,
        compare,
        compare_all,
        compare_predictions,
        variance_components,
    )
    from .inspection.cost import measure_costs
    from .inspection.displays.fusions import FusionHeatmapDisplay
    from .inspection.displays.layers import (
        LayerHeatmapDisplay,
        LayerProfileDisplay,
        PoolingDisplay,
    )
    from .inspection.displays.ranks import CriticalDifferenceDisplay
    from .inspection.displays.subsets import SubsetDisplay, TradeoffDisplay
    from .inspection.displays.weights import WeightsDisplay
    from .inspection.report import report
    from .inspection.stability import stability_report
    from .linear.layer_scores import LayerScores, layer_scores
    from .neural.classifier import FusionMLPClassifier
    from .neural.regressor import FusionMLPRegressor
    from .recipe import FusionClassifier, FusionRegressor
    from .saving import load, save
    from .selection.head import FusionHead
    from .selection.optuna_search import OptunaSearchCV
    from .selection.rank import rank_models
    from .selection.spaces import fusion_grid, fusion_space, layer_space
    from .selection.subsets import ModelSubsetSearchCV

__version__ = "0.1.0.dev0"

# Silent unless the user asks: `logging.basicConfig(level="INFO")` says what is loaded, computed
# and stored.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "PAPER_OPERATORS",
    "Backbone",
    "CallableEmbedder",
    "Comparison",
    "CriticalDifferenceDisplay",
    "EmbedderUnion",
    "EmbeddingBlocks",
    "FusionClassifier",
    "FusionHead",
    "FusionHeatmapDisplay",
    "FusionMLPClassifier",
    "FusionMLPRegressor",
    "FusionRegressor",
    "FusionTransformer",
    "LLMLayerEmbedder",
    "LayerHeatmapDisplay",
    "LayerProfileDisplay",
    "LayerScores",
    "ModelSubsetSearchCV",
    "OptunaSearchCV",
    "PoolingDisplay",
    "ProjectionWarning",
    "StoreWarning",
    "SubsetDisplay",
    "TradeoffDisplay",
    "TruncationWarning",
    "VectorStore",
    "WeightsDisplay",
    "__version__",
    "compare",
    "compare_all",
    "compare_predictions",
    "fusion_grid",
    "fusion_space",
    "layer_scores",
    "layer_space",
    "load",
    "measure_costs",
    "rank_models",
    "register_operator",
    "report",
    "save",
    "stability_report",
    "variance_components",
]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(PUBLIC[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | PUBLIC.keys())
