"""Where ``skfusion.<name>`` is today: what users ask for, and what saved models name."""

#: The public names, loaded when they are asked for.
PUBLIC = {
    "PAPER_OPERATORS": ".fusion.registry",
    "Backbone": ".embed.backbone",
    "EmbedderUnion": ".embed.union",
    "EmbeddingBlocks": "._blocks",
    "FusionClassifier": ".recipe",
    "FusionHead": ".selection.head",
    "FusionMLPClassifier": ".neural.classifier",
    "FusionMLPRegressor": ".neural.regressor",
    "FusionRegressor": ".recipe",
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
    "fusion_grid": ".selection.spaces",
    "fusion_space": ".selection.spaces",
    "layer_scores": ".linear.layer_scores",
    "layer_space": ".selection.spaces",
    "load": ".saving",
    "measure_costs": ".inspection.cost",
    "rank_models": ".selection.rank",
    "register_operator": ".fusion.registry",
    "save": ".saving",
}
#: What estimators hold beside estimators. A class that moves changes its line, here or above; one
#: that gets another name could not be read any more.
PARTS = {
    "Architecture": ".neural.modules",
    "Blend": ".embed.blend",
    "BlendComponents": ".linear.blending",
    "BlockSelector": ".selection.subsets",
    "CountSketch": ".fusion.projection",
    "HeadNet": ".neural.training",
    "LayerScores": PUBLIC["LayerScores"],
    "LinearProjection": ".fusion.projection",
    "ModelCost": PUBLIC["ModelCost"],
    "Scaler": ".linear.scaling",
    "Spec": ".embed.encoding",
    "VectorStore": PUBLIC["VectorStore"],
}
