"""Keeps a share of the documents, chosen by a keyed hash of their keys.

The choice depends only on the seed of the mixture and the key of a document, so it stays the same while a source grows. A
smaller sample is part of every larger one, wherever in the list of stages it is taken, and of the `sample` of a source.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from datapipe.columns import key_halves
from datapipe.rng import below_fraction, sample_hash
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.base import Share
from datapipe.stage.documents import DocumentBatch


class Sample(Filter):
    """Keeps a share of the documents, chosen by a keyed hash. A smaller sample is part of every larger one."""

    share: Share = Field(description="Share of the documents: 0.05, 5%.")

    writes = ()
    before_text: ClassVar[bool] = True

    def rules(self) -> Sequence[Rule]:
        return [Rule(name="not_sampled", limit=self.share)]

    def sampled_share(self) -> float:
        return self.share

    def process(self, batch: DocumentBatch) -> FilterResult:
        hashes = sample_hash(key_halves(batch.keys), self._context.seed)
        return FilterResult.first_failing(batch.num_docs, [(hashes * 2.0**-64, ~below_fraction(hashes, self.share))])
