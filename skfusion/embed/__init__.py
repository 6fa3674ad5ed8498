"""From texts to the pooled hidden states of language models."""
