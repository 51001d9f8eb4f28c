"""The worked example of `mixtures/educational.yaml`: its commands, from annotation to a trained model to a filtered corpus."""

import os
import random
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.chat_server import chat_server
from tests.support.cli_processes import run as run_process

ROOT = Path(__file__).resolve().parents[2]
MIXTURE = ROOT / "mixtures" / "educational.yaml"
NUM_DOCUMENTS, SAMPLE = 400, 250


def page(rng: random.Random, level: int) -> str:
    """A text of which level / 5 of half the words teach."""

    def word() -> str:
        return ("learn" if rng.random() < level / 10 else "misc") + rng.choice("abcdefghij") + rng.choice("klmnopqrst")

    return "\n".join(" ".join(word() for _ in range(rng.randint(8, 14))).capitalize() + "." for _ in range(20))


def level_of(text: str) -> int:
    """The level of a text, as a language model would rate it."""
    found = re.findall(r"\b(learn|misc)[a-j][k-t]\b", text.lower())
    return round(10 * found.count("learn") / len(found))


def commands(text: str) -> list[list[str]]:
    """The commands in a text, each on one line or several."""
    lines = text.replace("\n# ", "\n").replace("\\\n", "").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.strip().startswith("datapipe ")]


@pytest.mark.slow
def test_commands_lead_from_annotation_to_a_filtered_corpus(tmp_path: Path) -> None:
    rng = random.Random(7)
    (tmp_path / "pages").mkdir()
    (tmp_path / "mixtures").symlink_to(MIXTURE.parent)
    for number in range(NUM_DOCUMENTS):
        (tmp_path / f"pages/{number}.md").write_text(page(rng, number % 6))
    (tmp_path / "pages/short.md").write_text("too short")
    annotate, train, run = commands(MIXTURE.read_text(encoding="utf-8"))
    path = ["--set", f"sources.docs.path={tmp_path}/pages/*.md"]
    with chat_server() as server:
        server.answer = lambda message: f"It teaches so much.\nScore: {min(5, level_of(message.split('=' * 10)[1]))}"
        given = {"http://127.0.0.1:8000/v1": server.url, "MODEL": "a-model", "2000": str(SAMPLE)}
        for command in ([*[given.get(word, word) for word in annotate], *path], train, [*run, *path]):
            done = run_process(command, cwd=tmp_path, env=os.environ | {"COLUMNS": "200"})
            assert done.returncode == 0, done.stdout + done.stderr
        assert len(server.requests) == SAMPLE
    kept = [row for file in (tmp_path / "runs/educational/documents/docs").iterdir() for row in pq.read_table(file).to_pylist()]
    assert len(kept) == NUM_DOCUMENTS // 10
    assert sum(level_of(row["text"]) >= 4 for row in kept) >= 0.95 * len(kept)
    assert min(row["educational"] for row in kept) > 3
