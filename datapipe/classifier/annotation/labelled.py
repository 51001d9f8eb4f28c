"""The files of an annotation, from the sample and the cache alone, so the same bytes in whatever order the answers came.

    OUTPUT/labelled.jsonl     id, text, score, reason, model      documents with a score, in the order of the sample
    OUTPUT/unparsed.jsonl     id, reason, answer, model           the others
    OUTPUT/annotation.json    counts, tokens, model and rubric; written last

Each file appears when it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from datapipe.classifier.annotation.answers import Questions, Settled
from datapipe.classifier.annotation.asking import LeftOut
from datapipe.classifier.annotation.cache import AnswerCache
from datapipe.classifier.annotation.counts import Counts
from datapipe.classifier.annotation.rubric import Score
from datapipe.classifier.annotation.sample import appearing, write_line
from datapipe.errors import DatapipeError

CARD, LABELLED, UNPARSED = "annotation.json", "labelled.jsonl", "unparsed.jsonl"


def write_files(
    folder: Path,
    documents: Iterable[tuple[str, str]],
    questions: Questions,
    cache: AnswerCache,
    left_out: Mapping[str, LeftOut],
) -> Counts:
    """Writes the labelled documents and those without a score. Returns the counts of all of them."""
    counts, model, has_decimals = Counts(), questions.model, questions.rubric.decimals
    with appearing(folder / LABELLED) as labelled, appearing(folder / UNPARSED) as unparsed:
        for document, text in documents:
            state = questions.state_of(text, cache)
            if isinstance(state, Settled):
                counts.settled(state)
            if isinstance(state, Settled) and isinstance(state.outcome, Score):
                score = state.outcome.value if has_decimals else int(state.outcome.value)
                write_line(labelled, id=document, text=text, score=score, reason=state.outcome.reason, model=model)
            elif isinstance(state, Settled):
                write_line(unparsed, id=document, reason=state.outcome, answer=state.answer.content, model=model)
            elif document in left_out:
                reason, message = left_out[document].reason, left_out[document].message
                counts.add(reason, message)
                write_line(unparsed, id=document, reason=reason, answer=message, model=model)
            else:
                raise DatapipeError(f"{cache.path}: the answer to {document} is gone. Run the same command again to ask for it")
    return counts
