"""``layer="blend"``: the weighted vectors of all layers and poolings as even components."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .._targets import Targets
from ..linear.blending import BlendComponents, blend_shares, fading_prior, fit_components
from ..linear.layer_scores import MEANS
from ..linear.rotation import even_columns
from ..linear.scaling import Scaler, Vectors, fit_scaler
from .shards import Column

#: Yields the vectors (n_texts, width) of columns, one column after the other.
Read = Callable[[Sequence[Column]], Iterable[Vectors]]
_ROWS = 4096  # that are projected together


@dataclass(frozen=True, eq=False)
class Blend:
    """What becomes of the columns that have weight."""

    columns: tuple[Column, ...]
    scalers: tuple[Scaler, ...]
    components: BlendComponents

    @property
    def n_components(self) -> int:
        """Return the width of the output."""
        return int(self.components.projections[0].shape[1])

    def __call__(self, vectors: Iterable[Vectors], n_texts: int) -> Vectors:
        """Return the components of texts, whose columns are read one after the other."""
        total = np.zeros((n_texts, self.n_components), dtype=np.float32)
        maps = zip(self.scalers, self.components.means, self.components.projections, strict=True)
        for block, (scale, mean, projection) in zip(vectors, maps, strict=True):
            wide = projection.astype(np.float64)
            for start in range(0, n_texts, _ROWS):
                rows = slice(start, start + _ROWS)
                # Products of floats of 64 bits, as those of 32 depend on the rows beside a row.
                total[rows] += (scale(block[rows].astype(np.float64)) - mean) @ wide
        return total


def fit_blend(
    read: Read,
    columns: Sequence[Column],
    targets: Targets | None,
    n_components: int | None,
    rng: np.random.RandomState,
) -> tuple[Blend, NDArray[np.float64]]:
    """Return a blend and the share of every column, from what is read of training rows."""
    scalers: list[Scaler] = []

    def learn_scales() -> Iterator[Vectors]:
        for vectors in read(columns):
            scalers.append(fit_scaler(vectors, "standard"))
            yield scalers[-1](vectors)

    prior = np.ones(len(columns))
    if targets is not None:
        prior = fading_prior([pooling in MEANS for _, pooling in columns], len(targets))
    shares = blend_shares(learn_scales(), prior, targets, rng)
    counted = np.flatnonzero(shares).tolist()
    kept = tuple(columns[i] for i in counted)
    scales = tuple(scalers[i] for i in counted)
    found = fit_components(lambda: _scaled(scales, read(kept)), shares[counted], n_components, rng)
    projections = tuple(map(even_columns, found.projections))
    return Blend(kept, scales, replace(found, projections=projections)), shares


def _scaled(scalers: Iterable[Scaler], vectors: Iterable[Vectors]) -> Iterator[Vectors]:
    for scale, block in zip(scalers, vectors, strict=True):
        yield scale(block)
