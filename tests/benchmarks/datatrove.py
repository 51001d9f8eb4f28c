"""Cleaning against datatrove, one core each, in one run: MB/s, the ratio, and on how many documents both decide alike.

    taskset -c 0 python -m tests.benchmarks.datatrove CORPUS.jsonl.zst --peer ~/peers/bin/python --script datatrove_stages.py

The corpus is JSON lines with a field `text`. The script of the peer runs datatrove's filters with their defaults over the same
file, prints one JSON object a filter (`work`, `mb_per_s`) and writes its decisions (`--decisions`); its environment has
datatrove and spaCy, ours has neither. Both are timed by their own process's CPU time, so that other work on the machine counts
for neither.

Ours run with profile `datatrove`. A stage by itself pays for the words and lines that it asks for; "together" shares them, as a
task does.

Where the two decide differently, the documents are listed. What is known to differ: words at the border of a chunk that spaCy
keeps whole only where they stand alone ("<p>Mr."), and lines parted by other signs than a newline (U+2028, carriage returns),
which `normalize.unicode` makes newlines beforehand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from datapipe.columns import make_keys
from datapipe.stage import Filter, Stage, StageContext
from datapipe.stage.documents import BASE_FIELDS, TARGET_BATCH_BYTES, DocumentBatch
from stages.filter.c4_quality import C4Quality
from stages.filter.fineweb_quality import FinewebQuality
from stages.filter.gopher_quality import GopherQuality
from stages.filter.gopher_repetition import GopherRepetition
from stages.redact.pii import Pii
from tests.benchmarks.tables import Settings, Table, ratio_cells

_RUNS = 3
FILTERS: dict[str, Filter] = {
    "gopher_quality": GopherQuality.model_validate({"profile": "datatrove"}),
    "gopher_repetition": GopherRepetition.model_validate({"profile": "datatrove"}),
    "c4_quality": C4Quality.model_validate({"profile": "datatrove"}),
    "fineweb_quality": FinewebQuality.model_validate({"profile": "datatrove"}),
}
PII = Pii.model_validate({"kinds": ["email", "ip"]})


def batches(texts: pa.Array) -> Iterator[DocumentBatch]:
    """The texts as a reader would hand them on, some 4 MiB each."""
    start = size = 0
    lengths = pa.compute.binary_length(texts).to_pylist()  # pyright: ignore[reportAttributeAccessIssue]
    for stop, length in enumerate(lengths, start=1):
        size += length
        if size >= TARGET_BATCH_BYTES or stop == len(texts):
            part = pa.concat_arrays([texts.slice(start, stop - start)])
            keys = make_keys(1, np.arange(start, stop, dtype=np.uint64))
            ids = pa.array([str(number) for number in range(start, stop)], pa.large_string())
            yield DocumentBatch(pa.RecordBatch.from_arrays([keys, ids, part], schema=pa.schema(BASE_FIELDS)))
            start, size = stop, 0


def seconds(stages: Sequence[Stage], corpus: list[DocumentBatch]) -> float:
    """CPU seconds of the stages over the corpus, each on the texts as read, sharing words and lines; the best of a few runs."""
    best = float("inf")
    for _ in range(_RUNS + 1):
        started = time.process_time()
        for batch in corpus:
            fresh = DocumentBatch(batch.record)
            for stage in stages:
                stage.process(fresh)  # pyright: ignore[reportAttributeAccessIssue]
        best = min(best, time.process_time() - started)
    return best


def decisions(stage: Filter, corpus: list[DocumentBatch]) -> list[str]:
    """ "keep" or the rule that drops, of every document."""
    rules = [rule.name for rule in stage.rules()]
    return [
        "keep" if keep else rules[rule]
        for batch in corpus
        for result in [stage.process(batch)]
        for keep, rule in zip(result.keep.tolist(), result.rule.tolist())
    ]


def peer(python: str, script: str, corpus: Path) -> tuple[dict[str, float], list[dict[str, str]]]:
    """MB/s by filter, and the decisions on every document."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "decisions.jsonl"
        command = [python, script, str(corpus), "--decisions", str(written)]
        out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
        rates = {row["work"]: row["mb_per_s"] for row in map(json.loads, out.splitlines())}
        return rates, [json.loads(line) for line in written.read_text().splitlines()]


def read(corpus: Path) -> pa.Array:
    """The texts of JSON lines with a field `text`."""
    with pa.input_stream(str(corpus), compression="detect") as stream:
        return pj.read_json(stream, pj.ReadOptions(block_size=256 << 20))["text"].combine_chunks().cast(pa.large_string())


def rates(corpus: list[DocumentBatch]) -> dict[str, float]:
    """MB/s of each filter by itself, of redaction, and of the filters together."""
    mb = sum(batch.text_bytes for batch in corpus) / 1e6
    for stage in [*FILTERS.values(), PII]:
        stage.open(StageContext(name="stage", seed=1))
    measured = {name: mb / seconds([stage], corpus) for name, stage in {**FILTERS, "pii": PII}.items()}
    return {**measured, "together": mb / seconds(list(FILTERS.values()), corpus)}


def table(settings: Settings) -> Table:
    """Rates beside datatrove's, where there is one."""
    corpus = list(batches(read(settings.web)))
    theirs: dict[str, float] = {}
    if settings.datatrove:
        theirs, _ = peer(settings.datatrove, settings.datatrove_script, settings.web)
        theirs["together"] = 1 / sum(1 / theirs[name] for name in FILTERS)
    return Table(
        title="Cleaning, beside datatrove",
        note=f"Profile `datatrove`, {sum(batch.text_bytes for batch in corpus) / 1e6:.1f} MB of English web text; CPU time, "
        f"the best of {_RUNS + 1}. A filter by itself pays for the words and lines that it asks for; together they share "
        "them. `pii`: e-mail and IP addresses.",
        header=("work", "datapipe MB/s", "datatrove MB/s", "ratio"),
        rows=[(name, f"{rate:,.1f}", *ratio_cells(rate, theirs.get(name))) for name, rate in rates(corpus).items()],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--peer", required=True, help="the Python that has datatrove")
    parser.add_argument("--script", required=True, help="the peer's script")
    given = parser.parse_args()
    texts = read(given.corpus)
    corpus = list(batches(texts))
    mb = sum(batch.text_bytes for batch in corpus) / 1e6
    theirs, their_decisions = peer(given.peer, given.script, given.corpus.resolve())
    theirs["together"] = 1 / sum(1 / theirs[name] for name in FILTERS)
    ours = rates(corpus)
    print(f"{mb:.1f} MB, {len(texts)} documents\n\n| work | datapipe MB/s | datatrove MB/s | ratio |\n|---|---:|---:|---:|")
    for name, rate in ours.items():
        print(f"| {name} | {rate:.1f} | {theirs[name]:.2f} | {rate / theirs[name]:.0f} |")
    for name, stage in FILTERS.items():
        mine, other = decisions(stage, corpus), [row[name] for row in their_decisions]
        different = [at for at, (a, b) in enumerate(zip(mine, other, strict=True)) if (a == "keep") != (b == "keep")]
        print(f"\n{name}: alike on {100 * (1 - len(different) / len(mine)):.2f} % of {len(mine)}")
        for at in different[:20]:
            print(f"  document {at}: {mine[at]}, datatrove {other[at]}")


if __name__ == "__main__":
    main()
