"""`redact.secrets` on random values, and its speed. `--before` measures the stage of an earlier commit, too."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import zstandard

from tests.benchmarks.tables import Bound, Settings, Table
from tests.benchmarks.texts import made_up_texts
from tests.support.synthetic_secrets import ALPHABETS, FRAMES, LENGTHS, PLAIN, drawn_tokens

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """
import json, sys
from time import process_time
import numpy as np, pyarrow as pa
from datapipe import columns
from datapipe.stage import DocumentBatch, StageContext
from stages.redact.secrets import Secrets

stage = Secrets()
stage.open(StageContext(name="redact.secrets", seed=1))

def run(texts):
    keys = columns.make_keys(1, np.arange(len(texts), dtype=np.uint64))
    batch = DocumentBatch(pa.record_batch({"key": keys, "id": pa.array(["a"] * len(texts), pa.large_string()),
                                           "text": pa.array(texts, pa.large_string())}))
    times = []
    for _ in range(4):
        started = process_time()
        result = stage.process(batch)
        times.append(process_time() - started)
    return result, min(times)

given = json.load(open(sys.argv[1]))
texts = run([text for text, _ in given["values"]])[0].columns["text"].to_pylist()
found = [not any(secret[k : k + 8] in text for k in range(0, len(secret) - 7, 4))
         for (_, secret), text in zip(given["values"], texts)]
corpora = {}
for name, texts in given["corpora"].items():
    result, seconds = run(texts)
    hits = sum(sum(result.columns[count].to_pylist()) for count in stage.counts)
    corpora[name] = [sum(len(text.encode()) for text in texts) / 1e6, seconds, hits]
json.dump([found, corpora], sys.stdout)
"""


Measured = tuple[list[bool], dict[str, tuple[float, float, int]]]
"""Whether each value was replaced whole; of each corpus megabytes, seconds and hits."""


def _measured(root: Path, given: Path) -> Measured:
    """Of the stage in a tree of sources."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(given)], cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found, corpora = json.loads(done.stdout)
    return found, corpora


def _values(per_case: int) -> Iterator[tuple[str, str, str, str]]:
    """(what the value is of, where it stands, the text, the value)."""
    rng = random.Random(7)
    for alphabet, members in ALPHABETS.items():
        for place, frame in FRAMES.items():
            for length in LENGTHS:
                for _ in range(per_case):
                    value = "".join(rng.choices(members, k=length))
                    yield alphabet, place, frame.format(value), value
    for seed in range(per_case):
        for kind, before, token, after in drawn_tokens(seed):
            yield (
                ("tokens of issuers: " + ("other" if kind == "other" else "with a kind")),
                "",
                f"at {before}{token}{after} and",
                token,
            )


def _strings(record: object) -> list[str]:
    if isinstance(record, dict | list):
        return [text for one in (record.values() if isinstance(record, dict) else record) for text in _strings(one)]
    return [record] if isinstance(record, str) else []


def _corpus(folder: Path) -> list[str]:
    texts = list[str]()
    for path in sorted(folder.iterdir()):
        with zstandard.open(path, "rb") if path.suffix == ".zst" else gzip.open(path) as stream:
            text = stream.read().decode("utf-8", errors="replace")
        records = [json.loads(line) for line in text.split("\n") if line] if ".jsonl" in path.name else [text]
        texts += _strings([json.loads(text)] if ".json" in path.name and ".jsonl" not in path.name else records)
    return texts


def tables(settings: Settings) -> Iterator[Table]:
    drawn = list(_values(1 if settings.quick else 10))
    corpora = {name: _corpus(settings.data / name)[: 50 if settings.quick else None] for name in ("prose", "code")}
    measured = _by_version(settings.folder, drawn, corpora, settings.before)
    header = ("drawn", *(f"found {version}" for version in measured))
    found = [found for found, _ in measured.values()]
    places = [f"{one[1]}{', without quotes' * (one[1] in PLAIN)}" if one[1] else "tokens of issuers" for one in drawn]
    note = "Random values of 16 to 64 characters, and tokens of every rule of an issuer; found if no part of a value remains."
    for title, labels in (("values", [one[0] for one in drawn]), ("place", places)):
        rows = _shares(labels, found)
        yield Table(title=f"Secrets by {title}", note=note, header=(title, *header), rows=rows, kept_in="stages/README.md")
    rows = []
    for name in corpora:
        cells = [f"{mb / taken_s:,.0f} MB/s, {hits} found" for mb, taken_s, hits in (of[name] for _, of in measured.values())]
        rows.append((name, f"{measured['now'][1][name][0]:.1f} MB", *cells))
    title, header = "The speed of `redact.secrets`", ("corpus", "size", *measured)
    yield Table(title=title, note="Real corpora.", header=header, rows=rows, kept_in="stages/README.md")


def bounds(folder: Path) -> Iterator[Bound]:
    drawn, texts = list(_values(1)), made_up_texts(1_000).to_pylist()
    found, corpora = _by_version(folder, drawn, {"once": texts, "twice": texts * 2}, "")["now"]
    yield Bound(name="redact.secrets, random values found", ratio=sum(found) / len(found), least=0.97)
    yield Bound(name="redact.secrets, twice the text", ratio=corpora["twice"][1] / corpora["once"][1], most=3)
    yield Bound(name="redact.secrets, hits in prose", ratio=corpora["once"][2], most=0)


def _by_version(
    folder: Path, drawn: Sequence[tuple[str, str, str, str]], corpora: Mapping[str, Sequence[str]], before: str
) -> dict[str, Measured]:
    """What the stage finds, of an earlier commit, if one is given, and now."""
    given = folder / "given.json"
    given.write_text(json.dumps({"values": [one[2:] for one in drawn], "corpora": corpora}))
    if not before:
        return {"now": _measured(_ROOT, given)}
    subprocess.run(["git", "worktree", "add", "--detach", "-f", str(folder / "before"), before], check=True)
    try:
        return {"before": _measured(folder / "before", given), "now": _measured(_ROOT, given)}
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(folder / "before")], check=True)


def _shares(labels: Sequence[str], versions: Sequence[list[bool]]) -> list[list[str]]:
    """A row for each label: how many values, and the share found by each version."""
    rows = []
    for label in dict.fromkeys(labels):
        chosen = [number for number, other in enumerate(labels) if other == label]
        shares = [f"{sum(found[number] for number in chosen) / len(chosen):.3f}" for found in versions]
        rows.append([label, f"{len(chosen):,}", *shares])
    return rows
