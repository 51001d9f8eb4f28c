"""`redact.secrets` on random values, and its speed: `python -m tests.benchmarks.secrets ../shared/data [--before COMMIT]`.

Prints the tables of `stages/README.md`. `--before` measures the stage of an earlier commit on the same texts too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import zstandard

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


def _measured(root: Path, given: Path) -> tuple[list[bool], dict[str, tuple[float, float, int]]]:
    """Of the stage in a tree of sources: whether each value was replaced whole; of each corpus megabytes, seconds and hits."""
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


def _shares(labels: Sequence[str], found: Mapping[str, list[bool]]) -> list[list[str]]:
    """A row for each label: how many values, and the share found by each version."""
    rows = []
    for label in dict.fromkeys(labels):
        chosen = [number for number, other in enumerate(labels) if other == label]
        shares = [f"{sum(one[number] for number in chosen) / len(chosen):.3f}" for one in found.values()]
        rows.append([label, f"{len(chosen):,}", *shares])
    return rows


def _print(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n| {' | '.join(header)} |\n|---|{'---:|' * (len(header) - 1)}")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the folder of real corpora, with code/ and prose/")
    parser.add_argument("--before", default="", help="a commit to compare with")
    parser.add_argument("--values", type=int, default=10, help="values of each alphabet, place and length")
    arguments = parser.parse_args()
    drawn = list(_values(arguments.values))
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "given.json"
        corpora = {name: _corpus(arguments.data / name) for name in ("prose", "code")}
        given.write_text(json.dumps({"values": [one[2:] for one in drawn], "corpora": corpora}))
        roots = {}
        if arguments.before:
            roots["before"] = Path(folder) / "before"
            subprocess.run(["git", "worktree", "add", "--detach", "-f", str(roots["before"]), arguments.before], check=True)
        roots["now"] = _ROOT
        try:
            measured = {name: _measured(root, given) for name, root in roots.items()}
        finally:
            if arguments.before:
                subprocess.run(["git", "worktree", "remove", "--force", str(roots["before"])], check=True)
    found = {name: one[0] for name, one in measured.items()}
    _print(["values", "drawn", *(f"found {name}" for name in found)], _shares([one[0] for one in drawn], found))
    places = [f"{one[1]}{', without quotes' * (one[1] in PLAIN)}" if one[1] else "tokens of issuers" for one in drawn]
    _print(["place", "drawn", *(f"found {name}" for name in found)], _shares(places, found))
    rows = []
    for name in corpora:
        cells = [f"{one[name][0] / one[name][1]:,.0f} MB/s, {one[name][2]} found" for _, one in measured.values()]
        rows.append([name, f"{measured['now'][1][name][0]:.1f} MB", *cells])
    _print(["corpus", "size", *found], rows)


if __name__ == "__main__":
    main()
