"""`datapipe bench` of `mixtures/fineweb.yaml` on English web text: MB/s of every piece of work, from JSONL.zst to shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.tables import Settings, Table

ROOT = Path(__file__).resolve().parents[2]


def table(settings: Settings) -> Table:
    source = _bench(settings)["sources"]["web"]
    rows = [
        (
            row["name"],
            str(row["documents_in"] or ""),
            _rate(row["bytes"] / 1e6),
            f"{row['seconds']:.3f}",
            _rate(row["mb_per_s"]),
        )
        for row in source["rows"]
    ]
    whole = ("**all of it, training the tokenizer apart**", str(source["documents"]), _rate(source["text_bytes"] / 1e6))
    return Table(
        title="A recipe from JSONL.zst to shards",
        note=f"`datapipe bench mixtures/fineweb.yaml`, {source['text_bytes'] / 1e6:.1f} MB of English web text in "
        f"{source['documents']:,} documents; medians of {source['passes']} passes on one core.",
        header=("work", "documents in", "MB in", "seconds", "MB/s"),
        rows=[*rows, (*whole, f"{source['seconds']:.3f}", _rate(source["mb_per_s"]))],
    )


def _bench(settings: Settings) -> Any:
    written = settings.folder / "bench.json"
    limits = ["--set", "tokenizer.train.vocab_size=2000", "--seconds", "0"] if settings.quick else ["--seconds", "20"]
    command = [sys.executable, "-c", "from datapipe.cli.main import main; main()", "bench", "mixtures/fineweb.yaml"]
    done = subprocess.run(
        [*command, "--json", str(written), *limits],
        cwd=ROOT,
        env={**os.environ, "CRAWL": str(settings.web.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(written.read_text(encoding="utf-8"))


def _rate(number: float | None) -> str:
    return "" if not number else f"{number:,.1f}"
