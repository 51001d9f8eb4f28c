"""Near-duplicate removal by MinHash (Broder 1997): documents that share most of their n-grams are one cluster, and one is kept.

    bands       band rows (hash, key)          ->  candidate pairs: documents that match in a whole band
    first       pairs + signatures             ->  pairs with the signature of their first document
    second      those + signatures             ->  edges: the pairs whose signatures are similar enough, and how similar
    components  edges                          ->  each document of a component with its survivor (`datapipe/stage/clusters.py`)
    gather      documents with their survivor  ->  drops, with the greatest similarity measured

**Candidates.** Two documents of Jaccard similarity s (of their sets of n-grams) match in a band with probability
1 - (1 - s^rows)^bands; `datapipe plan` prints the curve. With 14 bands of 8 rows (FineWeb) that is 50 % at s = 0.68.

**Verification.** A candidate pair counts if the share of equal minima in the whole signatures, which estimates the
similarity, is at least `min_similarity`. The standard error of the estimate is 0.04 at a similarity of 0.75 with 112
permutations. `stages/dedup/_banding.py` has the evidence for the default, `_verified.py` the choice of pairs.

**What the default finds.** Copies, editions, citations and captures of pages, which share most n-grams: recall 0.88 to 1.0 on
labelled sets. Six in ten of the updated stories of news wires, of similarities from 0.2 to 0.78 (F1 0.73), and of pairs of web
pages labelled by people (0.76): `threshold: 0.5` raises F1 to 0.88 and 0.87, but takes pages of one site for duplicates. No
paraphrases. `stages/dedup/README.md` has the table by kind of text.

**N-grams.** A word is a run of letters, marks and digits of any script, so punctuation, symbols and every kind of white space
are not compared ("C++" and "C#" are the word "c"). Nor are case, whether an accented letter is one code point or two (canonical
caseless matching, Unicode 3.13), and invisible characters in words. In scripts without spaces, such as Chinese, Japanese and
Thai, each character is a word; with `shingle: char` also in all others. At equal `ngram`, character n-grams of prose are more
alike than word n-grams (SlimPajama uses 13).

| document | compared with |
|---|---|
| fewer words (characters) than one n-gram | documents of the same words |
| no letter and no digit | none |
| digits and no letter | all others |
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from datapipe import rng
from datapipe.kernels.dedup import minhash
from datapipe.stage.documents import DocumentBatch
from stages.dedup._banding import best_banding, curve_lines
from stages.dedup._verified import VerifiedPairs

_BANDS, _ROWS = 14, 8  # as FineWeb (Penedo et al. 2024)
_NEWS_WIRES = "of updated stories of news wires this finds 6 in 10; `threshold: 0.5` finds more, also pages that share a frame"


class Minhash(VerifiedPairs):
    """Drops documents that share most of their n-grams with another document (MinHash, Broder 1997)."""

    bands: int = Field(
        default=_BANDS,
        ge=1,
        le=1024,
        description="Bands of a signature. Documents that match in at least one band are compared.",
    )
    rows: int = Field(
        default=_ROWS,
        ge=1,
        le=256,
        description="Permutations in a band. With more rows documents must be more similar to match.",
    )
    threshold: float | None = Field(
        default=None,
        gt=0.0,
        lt=1.0,
        description="Jaccard similarity from which documents should be found, instead of bands and rows: the stage chooses "
        "those of at most 112 permutations with the least sum of false positives and false negatives (as datasketch).",
    )
    ngram: int = Field(default=5, ge=1, le=64, description="Words (characters) of an n-gram.")
    shingle: Literal["word", "char"] = Field(
        default="word",
        description="word: n-grams of words; in scripts without spaces each character is a word. char: n-grams of the "
        "characters of words; slower, since a text has more of them.",
    )

    libraries: ClassVar[tuple[str, ...]] = ("datasketch",)
    rows_version: ClassVar[int] = 3

    def check_options(self) -> None:
        super().check_options()
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
        return {**super().row_identity(seed), "bands": bands, "rows": rows, "threshold": None, "seed": seed}

    @cached_property
    def _permutations(self) -> minhash.Permutations:
        bands, rows = self.banding()
        return minhash.permutations(rng.seed_for(self._context.seed, "dedup.minhash", "permutations"), bands * rows)

    def notes(self) -> tuple[str, ...]:
        lines = curve_lines(*self.banding(), self.least_similarity() if self.verify == "signature" else None)
        return (*lines, _NEWS_WIRES) if (self.threshold, self.bands, self.rows) == (None, _BANDS, _ROWS) else lines

    def shingles(self) -> tuple[int, Literal["word", "char"]]:
        return self.ngram, self.shingle

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        bands, _ = self.banding()
        by_character = self.shingle == "char"
        hashes, documents, signed = minhash.band_rows(*batch.buffers, self._permutations, self.ngram, bands, by_character)
        return self.rows_of(batch.keys, hashes, documents, signed, self.ranks(batch))
