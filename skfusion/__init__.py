"""Hidden states of language models as scikit-learn features, one forward pass per text."""

from .embed.backbone import Backbone
from .embed.embedder import LLMLayerEmbedder, TruncationWarning
from .embed.store import StoreWarning, VectorStore
from .embed.union import EmbedderUnion
from .fusion.blocks import EmbeddingBlocks

__version__ = "0.1.0.dev0"

__all__ = [
    "Backbone",
    "EmbedderUnion",
    "EmbeddingBlocks",
    "LLMLayerEmbedder",
    "StoreWarning",
    "TruncationWarning",
    "VectorStore",
    "__version__",
]
