"""Names: where ``skfusion.<name>`` is today, and what a saved model may name."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

#: The public names, loaded when they are asked for.
PUBLIC = {
    "PAPER_OPERATORS": ".fusion.registry",
    "Backbone": ".embed.backbone",
    "EmbedderUnion": ".embed.union",
    "EmbeddingBlocks": "._blocks",
    "FusionMLPClassifier": ".neural.classifier",
    "FusionMLPRegressor": ".neural.regressor",
    "FusionTransformer": ".fusion.transformer",
    "LLMLayerEmbedder": ".embed.embedder",
    "LayerScores": ".linear.layer_scores",
    "ModelCost": ".inspection.cost",
    "ModelSubsetSearchCV": ".selection.subsets",
    "OptunaSearchCV": ".selection.optuna_search",
    "ProjectionWarning": ".fusion.projection",
    "StoreWarning": ".embed.store",
    "TruncationWarning": ".embed.embedder",
    "VectorStore": ".embed.store",
    "fit_many": ".neural.many",
    "fusion_grid": ".selection.spaces",
    "fusion_space": ".selection.spaces",
    "layer_scores": ".linear.layer_scores",
    "layer_space": ".selection.spaces",
    "load": ".saving",
    "measure_costs": ".inspection.cost",
    "register_operator": ".fusion.registry",
    "save": ".saving",
}
#: What estimators hold beside estimators. A class that moves changes its line, here or above; one
#: that gets another name could not be read any more.
PARTS = {
    "Architecture": ".neural.modules",
    "CountSketch": ".fusion.projection",
    "HeadNet": ".neural.training",
    "LayerScores": ".linear.layer_scores",
    "LinearProjection": ".fusion.projection",
    "ModelCost": ".inspection.cost",
    "Scaler": ".linear.scaling",
    "Source": ".embed.backbone",
    "Spec": ".embed.encoding",
    "VectorStore": ".embed.store",
}
#: Classes of scikit-learn whose objects a model may hold, those derived from them too. By name,
#: as some are private.
_SKLEARN = re.compile(
    r"sklearn\.(base\.BaseEstimator|calibration\._CalibratedClassifier|gaussian_process\.kernels"
    r"\.Kernel|metrics\._scorer\._MultimetricScorer|neural_network\._stochastic_optimizers\."
    r"BaseOptimizer|utils\._metadata_requests\.(_MetadataRequester|(Method)?MetadataRequest))"
)
_BUILTINS = {bool, int, float, complex, str, bytes, list, tuple, dict, set}


@cache
def _functions() -> dict[str, Any]:
    """Return functions of arrays by name; none of them reads a file or calls what it is given."""
    own = ("metrics", "metrics.pairwise", "feature_selection", "preprocessing")
    found = {}
    for module in ("numpy", "scipy.special", *(f"sklearn.{name}" for name in own)):
        for name, thing in vars(import_module(module)).items():
            ufunc = isinstance(thing, np.ufunc) and not module.startswith("sklearn")
            here = isinstance(thing, FunctionType) and thing.__module__.startswith(module)
            if not name.startswith("_") and (ufunc or (here and module.startswith("sklearn"))):
                found[f"{module}.{name}"] = thing
    return found


def name_of(thing: Any) -> str:
    """Name a class or function; by its public name wherever there is one."""
    for name, function in _functions().items():
        if function is thing:
            return name
    module = str(getattr(thing, "__module__", "<none>"))
    return f"{'skfusion' if module.startswith('skfusion.') else module}.{thing.__qualname__}"


def find(name: str) -> Any:
    """Find a class or function that a model may name, or None; nothing else is imported."""
    module, _, attribute = name.rpartition(".")
    if module == "skfusion":
        where = PARTS.get(attribute) or PUBLIC.get(attribute, "._public")
        found = getattr(import_module(where, __package__), attribute, None)
        estimator = isinstance(found, type) and issubclass(found, BaseEstimator)
        return found if attribute in PARTS or estimator else None
    found = vars(sys.modules.get(module, sys)).get(attribute)
    if not isinstance(found, type):
        return _functions().get(name)
    if module.startswith("sklearn.") and name_of(found) == name:
        bases = (f"{base.__module__}.{base.__qualname__}" for base in found.__mro__)
        return found if any(map(_SKLEARN.fullmatch, bases)) else None
    value = found in _BUILTINS or (module == "numpy" and issubclass(found, np.generic))
    return found if value else None
