"""The outcome of each document of a sample: a score, why there is none, or the request that comes next.

    text ─▶ request ─▶ cached? ─▶ outcome, with a score or without      ─▶ counts, labelled.jsonl or unparsed.jsonl
                     └▶ not cached: to be asked

Outcomes follow from the cache, whenever and in whatever order the answers came. A document that the
server refused or failed on has its outcome for one command alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path

from datapipe.dataclass import dataclass, field
from datapipe.errors import DatapipeError
from datapipe.language_model.asking import LeftOut, Request
from datapipe.language_model.cache import Answer, AnswerCache, request_key
from datapipe.language_model.spending import Tokens, expected_tokens, tokens_of
from datapipe.machine.files import replacing
from datapipe.models.annotation.rubric import Rubric, Score
from datapipe.models.annotation.sample import write_line

CUT_OFF, EMPTY = "cut_off", "empty"
"""Reasons beside those of `Rubric.parse` and `LeftOut`: the answer reached `max_tokens`, or has no text."""

LABELLED, UNPARSED = "labelled.jsonl", "unparsed.jsonl"

_LEAST_CHECKED = 20  # documents below which a share is not significant
_SHOWN_CHARS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentOutcome:
    """The score of a document, or why there is none; the answer, and its tokens."""

    outcome: Score | str
    answer: str
    tokens: Tokens = field(default_factory=Tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    rubric: Rubric
    model: str

    def state_of(self, document: str, text: str, cache: AnswerCache) -> DocumentOutcome | Request:
        """A document's request, or its outcome where the cache has the answer."""
        body = self.rubric.request(self.model, text)
        expected = expected_tokens(body["messages"], body["max_tokens"])
        request = Request(name=document, body=body, key=request_key(body), expected=expected)
        answer = cache.get(request.key)
        return request if answer is None else self.outcome_of(request, answer)

    def outcome_of(self, request: Request, answer: Answer | LeftOut) -> DocumentOutcome:
        if isinstance(answer, LeftOut):
            return DocumentOutcome(outcome=answer.reason, answer=answer.message)
        outcome = self.rubric.parse(answer.content) if answer.content.strip() else EMPTY
        outcome = CUT_OFF if answer.finish_reason == "length" else outcome
        return DocumentOutcome(outcome=outcome, answer=answer.content, tokens=tokens_of(answer, request.expected))


@dataclass(kw_only=True)
class Counts:
    max_unparsed: Fraction = Fraction(1)  # share of the documents that may have no score
    scores: Counter[float] = field(default_factory=Counter)
    unparsed: Counter[str] = field(default_factory=Counter)
    tokens: Tokens = field(default_factory=Tokens)  # of all answers to the documents here
    last_unparsed: str = ""  # of the last answer without a score, its end

    @property
    def num_done(self) -> int:
        return self.scores.total() + self.unparsed.total()

    def add(self, document: DocumentOutcome) -> None:
        self.tokens += document.tokens
        if isinstance(document.outcome, Score):
            self.scores[document.outcome.value] += 1
        else:
            self.unparsed[document.outcome] += 1
            self.last_unparsed = " ".join(document.answer[-_SHOWN_CHARS:].split())

    def check(self, is_all: bool = False) -> None:
        """Raises DatapipeError where too many documents have no score; few documents are not checked unless they are all."""
        num_unparsed = self.unparsed.total()
        if num_unparsed <= self.max_unparsed * self.num_done or (self.num_done < _LEAST_CHECKED and not is_all):
            return
        raise DatapipeError(
            f"{num_unparsed:,} of {self.num_done:,} documents have no score ({self.reasons()}), more than --max-unparsed "
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
    left_out: Mapping[str, DocumentOutcome],
) -> None:
    """Writes the labelled documents and the others. `left_out`: refused or failed ones, by id."""
    model, has_decimals = questions.model, questions.rubric.decimals
    with (
        replacing(folder / LABELLED) as with_score,
        replacing(folder / UNPARSED) as without,
        open(with_score, "wb") as labelled,
        open(without, "wb") as unparsed,
    ):
        for document, text in documents:
            state = questions.state_of(document, text, cache)
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
