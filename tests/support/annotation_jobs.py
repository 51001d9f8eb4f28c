"""Annotations of a few documents against a chat server, in this process and by a clock that never waits."""

import asyncio
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from datapipe.language_model.endpoint import endpoint_of
from datapipe.language_model.rate_limiter import Clock
from datapipe.models.annotation.annotate import Job, annotate_documents
from datapipe.models.annotation.outcomes import Counts, Questions
from datapipe.models.annotation.rubric import Rubric
from datapipe.models.documents import DocumentInput

RUBRIC = Rubric(scale=(0, 5), max_chars=400, max_tokens=50, template="Rate this:\n{text}\nEnd with Score: N")


@dataclass
class FakeClock(Clock):
    """A clock whose sleep passes at once."""

    time: float = 1000.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


@dataclass
class Annotated:
    """A command that has ended: what it returned and what it printed."""

    counts: Counts | None
    said: str


def job(run_output: Path, url: str, output: Path, **changes: Any) -> Job:
    """A job over the documents of a run without a tokenizer, with other fields as `changes`."""
    defaults: dict[str, Any] = {
        "documents": DocumentInput(paths=(str(run_output),)),
        "num_documents": 12,
        "seed": 0,
        "questions": Questions(rubric=RUBRIC, model="a-model"),
        "endpoint": endpoint_of(url, "", {}, 20.0),
        "output": output,
        "cache": output / "cache",
        "concurrency": 4,
        "clock": FakeClock(),
    }
    return Job(**defaults | changes)


def annotated(wanted: Job) -> Annotated:
    """Runs a job."""
    printed = io.StringIO()
    counts = annotate_documents(wanted, Console(file=printed, width=120))
    return Annotated(counts=counts, said=printed.getvalue())


def files(output: Path) -> dict[str, bytes]:
    """The published files of an annotation, by name."""
    return {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}


def rows(output: Path, name: str = "labelled.jsonl") -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in (output / name).read_text().splitlines()]


def by_length(message: str) -> str:
    """An answer that follows from the message alone."""
    return f"It has {len(message)} characters.\nScore: {len(message) % 6}"
