"""Keeps a share of the documents by a keyed hash of each, whatever they are.

The choice follows from the seed of the mixture and the key of a document. So it is the same while a source grows, and a
sample is part of every larger one, wherever in the list of stages it is taken, and also of the `sample` of a source.
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
    """Keeps a share of the documents, chosen by a keyed hash of each: a part of every larger sample."""

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
