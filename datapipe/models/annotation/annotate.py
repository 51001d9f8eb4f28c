"""Annotates a sample of documents with a language model, to a labelled file.

    documents ─▶ sample ─▶ which answers are missing, and their cost ─▶ asked, each stored at once ─▶ labelled file

    OUTPUT/labelled.jsonl     id, text, score, reason, model      documents with a score, in the order of the sample
    OUTPUT/unparsed.jsonl     id, reason, answer, model           the others
    OUTPUT/annotation.json    counts, tokens, model and rubric; written last
    OUTPUT/work/              the run of the stages, and the sample
    OUTPUT/cache/answers.jsonl   every answer, unless another folder is given

The same command continues a stopped one and asks for nothing that is in the cache; the output has
the same bytes. Each file appears when it is complete.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from fractions import Fraction
from pathlib import Path

import xxhash
from rich.console import Console

from datapipe.credentials import masked
from datapipe.dataclass import asdict, dataclass, field
from datapipe.errors import UserError
from datapipe.language_model.asking import Asking, LeftOut, Request
from datapipe.language_model.cache import Answer, AnswerCache, open_cache
from datapipe.language_model.endpoint import Endpoint, connected
from datapipe.language_model.rate_limiter import Clock, RateLimiter
from datapipe.language_model.spending import Prices, Spending, Tokens
from datapipe.models.annotation.outcomes import LABELLED, UNPARSED, Counts, DocumentOutcome, Questions, write_files
from datapipe.models.annotation.sample import Sample, draw_sample, find_sample
from datapipe.models.documents import DocumentInput, documents_of
from datapipe.quantities import counted, duration
from datapipe.report.layout import fitting, print_text
from datapipe.storage.lock import exclusive
from datapipe.storage.root import Root

CARD = "annotation.json"
_FORMAT, _VERSION = "datapipe-annotation", 1
_PLAIN_EVERY_S, _LIVE_EVERY_S = 10.0, 0.5
_SPINNER_CELLS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    documents: DocumentInput
    # num_documents, seed: of the sample
    num_documents: int
    seed: int
    questions: Questions
    endpoint: Endpoint
    output: Path  # a local folder
    cache: Path  # folder of the answers; several jobs may use it one after another
    prices: Prices = field(default_factory=Prices)
    concurrency: int = 16  # requests under way at a time
    max_wait_s: float = 600.0  # seconds without any answer until the command ends
    max_cost: float | None = None  # of this command; None: no limit
    max_unparsed: Fraction = Fraction(1, 2)  # share of the documents that may have no score
    skip_failed: bool = False  # go on without documents that the server refuses or fails on
    is_dry_run: bool = False  # only estimate
    clock: Clock = field(default_factory=Clock)


def annotate_documents(job: Job, console: Console) -> Counts | None:
    """Annotates, and writes the files. Returns the counts of all documents; None for a dry run. All answers are kept.
    Raises UserError where the output or the cache is in use or input is wrong; DatapipeError where the endpoint does not
    answer, a limit is reached, or too many answers cannot be read."""
    with _own_folder(job), open_cache(job.cache) as cache:
        sample, fingerprint = _sample_of(job, console)
        counts, spending = Counts(max_unparsed=job.max_unparsed), Spending(job.prices, job.max_cost)
        for line in _estimate(job, sample, cache, counts):
            _print_line(line, console)
        if job.is_dry_run:
            return None
        left_out: dict[str, DocumentOutcome] = {}
        if counts.num_done < sample.num_sampled:
            left_out = asyncio.run(_ask(job, sample, cache, counts, spending, console))
        counts.check(is_all=True)
        write_files(job.output, sample.documents(), job.questions, cache, left_out)
        _write_card(job, sample, fingerprint, counts)
        for line in _summary(job, counts, spending):
            _print_line(line, console)
        return counts


def _print_line(line: str, console: Console) -> None:
    print_text(masked(line), console)
    console.file.flush()  # where it is a log, it is read while the command runs


def _own_folder(job: Job) -> AbstractContextManager[object]:
    """The output for this process alone. Raises UserError for a folder with other files."""
    for option, folder in (("--output", job.output), ("--cache", job.cache)):
        if re.match(r"[a-z0-9]+:/", str(folder)):
            raise UserError(f"{option} {masked(str(folder))}: expected a folder on a local disk")
    if job.output.exists() and not job.output.is_dir():
        raise UserError(f"--output {job.output}: found a file, expected a folder")
    own = {LABELLED, CARD, UNPARSED, "work", "cache"}
    names = {path.name for path in job.output.iterdir()} if job.output.is_dir() else set[str]()
    if names and "work" not in names:
        others = ", ".join(sorted(names - own)[:3]) or "files"
        raise UserError(f"--output {job.output}: it holds {others}. Expected a new folder, or that of an earlier annotation")
    return exclusive(Root(str(job.output)))


def _sample_of(job: Job, console: Console) -> tuple[Sample, str]:
    documents = documents_of(job.documents, job.output / "work" / "documents", console)
    identity = f"{documents.fingerprint} {job.num_documents} {job.seed}"
    path = job.output / "work" / f"sample-{xxhash.xxh3_64_hexdigest(identity.encode())}.jsonl"
    sample = find_sample(path) or draw_sample(documents, job.num_documents, job.seed, path)
    if not sample.num_sampled:
        raise UserError("there are no documents to annotate. Expected at least one that the stages keep")
    return sample, documents.fingerprint


def _estimate(job: Job, sample: Sample, cache: AnswerCache, counts: Counts) -> Iterator[str]:
    """Lines about what is to be asked and its cost. Counts what is in the cache."""
    expected = Tokens()
    for name, text in sample.documents():
        state = job.questions.state_of(name, text, cache)
        if isinstance(state, Request):
            expected += state.expected
        else:
            counts.add(state)
    if cache.num_damaged:
        yield f"warning: {counted(cache.num_damaged, 'answer')} in {cache.path} damaged; asked for again where needed"
    if sample.num_sampled < job.num_documents:
        yield f"there are {sample.num_sampled:,} different texts, fewer than --sample {job.num_documents:,}: all are annotated"
    in_sample, missing = counted(sample.num_sampled, "document"), sample.num_sampled - counts.num_done
    yield f"{in_sample} in the sample, {counts.num_done:,} answered already, {missing:,} to ask"
    if missing:
        cost = f": cost {job.prices.cost(expected):,.2f} at most" if job.prices else ""
        yield f"about {expected.prompt:,} tokens to read, and {expected.completion:,} to write at most{cost}"


async def _ask(
    job: Job, sample: Sample, cache: AnswerCache, counts: Counts, spending: Spending, console: Console
) -> dict[str, DocumentOutcome]:
    left_out: dict[str, DocumentOutcome] = {}

    def on_answer(request: Request, answer: Answer | LeftOut) -> None:
        outcome = job.questions.outcome_of(request, answer)
        if isinstance(answer, LeftOut):
            left_out[request.name] = outcome
        counts.add(outcome)
        counts.check()

    limiter = RateLimiter(job.clock, job.max_wait_s, job.endpoint.shown, lambda line: _print_line(line, console))
    progress = Progress(limiter, sample.num_sampled, counts, spending)
    async with connected(job.endpoint, job.concurrency) as client:
        asking = Asking(
            client=client,
            cache=cache,
            limiter=limiter,
            spending=spending,
            on_answer=on_answer,
            concurrency=job.concurrency,
            skip_failed=job.skip_failed,
        )
        showing = asyncio.create_task(progress.show_often(console))
        try:
            states = (job.questions.state_of(name, text, cache) for name, text in sample.documents())
            await asking.ask_all(state for state in states if isinstance(state, Request))
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError):
                await showing
    return left_out


def _write_card(job: Job, sample: Sample, fingerprint: str, counts: Counts) -> None:
    card = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": job.questions.model,
        "documents": sample.num_sampled,
        "seed": job.seed,
        "source": fingerprint,
        "scores": {f"{score:g}": count for score, count in sorted(counts.scores.items())},
        "unparsed": dict(sorted(counts.unparsed.items())),
        "tokens": asdict(counts.tokens),
        "cost": round(job.prices.cost(counts.tokens), 6) if job.prices else None,
        "rubric": job.questions.rubric.model_dump(mode="json"),
    }
    Root(str(job.output)).write_atomic(CARD, json.dumps(card, indent=1, ensure_ascii=False).encode() + b"\n")


def _summary(job: Job, counts: Counts, spending: Spending) -> Iterator[str]:
    scores = ", ".join(f"{score:g}: {count:,}" for score, count in sorted(counts.scores.items()))
    yield f"{counted(counts.scores.total(), 'document')} scored ({scores or 'none'})"
    if counts.unparsed:
        yield f"{counts.unparsed.total():,} without a score: {counts.reasons()}; see {job.output / UNPARSED}"
    cost = f", cost {spending.prices.cost(spending.spent):,.2f}" if spending.prices else ""
    yield f"{spending.spent.prompt:,} tokens read and {spending.spent.completion:,} written by this command{cost}"
    yield f"wrote {job.output / LABELLED}"


class Progress:
    def __init__(self, limiter: RateLimiter, num_documents: int, counts: Counts, spending: Spending) -> None:
        self._limiter, self._num_documents, self._counts, self._spending = limiter, num_documents, counts, spending
        self._began, self._done_before = limiter.clock.now(), counts.num_done

    async def show_often(self, console: Console) -> None:
        """Shows the work until it is cancelled: a line every ten seconds, or a live one on a terminal."""
        with console.status("") if console.is_terminal else nullcontext() as live:
            while True:
                await asyncio.sleep(_PLAIN_EVERY_S if live is None else _LIVE_EVERY_S)
                if live is None:
                    _print_line(self.line(), console)
                else:
                    live.update(fitting(self.line(), console.width - _SPINNER_CELLS))

    def line(self) -> str:
        counts, spent = self._counts, self._spending.spent
        done = counts.num_done
        elapsed_s, num_new = self._limiter.clock.now() - self._began, done - self._done_before
        rate = num_new / elapsed_s if elapsed_s > 0 else 0.0
        left = f"{duration((self._num_documents - done) / rate)} left" if rate > 0 else "time left unknown"
        without = f", {counts.unparsed.total():,} without a score" if counts.unparsed else ""
        failed = f"{counted(self._limiter.num_failed, 'attempt')} failed" if self._limiter.num_failed else ""
        documents = f"{done:,} of {counted(self._num_documents, 'document')} ({counts.scores.total():,} scored{without})"
        parts = (documents, f"{rate:,.1f}/s", left, f"{spent.total:,} tokens", self._cost(num_new), failed)
        return ", ".join(part for part in parts if part)

    def _cost(self, num_new: int) -> str:
        prices = self._spending.prices
        if not prices or not num_new:
            return ""
        cost = prices.cost(self._spending.spent)
        return f"cost {cost:,.2f} of about {cost / num_new * (self._num_documents - self._done_before):,.2f}"
