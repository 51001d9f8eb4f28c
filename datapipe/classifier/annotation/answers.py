"""What is known of a document: its score, why its answers give none, or which request comes next.

    text ─▶ request 0 ─▶ cached? ─▶ a score: settled
                     │            └▶ none: request 1, and so on up to `ask_again` ─▶ settled without a score
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
        answer: the last one.
        tokens: of all its answers.
    """

    outcome: Score | str
    answer: Answer
    tokens: Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """What is asked about documents.

    Attributes:
        ask_again: how often the same is asked again where an answer gives no score.
    """

    rubric: Rubric
    model: str
    ask_again: int = 0

    def state_of(self, text: str, cache: AnswerCache) -> Settled | Request:
        body = self.rubric.request(self.model, text)
        expected = expected_tokens(body["messages"], self.rubric.max_tokens)
        tokens = Tokens()
        for number in range(self.ask_again + 1):
            key = request_key(body, number)
            answer = cache.get(key)
            if answer is None:
                return Request(body=body, key=key, expected=expected)
            tokens += tokens_of(answer, expected)
            outcome = self.outcome_of(answer)
            if isinstance(outcome, Score) or number == self.ask_again:
                return Settled(outcome=outcome, answer=answer, tokens=tokens)
        raise AssertionError("the last number returns")

    def outcome_of(self, answer: Answer) -> Score | str:
        if answer.finish_reason == "length":
            return CUT_OFF
        return self.rubric.parse(answer.content) if answer.content.strip() else EMPTY
