"""What embedding texts will take, from a sample of them that is embedded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .embedder import LLMLayerEmbedder

SAMPLED = 32  # texts


@dataclass(frozen=True)
class Estimate:
    """What embedding texts will take; printed, in words.

    Attributes
    ----------
    n_texts : int
        Different texts.
    n_tokens : int
        Tokens that the model reads of them, cut texts as they are cut.
    n_missing : int
        About how many of them are not stored.
    seconds : float
        Time for these, the loading of the model included if it is not loaded.
    n_bytes : int
        What the store keeps of all.

    Examples
    --------
    >>> print(Estimate(1200, 30_000, 1000, 61.0, 45_000_000))
    1,200 different texts, about 30,000 tokens, 45.0 MB of vectors, about 61 seconds
    """

    n_texts: int
    n_tokens: int
    n_missing: int
    seconds: float
    n_bytes: int

    def __str__(self) -> str:
        words = f"{self.n_texts:,} different texts, about {self.n_tokens:,} tokens"
        if self.n_bytes:
            words += f", {size_words(self.n_bytes)} of vectors"
        if not self.n_missing:
            return f"{words}; most are stored already"
        return f"{words}, about {duration_words(self.seconds)}"


def estimate(embedder: LLMLayerEmbedder, texts: Sequence[str]) -> Estimate:
    """Embed a sample of texts, and say from it what all of them will take."""
    different = list(dict.fromkeys(texts))
    if not different:
        return Estimate(0, 0, 0, 0.0, 0)
    step = max(1, len(different) // SAMPLED)
    sample = different[::step][:SAMPLED]
    started = time.perf_counter()
    n_tokens = float(embedder.count_tokens(sample).mean())
    embedder.transform(sample[:1])  # loads the weights
    loading, timed = time.perf_counter() - started, sample[1:] or sample
    started = time.perf_counter()
    embedder.transform(timed)
    seconds, n_encoded = time.perf_counter() - started, embedder.n_encoded_
    stored = embedder.store_.info()
    # As much of the rest is taken to be known as of the sample.
    n_missing = round(len(different) * n_encoded / len(timed))
    per_text = seconds / max(1, n_encoded)
    return Estimate(
        n_texts=len(different),
        n_tokens=round(n_tokens * len(different)),
        n_missing=n_missing,
        seconds=loading + per_text * n_missing if n_missing else 0.0,
        n_bytes=round(stored["n_bytes"] / max(1, stored["n_texts"]) * len(different)),
    )


def size_words(n_bytes: float) -> str:
    """Return a number of bytes in words.

    >>> size_words(950), size_words(45_000_000)
    ('950 bytes', '45.0 MB')
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            return f"{n_bytes:,.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    raise AssertionError("unreachable")


def duration_words(seconds: float) -> str:
    """Return a time in words.

    >>> duration_words(61), duration_words(3000), duration_words(9000)
    ('61 seconds', '50 minutes', '2.5 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
