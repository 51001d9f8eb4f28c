"""What documents take for granted: the files and outputs that they name and do not make."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.cli_processes import run as datapipe
from tests.support.snapshots import make_snapshot

_WORDS = "the river and people of that town have been with books to carry up into school night water street light paper"
MIXTURE = """name: "{name}"
output: runs/{name}
sources:
{sources}
stages: [normalize.unicode, filter.gopher_quality, dedup.exact, dedup.minhash, dedup.lines]
tokenizer: {{train: {{vocab_size: 400}}}}
pack: {{sequence_length: 32}}
"""


def records(name: str, count: int, **columns: Callable[[random.Random], Any]) -> list[dict[str, Any]]:
    """Documents of a few lines of one vocabulary. Of ten, the last is nearly the one before it, which has lines of another."""
    made, lines = [], [""]
    for number in range(count):
        rng = random.Random(f"{name}-{number - (number % 10 == 9)}")
        words = [*_WORDS.split(), *(f"{name}{letter}" for letter in "abcdefghij")]
        new = [" ".join(rng.choices(words, k=12)) + "." for _ in range(8)]
        lines = lines if number % 10 == 9 else [*lines[:6], *new[6:8]] if number % 10 == 8 else new
        last = ["Share this page with your friends and family.", f"The end of {number}."]
        made.append({"text": "\n".join(lines + last), **{key: draw(rng) for key, draw in columns.items()}})
    return made


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run(folder: Path, name: str, sources: str) -> None:
    """Runs a mixture. Its file is left under its name."""
    (folder / f"{name}.yaml").write_text(MIXTURE.format(name=name, sources=sources), encoding="utf-8")
    done = datapipe(["run", f"{name}.yaml"], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def web_and_code(folder: Path) -> None:
    for name, count in (("web", 120), ("books", 60), ("code", 60)):
        url = f"https://www.{name}.gov/%d"
        write(folder / f"data/{name}/part-0.jsonl", records(name, count, url=lambda rng, url=url: url % rng.randrange(10**6)))
    names = ("web", "books", "code")
    run(folder, "web-and-code", "\n".join(f"  {name}: {{path: data/{name}/*.jsonl, keep: [url]}}" for name in names))
    (folder / "web-and-code.yaml").rename(folder / "mixture.yaml")


def web(folder: Path) -> None:
    """An output with cells of language, topic and 20 quantiles of quality."""
    columns: dict[str, Any] = {
        "language": lambda rng: rng.choice(["en", "de"]),
        "topic": lambda rng: rng.choice(["science", "sports"]),
        "quality": lambda rng: rng.random(),
    }
    write(folder / "cells/crawl.jsonl", records("crawl", 600, **columns))
    write(folder / "cells/books.jsonl", records("books", 30))
    split = "{by: [language, topic, {column: quality, quantiles: 20}]}"
    crawl = f"  crawl: {{path: cells/crawl.jsonl, keep: [language, topic, quality], split: {split}}}"
    run(folder, "web", f"{crawl}\n  books: {{path: cells/books.jsonl}}")


def year(folder: Path, name: str) -> None:
    write(folder / f"crawls/{name}/part-{name}.jsonl", records(name, 30))
    run(folder, name, f"  web: {{path: crawls/{name}/*.jsonl}}")


def code(folder: Path) -> None:
    """An output with the files of two repositories."""
    rows = records("code", 20, repo_name=lambda rng: rng.choice(["pallets/flask", "pallets/click"]))
    write(folder / "files/part-3.jsonl", [{**row, "path": f"{number}.py"} for number, row in enumerate(rows)])
    repository = "{group_by: repo_name, path: path}"
    run(folder, "code", f"  code: {{path: files/*.jsonl, keep: [repo_name, path], repository: {repository}}}")


def labelled(folder: Path) -> None:
    """Labelled documents, and models of them."""
    rows = [
        {"text": row["text"], "quality": label, "label": label, "domain": f"{number % 6}.org", "score": float(label == "good")}
        for label in ("good", "bad")
        for number, row in enumerate(records(label, 60))
    ]
    for name in ("labelled", "test"):
        write(folder / f"{name}/part-0.jsonl", rows)
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "rated").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "rated/part-0.parquet")
    for options in (["--set", "epochs=3", "--output", "quality.bin", "--kind", "fasttext"], ["--output", "other.model"]):
        done = datapipe(["classifier", "train", "test/*.jsonl", "--label", "label", *options], cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr


def comments(folder: Path) -> None:
    lines = [f'"{row["text"][:80]}",{label}' for label in (0, 1) for row in records(f"toxic{label}", 40)]
    (folder / "comments.csv").write_text("comment,toxic\n" + "\n".join(line.replace("\n", " ") for line in lines))


FILES: dict[str, Callable[[Path], Any]] = {
    "runs/quickstart": lambda folder: make_snapshot(
        folder / "runs/quickstart", {"code": 70, "docs": 60}, sequence_length=32, vocab_size=256
    ),
    "mixture.yaml": web_and_code,
    "runs/web-and-code": web_and_code,
    "runs/web ": web,
    'runs/web"': web,
    "runs/2024": lambda folder: year(folder, "2024"),
    "runs/2025": lambda folder: year(folder, "2025"),
    "runs/code": code,
    "labelled/": labelled,
    "quality.bin": labelled,
    "comments.csv": comments,
    "withdrawn.txt": lambda folder: (folder / "withdrawn.txt").write_text("web/part-2024.jsonl:0\n"),
}
"""What makes a file or an output that the commands of a document name."""


class DocumentFiles:
    """Makes each of them once, and copies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, set()

    def copy(self, text: str, target: Path) -> None:
        """Copies what a text names into a folder, and whatever was made for others."""
        for name, make in FILES.items():
            if name in text and make not in self.made:
                self.made.add(make)
                make(self.folder)
        shutil.copytree(self.folder, target, dirs_exist_ok=True)
