"""Documents to annotate, as a run without a tokenizer writes them, and a chat server."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import corpora, runs
from tests.support.chat_server import ChatServer, chat_server


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run over forty texts, of which one stands three times."""
    folder = tmp_path_factory.mktemp("documents")
    rng = random.Random(5)
    texts = [corpora.prose(rng, 60) for _ in range(38)]
    corpora.write_jsonl(folder / "a.jsonl", [{"text": text} for text in [*texts, texts[7], texts[7]]])
    tail = "tokenizer: none\nexecution: {split_bytes: 4KiB}"
    mixture = runs.write_mixture(folder, f"  web:\n    path: {folder}/a.jsonl\n", "", tail)
    runs.run_mixture(mixture, make_engine=runs.InProcess)
    return folder / "out"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as chat:
        yield chat
