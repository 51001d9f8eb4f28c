"""Cleaning: the stages of `mixtures/fineweb.yaml` as `datapipe bench` measures them, and filters beside datatrove.

`--datatrove PYTHON --datatrove-script SCRIPT`: the script runs datatrove's filters with their defaults over the file that
it is given, prints one JSON object a filter (`work`, `mb_per_s`) and writes its decisions (`--decisions`, a JSON object a
document). Both sides are timed by the CPU time of their process. Ours run with profile `datatrove`: a stage by itself pays
for the words and lines that it asks for; "together" shares them, as a task does.

Known differences in decisions: words at the border of a chunk that spaCy keeps whole only where they stand alone
("<p>Mr."), and lines parted by other signs than a newline (U+2028, carriage returns), which `normalize.unicode` makes
newlines beforehand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.stage import Filter, Stage, StageContext
from datapipe.stage.documents import DocumentBatch
from stages.filter.c4_quality import C4Quality
from stages.filter.fineweb_quality import FinewebQuality
from stages.filter.gopher_quality import GopherQuality
from stages.filter.gopher_repetition import GopherRepetition
from stages.redact.pii import Pii
from tests.benchmarks.tables import Bound, Settings, Table, best_s, both_best_s, ratio_cells
from tests.benchmarks.texts import batches, made_up_texts, megabytes, read_texts

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
    yield _beside_datatrove(settings)


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


# ------------------------------------------------------------------------------------------------ a recipe


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


# ------------------------------------------------------------------------------------------------ datatrove


def _open() -> None:
    for stage in [*_FILTERS.values(), _PII]:
        stage.open(StageContext(name="stage", seed=1))


def _process(stages: Sequence[Stage], corpus: list[DocumentBatch]) -> None:
    """The stages over the corpus, on the texts as read, sharing words and lines."""
    for batch in corpus:
        fresh = DocumentBatch(batch.record)
        for stage in stages:
            stage.process(fresh)  # pyright: ignore[reportAttributeAccessIssue]


def _beside_datatrove(settings: Settings) -> Table:
    corpus = list(batches(read_texts(settings.web)))
    _open()
    named: dict[str, list[Stage]] = {name: [stage] for name, stage in {**_FILTERS, "pii": _PII}.items()}
    named["together"] = [*_FILTERS.values()]
    theirs, same = _datatrove(settings, corpus) if settings.datatrove else ({}, {})
    rows = []
    for name, stages in named.items():
        rate = megabytes(corpus) / best_s(lambda stages=stages: _process(stages, corpus), _RUNS)
        rows.append((name, f"{rate:,.1f}", *ratio_cells(rate, theirs.get(name)), same.get(name, "")))
    return Table(
        title="Cleaning, beside datatrove",
        note=f"Profile `datatrove`, {megabytes(corpus):.1f} MB of English web text; CPU time, the best of {_RUNS}. A filter by "
        "itself pays for the words and lines that it asks for; together they share them. `pii`: e-mail and IP addresses.",
        header=("work", "datapipe MB/s", "datatrove MB/s", "ratio", "same decision"),
        rows=rows,
    )


def _datatrove(settings: Settings, corpus: list[DocumentBatch]) -> tuple[dict[str, float], dict[str, str]]:
    """MB/s by filter, and the share of documents on which both decide alike."""
    written = settings.folder / "decisions.jsonl"
    command = [settings.datatrove, settings.datatrove_script, str(settings.web), "--decisions", str(written)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=settings.folder)
    rates = {row["work"]: row["mb_per_s"] for row in map(json.loads, done.stdout.splitlines())}
    rates["together"] = 1 / sum(1 / rates[name] for name in _FILTERS)
    decided = [json.loads(line) for line in written.read_text().splitlines()]
    same = {}
    for name, stage in _FILTERS.items():
        ours = np.concatenate([stage.process(batch).keep for batch in corpus])
        same[name] = f"{np.mean(ours == [row[name] == 'keep' for row in decided]):.2%}"
    return rates, same
