"""`redact.secrets` on random values, and its speed. A value is found only if no part of it remains."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import zstandard

from datapipe.stage import StageContext
from stages.redact.secrets import Secrets
from tests.benchmarks.tables import Bound, Settings, Table, best_s, both_best_s
from tests.benchmarks.texts import batches, made_up_texts, megabytes
from tests.support.synthetic_secrets import ALPHABETS, FRAMES, LENGTHS, PLAIN, drawn_tokens


def tables(settings: Settings) -> Iterator[Table]:
    stage, drawn = _opened(), list(_values(1 if settings.quick else 10))
    found = _found(stage, drawn)
    places = [f"{place}{', without quotes' * (place in PLAIN)}" if place else "tokens of issuers" for _, place, _, _ in drawn]
    note = "Random values of 16 to 64 characters, and tokens of every rule of an issuer; found if no part of a value remains."
    for title, labels in (("values", [kind for kind, _, _, _ in drawn]), ("place", places)):
        rows = _shares(labels, found)
        header = (title, "drawn", "found")
        yield Table(title=f"Secrets by {title}", note=note, header=header, rows=rows)
    rows = []
    for name in ("prose", "code"):
        texts = _corpus(settings.data / name)[: 50 if settings.quick else None]
        corpus = list(batches(pa.array(texts, pa.large_string())))
        rate = megabytes(corpus) / best_s(lambda corpus=corpus: [stage.process(batch) for batch in corpus], 3)
        rows.append((name, f"{megabytes(corpus):.1f} MB", f"{rate:,.0f} MB/s, {_hits(stage, texts)} found"))
    title, header = "The speed of `redact.secrets`", ("corpus", "size", "")
    yield Table(title=title, note="Real corpora.", header=header, rows=rows)


def bounds(folder: Path) -> Iterator[Bound]:
    stage, drawn = _opened(), list(_values(1))
    yield Bound(name="redact.secrets, random values found", ratio=sum(_found(stage, drawn)) / len(drawn), least=0.97)
    corpus = list(batches(made_up_texts(1_000)))
    once_s, twice_s = both_best_s(
        lambda: [stage.process(batch) for batch in corpus], lambda: [stage.process(batch) for batch in corpus * 2], 3
    )
    yield Bound(name="redact.secrets, twice the text", ratio=twice_s / once_s, most=3)
    yield Bound(name="redact.secrets, hits in prose", ratio=_hits(stage, made_up_texts(1_000).to_pylist()), most=0)


def _opened() -> Secrets:
    stage = Secrets()
    stage.open(StageContext(name="redact.secrets", seed=1))
    return stage


def _found(stage: Secrets, drawn: Sequence[tuple[str, str, str, str]]) -> list[bool]:
    """Whether each value was replaced whole."""
    corpus = batches(pa.array([text for _, _, text, _ in drawn], pa.large_string()))
    texts = [text for batch in corpus for text in stage.process(batch).columns["text"].to_pylist()]
    return [
        not any(value[start : start + 8] in text for start in range(0, len(value) - 7, 4))
        for (_, _, _, value), text in zip(drawn, texts, strict=True)
    ]


def _hits(stage: Secrets, texts: Sequence[str]) -> int:
    results = [stage.process(batch) for batch in batches(pa.array(texts, pa.large_string()))]
    return sum(sum(result.columns[count].to_pylist()) for result in results for count in stage.counts)


def _values(per_case: int) -> Iterator[tuple[str, str, str, str]]:
    """(what the value is of, where it stands, the text, the value)."""
    rng = random.Random(7)
    for alphabet, members in ALPHABETS.items():
        for place, frame in FRAMES.items():
            for length in LENGTHS * per_case:
                value = "".join(rng.choices(members, k=length))
                yield alphabet, place, frame.format(value), value
    for seed in range(per_case):
        for kind, before, token, after in drawn_tokens(seed):
            name = "tokens of issuers: " + ("other" if kind == "other" else "with a kind")
            yield name, "", f"at {before}{token}{after} and", token


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


def _shares(labels: Sequence[str], found: Sequence[bool]) -> list[tuple[str, ...]]:
    """A row for each label: how many values, and the share that is found."""
    rows = []
    for label in dict.fromkeys(labels):
        chosen = [is_found for other, is_found in zip(labels, found) if other == label]
        rows.append((label, f"{len(chosen):,}", f"{sum(chosen) / len(chosen):.3f}"))
    return rows
