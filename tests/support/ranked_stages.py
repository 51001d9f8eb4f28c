"""A filter that keeps a share by the scores that documents bring with them."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import pyarrow as pa
from pydantic import Field

from datapipe.columns import numbers
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.base import KeptShare
from datapipe.stage.documents import DocumentBatch


class ByScore(Filter):
    """Keeps a share by the column `score`."""

    least: float = Field(default=-1e9, description="Least score.")
    keep_share: str = Field(default="1/10", description="The share, as a fraction.")
    share_of: Literal["documents", "bytes"] = Field(default="documents", description="Of what.")
    threshold_from: str = Field(default="", description="An earlier output.")

    writes = ()

    def input_files(self) -> tuple[str, ...]:
        return (f"{self.threshold_from}/report.json",) if self.threshold_from else ()

    def kept_share(self) -> KeptShare:
        return KeptShare(share=Fraction(self.keep_share), of=self.share_of, threshold_from=self.threshold_from)

    def rules(self) -> Sequence[Rule]:
        return [self.at_least("low", "least"), self.below_share("keep_share")]

    def process(self, batch: DocumentBatch) -> FilterResult:
        scores = numbers(batch.column("score", "ByScore").cast(pa.float64()))
        return FilterResult.from_rules(self.rules(), (scores, scores))
