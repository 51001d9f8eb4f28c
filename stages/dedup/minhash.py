"""Near-duplicate removal by MinHash: documents that share most of their n-grams are one document.

    bands       rows (band hash, key) meet: documents that agree on a whole band          ->  pairs that may be alike
    first       pairs meet the signature of their first document
    second      and that of their second: the pairs whose signatures are alike enough     ->  edges, and how alike
    components  edges  ->  each document of a component with its survivor (`datapipe/stage/clusters.py`)
    gather      documents with a survivor meet the greatest likeness measured of them     ->  drops

Two documents of Jaccard similarity s (over their sets of n-grams) meet with probability 1 - (1 - s^rows)^bands. With 14 bands
of 8 rows that is half at s = 0.68, 5 % at 0.5 and 99 % at 0.85; `datapipe plan` prints the curve. **Verification**: a pair
that met counts where the similarity estimated from the whole signatures, the share of minima in common, is at least
`min_similarity`: of 112 permutations the estimate has a standard error of 0.04 at 0.75. A signature is emitted once a document
and never travels with the band rows; a pair that met in several bands is compared once.

**Why `min_similarity` is that of the banding**, (1 / bands)^(1 / rows): there the areas by which datasketch chooses bands, of
what counts below that similarity and what does not above it, have their least sum for any banding. With 14 x 8 it is 0.040;
two standard errors lower 0.061, without verification 0.082. The price: alike to 0.7, not 56 % of the pairs count but 26 %;
`datapipe plan` has both curves. Labelled sets agree (`tests/benchmarks/dedup_quality.py`): pages of a site share its frame, and
unverified meetings chain them at a precision of 0.32, where it is 0.80 from 0.64 on, 0.96 from 0.719, and recall 1.00 in each.
Of pairs of web pages that people judged, 0.95 and a recall of 0.68 become 0.97 and 0.61. To find more, lower `threshold`.

Which pairs: in each bucket a star around the document of least key, and each document with the one before it; never all
pairs. So a document that is unlike the middle of its star is compared with another one in each of its buckets. On corpora
made to be hard (families that drift, mixed by a common template) up to 1.4 % of the documents that verifying all pairs of
every bucket would drop are kept, where stars alone keep up to 4 %; an order by bytes of the signature instead of the key
did no better (`tests/stages/dedup/test_verified.py`). 100,000 copies in a bucket give 200,000 pairs.

Words are runs of letters and digits in lower case, so punctuation and case do not count. `shingle: char` takes n-grams of the
characters that words are made of instead, for scripts without spaces, where a sentence would be one word; at equal `ngram`
those of prose are more alike than word n-grams (SlimPajama took 13).

What says little, by rule: a document of fewer words (characters) than one n-gram meets documents of the very same ones, and no
others, or none with `short: never`. One without letters and digits meets none, or with `empty: meet` all others like it. One of
digits alone is a document like any other, or with `only_digits: never` meets none.

One core of a 2-core AMD EPYC emits 290 to 345 MB/s of web text by words and 83 by characters, and does 227 to 271 with all
exchanges, in memory (`tests/benchmarks/minhash.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from datapipe import rng
from datapipe.kernels.dedup import minhash
from datapipe.stage import StageContext
from datapipe.stage.clusters import join_at_once
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.keep import KEEP_FIRST, KEEP_TEXT, Keep, source_order, survivor_ranks
from datapipe.stage.tables import Bucket, Exchange
from stages.dedup._banding import best_banding, by_contents, curve_lines
from stages.dedup._verified import VerifiedPairs

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
    ngram: int = Field(default=5, ge=1, le=64, description="Words, or characters, of a shingle.")
    shingle: Literal["word", "char"] = Field(
        default="word",
        description="word: n-grams of words. char: of the characters of words, for scripts without spaces; slower, as there "
        "are more of them.",
    )
    short: Literal["same_words", "never"] = Field(
        default="same_words",
        description="Documents of fewer words (characters) than a shingle. same_words: they meet those of the very same ones. "
        "never: they meet none.",
    )
    empty: Literal["meet", "never"] = Field(
        default="never",
        description="Documents without a letter or digit. never: they meet none. meet: they are all alike, so that one of them "
        "survives.",
    )
    only_digits: Literal["meet", "never"] = Field(
        default="meet",
        description="Documents with digits and no letter. meet: compared as any other. never: they meet none, so that tables "
        "and page numbers make no documents alike.",
    )
    keep: Keep = Field(default=KEEP_FIRST, validate_default=True, description=KEEP_TEXT)

    verify: Literal["signature", "none"] = Field(
        default="signature",
        description="signature: a pair that met counts where their signatures are alike enough. none: every meeting "
        "counts, and nothing is measured.",
    )
    min_similarity: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Estimated Jaccard similarity from which a pair counts. When not given: the threshold, or where bands and "
        "rows are given, that of the banding, (1 / bands)^(1 / rows): 0.719 for 14 bands of 8.",
    )
    components_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Edges of at most so many bytes are joined by one task in memory, which takes about five times that; more "
        "of them by an exchange in rounds. Both give the same. When not given: execution.bucket_bytes. 0: always in rounds.",
    )

    libraries: ClassVar[tuple[str, ...]] = ("datasketch",)
    by_key: ClassVar[tuple[str, ...]] = ("signatures",)
    apply_options = ("min_similarity", "components_bytes")
    _permutations: minhash.Permutations = PrivateAttr()
    _context: StageContext = PrivateAttr()

    @model_validator(mode="after")
    def _limit_where_it_counts(self) -> Self:
        if self.verify == "none" and self.min_similarity is not None:
            raise ValueError(
                "min_similarity has no effect with verify: none, where every meeting counts: leave out one of them"
            )
        return self

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

    def least_similarity(self) -> float:
        """The similarity from which a pair counts."""
        bands, rows = self.banding()
        return self.min_similarity or self.threshold or round((1 / bands) ** (1 / rows), 4)

    def row_identity(self, seed: int) -> Mapping[str, Any]:
        bands, rows = self.banding()
        chosen = {"bands": bands, "rows": rows, "threshold": None, "num_perm": bands * rows}
        return {**super().row_identity(seed), **chosen, "seed": seed}

    def open(self, context: StageContext) -> None:
        bands, rows = self.banding()
        self._permutations = minhash.permutations(rng.seed_for(context.seed, "dedup.minhash", "permutations"), bands * rows)
        self._context = context

    def source_order(self) -> tuple[str, ...] | None:
        return source_order(self.keep)

    def notes(self) -> tuple[str, ...]:
        return curve_lines(*self.banding(), self.least_similarity() if self.verify == "signature" else None)

    def shingles(self) -> tuple[int, Literal["word", "char"]]:
        return self.ngram, self.shingle

    @property
    def _pairs(self) -> VerifiedPairs:
        bands, rows = self.banding()
        num_perm = bands * rows if self.verify == "signature" else 0
        return VerifiedPairs(num_perm=num_perm, least=self.least_similarity(), at_once_bytes=self.components_bytes)

    def emits(self) -> Mapping[str, pa.Schema]:
        return self._pairs.emits()

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        bands, _ = self.banding()
        options = {"by_character": self.shingle == "char", "with_short": self.short == "same_words"}
        hashes, documents, signed = minhash.band_rows(*batch.buffers, self._permutations, self.ngram, bands, **options)
        if self.empty == "meet" or self.only_digits == "never":
            hashes, documents = by_contents(*batch.buffers, hashes, documents, self.empty, self.only_digits)
        ranks = survivor_ranks(self.keep, batch, self._context)
        return self._pairs.emit(batch.keys, hashes, documents, signed, ranks)

    def exchanges(self) -> Sequence[Exchange]:
        return self._pairs.exchanges(self.size_column is not None)

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        return self._pairs.reduce(exchange, bucket)

    def reduce_at_once(self, exchange: str, tables: Bucket) -> Mapping[str, pa.RecordBatch]:
        return join_at_once(tables)
