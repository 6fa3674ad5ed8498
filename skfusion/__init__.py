"""Hidden states of language models as scikit-learn features, one forward pass per text."""

from .embed.backbone import Backbone
from .embed.embedder import LLMLayerEmbedder, TruncationWarning
from .embed.store import StoreWarning, VectorStore
from .embed.union import EmbedderUnion
from .fusion.blocks import EmbeddingBlocks
from .fusion.projection import ProjectionWarning
from .fusion.registry import PAPER_OPERATORS, register_operator
from .fusion.transformer import FusionTransformer

__version__ = "0.1.0.dev0"

__all__ = [
    "PAPER_OPERATORS",
    "Backbone",
    "EmbedderUnion",
    "EmbeddingBlocks",
    "FusionTransformer",
    "LLMLayerEmbedder",
    "ProjectionWarning",
    "StoreWarning",
    "TruncationWarning",
    "VectorStore",
    "__version__",
    "register_operator",
]
