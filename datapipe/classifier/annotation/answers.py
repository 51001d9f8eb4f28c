"""What is known of a document: its score, why its answers give none, or which request comes next.

    text ─▶ request ─▶ cached? ─▶ settled, with a score or without
                     └▶ not cached: to be asked

Everything follows from the cache, so it is the same whenever and in whatever order the answers came.
"""

from __future__ import annotations

from dataclasses import dataclass

from datapipe.classifier.annotation.cache import Answer, AnswerCache, request_key
from datapipe.classifier.annotation.rubric import Rubric, Score
from datapipe.classifier.annotation.spending import Tokens, expected_tokens, tokens_of

CUT_OFF, EMPTY, REFUSED, FAILED = "cut_off", "empty", "refused", "failed"
"""Reasons why a document has no score, beside those of `Rubric.parse`: the answer reached `max_tokens`, or has no text; the
server refused the request, or failed at every attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request that has no answer yet.

    Attributes:
        body: as it is sent.
        key: in the cache.
    """

    body: dict
    key: str
    expected: Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """A document of which nothing is asked any more.

    Attributes:
        outcome: the score, or the reason why there is none.
        tokens: of its answer.
    """

    outcome: Score | str
    answer: Answer
    tokens: Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """What is asked about documents."""

    rubric: Rubric
    model: str

    def state_of(self, text: str, cache: AnswerCache) -> Settled | Request:
        body = self.rubric.request(self.model, text)
        expected = expected_tokens(body["messages"], self.rubric.max_tokens)
        key = request_key(body)
        answer = cache.get(key)
        if answer is None:
            return Request(body=body, key=key, expected=expected)
        return Settled(outcome=self.outcome_of(answer), answer=answer, tokens=tokens_of(answer, expected))

    def outcome_of(self, answer: Answer) -> Score | str:
        if answer.finish_reason == "length":
            return CUT_OFF
        return self.rubric.parse(answer.content) if answer.content.strip() else EMPTY
