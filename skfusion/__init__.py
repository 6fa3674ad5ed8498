"""Hidden states of language models as scikit-learn features, one forward pass per text."""

from ._blocks import EmbeddingBlocks
from .embed.backbone import Backbone
from .embed.embedder import LLMLayerEmbedder, TruncationWarning
from .embed.store import StoreWarning, VectorStore
from .embed.union import EmbedderUnion
from .fusion.projection import ProjectionWarning
from .fusion.registry import PAPER_OPERATORS, register_operator
from .fusion.transformer import FusionTransformer
from .inspection.cost import ModelCost, measure_costs
from .linear.layer_scores import LayerScores, layer_scores
from .neural.classifier import FusionMLPClassifier
from .neural.regressor import FusionMLPRegressor
from .saving.folder import load, save
from .selection.optuna_search import OptunaSearchCV
from .selection.spaces import fusion_grid, fusion_space, layer_space
from .selection.subsets import ModelSubsetSearchCV

__version__ = "0.1.0.dev0"

__all__ = [
    "PAPER_OPERATORS",
    "Backbone",
    "EmbedderUnion",
    "EmbeddingBlocks",
    "FusionMLPClassifier",
    "FusionMLPRegressor",
    "FusionTransformer",
    "LLMLayerEmbedder",
    "LayerScores",
    "ModelCost",
    "ModelSubsetSearchCV",
    "OptunaSearchCV",
    "ProjectionWarning",
    "StoreWarning",
    "TruncationWarning",
    "VectorStore",
    "__version__",
    "fusion_grid",
    "fusion_space",
    "layer_scores",
    "layer_space",
    "load",
    "measure_costs",
    "register_operator",
    "save",
]
