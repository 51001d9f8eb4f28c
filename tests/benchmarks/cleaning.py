"""Cleaning: the stages of `mixtures/fineweb.yaml` as `datapipe bench` measures them, and filters that share words."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datapipe.stage import Filter, Stage, StageContext
from datapipe.stage.documents import DocumentBatch
from stages.filter.c4_quality import C4Quality
from stages.filter.fineweb_quality import FinewebQuality
from stages.filter.gopher_quality import GopherQuality
from stages.filter.gopher_repetition import GopherRepetition
from stages.redact.pii import Pii
from tests.benchmarks.tables import Bound, Settings, Table, both_best_s
from tests.benchmarks.texts import batches, made_up_texts

_ROOT = Path(__file__).resolve().parents[2]
_RUNS = 3
_FILTERS: dict[str, Filter] = {
    "gopher_quality": GopherQuality.model_validate({"profile": "datatrove"}),
    "gopher_repetition": GopherRepetition.model_validate({"profile": "datatrove"}),
    "c4_quality": C4Quality.model_validate({"profile": "datatrove"}),
    "fineweb_quality": FinewebQuality.model_validate({"profile": "datatrove"}),
}
_PII = Pii.model_validate({"kinds": ["email", "ip"]})


def tables(settings: Settings) -> Iterator[Table]:
    yield _recipe(settings)


def bounds(folder: Path) -> Iterator[Bound]:
    corpus = list(batches(made_up_texts(1_000)))
    _open()
    together, apart = both_best_s(
        lambda: _process([*_FILTERS.values()], corpus),
        lambda: [_process([stage], corpus) for stage in _FILTERS.values()],
        _RUNS,
    )
    yield Bound(name="four filters together, beside each by itself", ratio=together / apart, most=0.95)
    twice = corpus * 2
    one_s, two_s = both_best_s(lambda: _process([_PII], corpus), lambda: _process([_PII], twice), _RUNS)
    yield Bound(name="redact.pii, twice the text", ratio=two_s / one_s, most=3)


def _recipe(settings: Settings) -> Table:
    source = _bench(settings)["sources"]["web"]
    rows = [
        (row["name"], str(row["documents_in"] or ""), *map(_rate, (row["bytes"] / 1e6, row["mb_per_s"])))
        for row in source["rows"]
    ]
    whole = ("**all of it, training the tokenizer apart**", str(source["documents"]))
    return Table(
        title="A recipe from JSONL.zst to shards",
        note=f"`datapipe bench mixtures/fineweb.yaml`, {source['text_bytes'] / 1e6:.1f} MB of English web text in "
        f"{source['documents']:,} documents; medians of {source['passes']} passes on one core.",
        header=("work", "documents in", "MB in", "MB/s"),
        rows=[*rows, (*whole, *map(_rate, (source["text_bytes"] / 1e6, source["mb_per_s"])))],
    )


def _bench(settings: Settings) -> Any:
    written = settings.folder / "bench.json"
    limits = ["--set", "tokenizer.train.vocab_size=2000", "--seconds", "0"] if settings.quick else ["--seconds", "20"]
    command = [sys.executable, "-c", "from datapipe.cli.main import main; main()", "bench", "mixtures/fineweb.yaml"]
    environment = {**os.environ, "CRAWL": str(settings.web.parent)}
    subprocess.run(
        [*command, "--json", str(written), *limits], cwd=_ROOT, env=environment, stdout=subprocess.DEVNULL, check=True
    )
    return json.loads(written.read_text(encoding="utf-8"))


def _rate(number: float | None) -> str:
    return "" if not number else f"{number:,.1f}"


def _open() -> None:
    for stage in [*_FILTERS.values(), _PII]:
        stage.open(StageContext(name="stage", seed=1))


def _process(stages: Sequence[Stage], corpus: list[DocumentBatch]) -> None:
    """The stages over the corpus, on the texts as read, sharing words and lines."""
    for batch in corpus:
        fresh = DocumentBatch(batch.record)
        for stage in stages:
            stage.process(fresh)  # pyright: ignore[reportAttributeAccessIssue]
