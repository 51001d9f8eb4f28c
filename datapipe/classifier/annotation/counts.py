"""Documents of a sample by what became of them, and the share without a score at which a command ends.

A share without a score that is too large says that the rubric does not fit the model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from datapipe.classifier.annotation.answers import Settled
from datapipe.classifier.annotation.rubric import Score
from datapipe.classifier.annotation.spending import Tokens
from datapipe.errors import DatapipeError

_LEAST_CHECKED = 20
"""Documents below which a share says little."""
_SHOWN_CHARS = 200


class UnparsedError(DatapipeError):
    """Too many answers give no score."""


@dataclass(kw_only=True)
class Counts:
    """Counts of a sample.

    Attributes:
        max_unparsed: share of the documents that may have no score.
        scores: documents by score.
        unparsed: documents by reason.
        tokens: of all answers to the documents here.
        num_failed_attempts: of this command.
        last_unparsed: of the last answer without a score, its end.
    """

    max_unparsed: Fraction = Fraction(1)
    scores: Counter[float] = field(default_factory=Counter)
    unparsed: Counter[str] = field(default_factory=Counter)
    tokens: Tokens = field(default_factory=Tokens)
    num_failed_attempts: int = 0
    last_unparsed: str = ""

    @property
    def num_settled(self) -> int:
        return self.scores.total() + self.unparsed.total()

    def settled(self, state: Settled) -> None:
        self.tokens += state.tokens
        if isinstance(state.outcome, Score):
            self.scores[state.outcome.value] += 1
        else:
            self.add(state.outcome, state.answer.content)

    def add(self, reason: str, answer: str) -> None:
        """Counts a document without a score."""
        self.unparsed[reason] += 1
        self.last_unparsed = " ".join(answer[-_SHOWN_CHARS:].split())

    def check(self, is_all: bool = False) -> None:
        """Raises UnparsedError where too many of the documents so far have no score.

        Args:
            is_all: whether these are all documents; before, a few are not enough to tell.
        """
        num_unparsed = self.unparsed.total()
        if num_unparsed <= self.max_unparsed * self.num_settled or (self.num_settled < _LEAST_CHECKED and not is_all):
            return
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self.unparsed.items()))
        raise UnparsedError(
            f"{num_unparsed:,} of {self.num_settled:,} documents have no score ({reasons}), more than --max-unparsed "
            f"{float(self.max_unparsed):.0%} allows. The last answer without one ends with: {self.last_unparsed!r}. Correct "
            "`answer` or `scale` in the rubric, for which nothing is asked again, or its template"
        )
