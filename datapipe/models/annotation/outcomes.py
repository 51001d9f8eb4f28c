"""What becomes of the documents of a sample: a score, why there is none, or the request that comes next.

    text ─▶ request ─▶ cached? ─▶ settled, with a score or without      ─▶ counts, labelled.jsonl or unparsed.jsonl
                     └▶ not cached: to be asked

Everything follows from the cache, so it is the same whenever and in whatever order the answers came. A document that the server
refused or failed on is settled for one command alone.

Tokens are those that the server counts in `usage`; before a request, and where it counts nothing, bytes / 4 of the messages to
read, and `max_tokens` of each answer at most. Money is tokens times the prices that the user gives, for a million tokens;
without prices there is none. A request begins only if the limit holds even when it, and all others that are under way, take all
the tokens that they may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from datapipe.errors import DatapipeError
from datapipe.language_model.cache import Answer, AnswerCache, request_key
from datapipe.machine.files import replacing
from datapipe.models.annotation.rubric import Rubric, Score
from datapipe.models.annotation.sample import write_line

CUT_OFF, EMPTY, REFUSED, FAILED = "cut_off", "empty", "refused", "failed"
"""Reasons why a document has no score, beside those of `Rubric.parse`: the answer reached `max_tokens`, or has no text; the
server refused the request, or failed at every attempt."""

LABELLED, UNPARSED = "labelled.jsonl", "unparsed.jsonl"

_LEAST_CHECKED = 20
"""Documents below which a share says little."""
_SHOWN_CHARS = 200

_BYTES_PER_TOKEN = 4
_PER_MESSAGE = 8
"""Tokens by which the templates of chat models surround a message, about."""

_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Tokens that a model reads, and that it writes."""

    prompt: int = 0
    completion: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(prompt=self.prompt + other.prompt, completion=self.completion + other.completion)

    def __sub__(self, other: Tokens) -> Tokens:
        return Tokens(prompt=self.prompt - other.prompt, completion=self.completion - other.completion)

    @property
    def total(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request that has no answer yet.

    Attributes:
        body: as it is sent.
        key: in the cache.
    """

    body: dict[str, Any]
    key: str
    expected: Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """A document of which nothing is asked any more.

    Attributes:
        outcome: the score, or the reason why there is none.
        answer: what the model, or the server, says.
        tokens: of its answer.
    """

    outcome: Score | str
    answer: str
    tokens: Tokens = field(default_factory=Tokens)


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
        return Settled(outcome=self._outcome_of(answer), answer=answer.content, tokens=tokens_of(answer, expected))

    def _outcome_of(self, answer: Answer) -> Score | str:
        if answer.finish_reason == "length":
            return CUT_OFF
        return self.rubric.parse(answer.content) if answer.content.strip() else EMPTY


class UnparsedError(DatapipeError):
    """Too many answers give no score: the rubric does not fit the model."""


@dataclass(kw_only=True)
class Counts:
    """Documents of a sample by what became of them.

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

    def add(self, document: Settled) -> None:
        self.tokens += document.tokens
        if isinstance(document.outcome, Score):
            self.scores[document.outcome.value] += 1
        else:
            self.unparsed[document.outcome] += 1
            self.last_unparsed = " ".join(document.answer[-_SHOWN_CHARS:].split())

    def check(self, is_all: bool = False) -> None:
        """Raises UnparsedError where too many of the documents so far have no score.

        Args:
            is_all: whether these are all documents; before, a few are not enough to tell.
        """
        num_unparsed = self.unparsed.total()
        if num_unparsed <= self.max_unparsed * self.num_settled or (self.num_settled < _LEAST_CHECKED and not is_all):
            return
        raise UnparsedError(
            f"{num_unparsed:,} of {self.num_settled:,} documents have no score ({self.reasons()}), more than --max-unparsed "
            f"{float(self.max_unparsed):.0%} allows. The last answer without one ends with: {self.last_unparsed!r}. Correct "
            "`answer` or `scale` in the rubric, for which nothing is asked again, or its template"
        )

    def reasons(self) -> str:
        return ", ".join(f"{reason} {count:,}" for reason, count in sorted(self.unparsed.items()))


def write_files(
    folder: Path,
    documents: Iterable[tuple[str, str]],
    questions: Questions,
    cache: AnswerCache,
    left_out: Mapping[str, Settled],
) -> None:
    """Writes the labelled documents and those without a score.

    Args:
        documents: (id, text).
        left_out: documents that the server refused or failed on, by id.
    """
    model, has_decimals = questions.model, questions.rubric.decimals
    with (
        replacing(folder / LABELLED) as with_score,
        replacing(folder / UNPARSED) as without,
        open(with_score, "wb") as labelled,
        open(without, "wb") as unparsed,
    ):
        for document, text in documents:
            state = questions.state_of(text, cache)
            if isinstance(state, Request):
                if document not in left_out:
                    gone = f"{cache.path}: the answer to {document} is gone. Run the same command again to ask for it"
                    raise DatapipeError(gone)
                state = left_out[document]
            if isinstance(state.outcome, Score):
                score = state.outcome.value if has_decimals else int(state.outcome.value)
                write_line(labelled, id=document, text=text, score=score, reason=state.outcome.reason, model=model)
            else:
                write_line(unparsed, id=document, reason=state.outcome, answer=state.answer, model=model)


# ------------------------------------------------------------------------------------------------ tokens and money


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Of a million tokens, in any currency; 0 for both where they are not known."""

    prompt: float = 0.0
    completion: float = 0.0

    def __bool__(self) -> bool:
        return self.prompt > 0 or self.completion > 0

    def cost(self, tokens: Tokens) -> float:
        return (tokens.prompt * self.prompt + tokens.completion * self.completion) / _MILLION


class LimitError(DatapipeError):
    """The next request could exceed a limit of the user."""


def expected_tokens(messages: list[dict[str, str]], max_tokens: int) -> Tokens:
    """Tokens of a request, about, and of its answer at most."""
    num_bytes = sum(len(message["content"].encode()) for message in messages)
    return Tokens(prompt=_of_bytes(num_bytes) + _PER_MESSAGE * len(messages), completion=max_tokens)


def tokens_of(answer: Answer, expected: Tokens) -> Tokens:
    """Tokens that an answer took, by the server's count where it tells."""
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return Tokens(
        prompt=expected.prompt if prompt is None else prompt,
        completion=_of_bytes(len(answer.content.encode())) if completion is None else completion,
    )


def _of_bytes(num_bytes: int) -> int:
    return -(-num_bytes // _BYTES_PER_TOKEN)


class Spending:
    """What a command has spent, and may spend.

    Args:
        max_cost: None for no limit.
    """

    def __init__(self, prices: Prices, max_cost: float | None) -> None:
        self.prices, self._max_cost = prices, max_cost
        self.spent = Tokens()
        self._reserved = Tokens()

    def begin(self, expected: Tokens) -> None:
        """Reserves the tokens of a request. Raises LimitError where they could exceed the limit."""
        most = self.spent + self._reserved + expected
        if self._max_cost is not None and self.prices.cost(most) > self._max_cost:
            raise LimitError(
                f"stopped at --max-cost {self._max_cost:,.2f}: {self.spent.total:,} tokens are spent, cost "
                f"{self.prices.cost(self.spent):,.2f}, and the next request could exceed it. All answers are kept: the same "
                "command with a higher limit goes on"
            )
        self._reserved += expected

    def end(self, expected: Tokens, taken: Tokens) -> None:
        """Replaces a reservation by what was taken; nothing, where no answer came."""
        self._reserved -= expected
        self.spent += taken
