"""Near-duplicate removal by MinHash (Broder 1997): documents that share most of their n-grams are one cluster, and one is kept.

    bands       band rows (hash, key)          ->  candidate pairs: documents that match in a whole band
    first       pairs + signatures             ->  pairs with the signature of their first document
    second      those + signatures             ->  edges: the pairs whose signatures are similar enough, and how similar
    components  edges                          ->  each document of a component with its survivor (`datapipe/stage/clusters.py`)
    gather      documents with their survivor  ->  drops, with the greatest similarity measured

**Candidates.** Two documents of Jaccard similarity s (of their sets of n-grams) match in a band with probability
1 - (1 - s^rows)^bands: with 14 bands of 8 rows (FineWeb) 50 % at s = 0.68. **Verification.** A candidate pair counts if the
share of equal minima in the whole signatures, which estimates the similarity, is at least `min_similarity` (`_banding.py`).

The default finds copies, editions and citations, and no paraphrases; README.md beside this file has what other values find.

**N-grams.** A word is a run of letters, marks and digits of any script: "C++" and "C#" are the word "c". Case, the code points
of an accented letter (canonical caseless matching, Unicode 3.13) and invisible characters are not compared. In scripts without
spaces, such as Chinese, each character is a word. `shingle: char` compares characters in all scripts, and `shingle:
dictionary` takes the words of a dictionary, as FineWeb-2 does. At equal `ngram`, character n-grams of prose are more alike
than word n-grams (SlimPajama uses 13).

A document shorter than one n-gram matches documents of the same words. One without letters and digits is not compared.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import rng
from datapipe.kernels.dedup import minhash
from datapipe.kernels.text.icu_breaks import LIBRARY, icu_version
from datapipe.kernels.text.spaced_words import spaced_texts
from datapipe.stage import clusters
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.keep import KeepingOne, survivor_ranks
from datapipe.stage.segmentation.spaced_words import spaced_words
from datapipe.stage.tables import DROP_SCHEMA, SIZE_SCHEMA, Bucket, Exchange, key_hash
from stages.dedup import _verified
from stages.dedup._banding import best_banding, curve_lines

_BANDS, _ROWS = 14, 8  # as FineWeb (Penedo et al. 2024)
_NEWS_WIRES = (
    "this finds 6 of 10 updated news stories; `threshold: 0.5` finds more of them, and also pages with the same template"
)


class Minhash(KeepingOne):
    """Drops documents that share most of their n-grams with another one (MinHash, Broder 1997)."""

    verify: Literal["signature", "none"] = Field(
        default="signature",
        description="How candidates are confirmed. signature: the whole signatures are compared. none: a matching band "
        "is enough.",
    )
    min_similarity: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Minimum similarity of two documents. Default: `threshold`, or (1 / bands)^(1 / rows).",
    )
    components_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Maximum bytes of edges that one task joins in memory; the task takes about four times as much. "
        "More edges are joined by an exchange in rounds, with the same result. Default: half of "
        "execution.bucket_bytes. 0: always in rounds.",
    )
    bands: int = Field(
        default=_BANDS,
        ge=1,
        le=1024,
        description="Number of bands in a signature. Documents that match in one band are compared.",
    )
    rows: int = Field(
        default=_ROWS,
        ge=1,
        le=256,
        description="Number of permutations in a band. With more, only more similar documents match.",
    )
    threshold: float | None = Field(
        default=None, gt=0.0, lt=1.0, description="Similarity above which pairs should be found. It chooses bands and rows."
    )
    ngram: int = Field(default=5, ge=1, le=64, description="Number of words in an n-gram, or of characters with shingle: char.")
    shingle: minhash.Shingle = Field(
        default="word",
        description="word: n-grams of words. char: n-grams of characters; slower, because there are more. dictionary: n-grams "
        "of words, which ICU's dictionaries cut in scripts without spaces (`pip install 'datapipe[words]'`).",
    )

    libraries: ClassVar[tuple[str, ...]] = ("datasketch", "pyarrow")
    rows_version: ClassVar[int] = 3
    by_key: ClassVar[tuple[str, ...]] = ("signatures",)
    apply_options = ("min_similarity", "components_bytes")

    def check_options(self) -> None:
        if self.verify == "none" and self.min_similarity is not None:
            raise ValueError(
                "min_similarity has no effect with `verify: none`, where every match counts: leave out one of them"
            )
        if self.threshold is not None and (self.bands, self.rows) != (_BANDS, _ROWS):
            raise ValueError("give either threshold or bands and rows: the threshold chooses both of them")

    def banding(self) -> tuple[int, int]:
        """Bands and rows, given or chosen for the threshold."""
        return (self.bands, self.rows) if self.threshold is None else best_banding(self.threshold, _BANDS * _ROWS)

    def least_similarity(self) -> float:
        """The estimated similarity from which a pair counts."""
        bands, rows = self.banding()
        return self.min_similarity or self.threshold or round((1 / bands) ** (1 / rows), 4)

    def row_identity(self, seed: int) -> Mapping[str, Any]:
        bands, rows = self.banding()
        identity = {**super().row_identity(seed), "bands": bands, "rows": rows, "threshold": None, "seed": seed}
        return identity | ({"icu": icu_version()} if self.shingle == "dictionary" else {})

    def libraries_used(self) -> tuple[str, ...]:
        return (*self.libraries, LIBRARY) if self.shingle == "dictionary" else self.libraries

    @property
    def _num_perm(self) -> int:
        bands, rows = self.banding()
        return bands * rows if self.verify == "signature" else 0

    @cached_property
    def _permutations(self) -> minhash.Permutations:
        bands, rows = self.banding()
        return minhash.permutations(rng.seed_for(self._context.seed, "dedup.minhash", "permutations"), bands * rows)

    def notes(self) -> tuple[str, ...]:
        lines = curve_lines(*self.banding(), self.least_similarity() if self.verify == "signature" else None)
        return (*lines, _NEWS_WIRES) if (self.threshold, self.bands, self.rows) == (None, _BANDS, _ROWS) else lines

    def shingles(self) -> tuple[int, Literal["word", "char"]]:
        return self.ngram, "char" if self.shingle == "char" else "word"

    def emits(self) -> Mapping[str, pa.Schema]:
        return {"bands": _verified.BANDS, "signatures": _verified.signatures_schema(self._num_perm)}

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        bands, _ = self.banding()
        offsets, data = batch.buffers
        if self.shingle == "dictionary":
            offsets, data, *_ = spaced_texts(spaced_words(batch), offsets, data)
        hashes, documents, signed = minhash.band_rows(offsets, data, self._permutations, self.ngram, bands, self.shingle)
        matched = [hashes, batch.keys.take(pa.array(documents))]
        with_rows = np.unique(documents)
        own = batch.keys.take(pa.array(with_rows))
        known = [key_hash(own), own, survivor_ranks(self.keep, batch, self._context)[with_rows]]
        if self._num_perm:
            signature, data = pa.binary(4 * self._num_perm), np.ascontiguousarray(signed[with_rows])
            known.append(pa.Array.from_buffers(signature, len(own), [None, pa.py_buffer(data)]))
        return {
            "bands": pa.RecordBatch.from_arrays(matched, schema=_verified.BANDS),
            "signatures": pa.RecordBatch.from_arrays(known, schema=_verified.signatures_schema(self._num_perm)),
        }

    def exchanges(self) -> Sequence[Exchange]:
        pairs, halves = {"pairs": _verified.PAIRS}, {"halves": _verified.halves_schema(self._num_perm)}
        edges = {clusters.WIDE: clusters.EDGE_SCHEMA, "likeness": _verified.LIKENESS}
        exchanges = [
            Exchange(name="match-bands", inputs=("bands",), outputs=pairs, old_beside=("bands",), neighbours=True),
            Exchange(name="fetch-signatures", inputs=("pairs", "signatures"), outputs=halves, old_beside=("pairs",)),
            Exchange(name="compare", inputs=("halves", "signatures"), outputs=edges, old_beside=("halves",)),
            clusters.components_exchange(self.components_bytes),
            Exchange(name="decide", inputs=(clusters.NARROW, "likeness"), outputs={"drops": DROP_SCHEMA}),
        ]
        sizes = Exchange(name="count-sizes", inputs=(clusters.NARROW,), outputs={"sizes": SIZE_SCHEMA})
        return exchanges if self.size_column is None else [*exchanges, sizes]

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        match exchange:
            case "match-bands":
                return {"pairs": _verified.matched_pairs(bucket["bands"])}
            case "fetch-signatures":
                return {"halves": _verified.with_first(bucket["pairs"], bucket["signatures"], self._num_perm)}
            case "compare":
                return _verified.edges_of_pairs(bucket["halves"], bucket["signatures"], self._num_perm, self.least_similarity())
            case "cluster":
                return clusters.reduce_components(bucket)
            case "decide":
                return {"drops": _verified.drops_of(bucket[clusters.NARROW], bucket["likeness"], self._num_perm)}
            case _:
                survivors = _verified.edges_of_this_run(bucket[clusters.NARROW]).column("other")
                return {"sizes": clusters.size_rows(survivors)}

    def reduce_at_once(self, exchange: str, tables: Bucket) -> Mapping[str, pa.RecordBatch]:
        return clusters.join_at_once(tables)
