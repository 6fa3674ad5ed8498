"""Several embeddings of one text made one: blocks, operators, `FusionTransformer`."""
