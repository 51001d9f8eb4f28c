"""Near-duplicate removal by MinHash: documents that share most of their word n-grams are one document.

    text  ->  signature of `bands x rows` minima  ->  one hash per band  ->  documents that agree on a whole band meet
          ->  a star around the survivor of each meeting  ->  connected components  ->  one survivor each

Two documents of Jaccard similarity s (over their sets of word n-grams) meet with probability 1 - (1 - s^rows)^bands. With
14 bands of 8 rows that is half at s = 0.68, 5 % at 0.5 and 99 % at 0.85. What meets counts as alike: no signature travels,
so a meeting is not verified, and chains of meetings join. Ask for a higher threshold where that takes too much.

A document of fewer words than one n-gram meets documents of the very same words, and no others; one without words meets
none (`dedup.exact` sees those). Words are runs of letters and digits in lower case, so punctuation and case do not count.

One core of a 2-core AMD EPYC emits 160 MB/s of web text with the defaults; see `datapipe/kernels/minhash.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, Self

import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from datapipe import columns, rng
from datapipe.clusters import Keep, star_edges, survivor_ranks
from datapipe.documents import DocumentBatch
from datapipe.errors import UserError
from datapipe.kernels import minhash
from datapipe.stage import Global, StageContext

_BANDS, _ROWS = 14, 8  # those of FineWeb


class Minhash(Global):
    """Drops documents that share most of their word n-grams with another."""

    bands: int = Field(default=_BANDS, ge=1, le=1024, description="Bands of a signature: documents meet that agree on one.")
    rows: int = Field(default=_ROWS, ge=1, le=256, description="Permutations in a band: more of them ask for more likeness.")
    threshold: float | None = Field(
        default=None,
        gt=0.0,
        lt=1.0,
        description="Instead of bands and rows: the Jaccard similarity from which documents should meet. The bands and rows "
        "with the least sum of false meetings and misses are chosen.",
    )
    num_perm: int | None = Field(
        default=None,
        ge=2,
        le=4096,
        description="Permutations that `threshold` may spend; 112 when not given. Without `threshold` it is bands x rows.",
    )
    ngram: int = Field(default=5, ge=1, le=64, description="Words of a shingle.")
    keep: Keep = Field(
        default="first",
        description="Which document of a cluster survives: first (lowest key: within a file the earliest), longest or shortest "
        "(by bytes; ties: first), or random (by keyed hash).",
    )

    libraries: ClassVar[tuple[str, ...]] = ("datasketch",)
    _permutations: minhash.Permutations = PrivateAttr()
    _seed: int = PrivateAttr(default=0)

    @model_validator(mode="after")
    def _one_way_of_banding(self) -> Self:
        if self.threshold is not None and (self.bands, self.rows) != (_BANDS, _ROWS):
            raise ValueError("give either threshold or bands and rows: the threshold chooses both of them")
        if self.threshold is None and self.num_perm not in (None, self.bands * self.rows):
            raise ValueError(
                f"num_perm is {self.num_perm}, but {self.bands} bands of {self.rows} rows take {self.bands * self.rows} "
                "permutations: leave num_perm out, or give threshold instead of bands and rows"
            )
        return self

    def banding(self) -> tuple[int, int]:
        """Bands and rows, as given or as chosen for the threshold."""
        if self.threshold is None:
            return self.bands, self.rows
        return best_banding(self.threshold, self.num_perm or _BANDS * _ROWS)

    def open(self, context: StageContext) -> None:
        bands, rows = self.banding()
        self._permutations = minhash.permutations(rng.seed_for(context.seed, "dedup.minhash", "permutations"), bands * rows)
        self._seed = rng.seed_for(context.seed, context.name, "survivor")

    def emit_schema(self) -> pa.Schema:
        return pa.schema(
            [
                pa.field("hash", pa.uint64(), nullable=False),
                pa.field("key", columns.KEY_TYPE, nullable=False),
                pa.field("rank", pa.uint64(), nullable=False),
            ]
        )

    def emit(self, batch: DocumentBatch) -> pa.RecordBatch:
        bands, _ = self.banding()
        hashes, documents = minhash.band_rows(*batch.buffers, self._permutations, self.ngram, bands)
        ranks = survivor_ranks(self.keep, batch, self._seed)
        keys = columns.keys_from(columns.key_matrix(batch.keys)[documents])
        return pa.RecordBatch.from_arrays([pa.array(hashes), keys, pa.array(ranks[documents])], schema=self.emit_schema())

    def reduce(self, bucket: pa.RecordBatch) -> pa.RecordBatch:
        """Stars; the value of every edge is (1 / bands)^(1 / rows), about the similarity from which documents meet."""
        bands, rows = self.banding()
        return star_edges(bucket, columns.numbers(bucket.column("hash")), round((1 / bands) ** (1 / rows), 4))


@lru_cache(maxsize=16)
def best_banding(threshold: float, num_perm: int) -> tuple[int, int]:
    """Bands and rows of at most `num_perm` permutations with the least area of false positives and negatives around
    `threshold`, as datasketch finds them."""
    from datasketch import MinHashLSH

    try:
        chosen = MinHashLSH(threshold=threshold, num_perm=num_perm)
    except ValueError as error:
        raise UserError(
            f"dedup.minhash: no two bands of {num_perm} permutations suit a threshold of {threshold}. "
            "Raise num_perm, lower threshold, or give bands and rows."
        ) from error
    return chosen.b, chosen.r
