"""A model that is trained through the loader learns what a loss may count of conversations, and nothing else of them."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.loader import Loader
from tests.support import corpora, runs
from tests.support.chat_tokenizer import as_chat, chat_tokenizer
from tests.support.late_import import late_import

torch = late_import("torch")

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch")]

S, ROWS, STEPS = 64, 8, 50
QUESTION, ANSWER = "bcdfghjklmnp", "0123456789"
"""Letters of a question and of an answer: each follows the one before, so both are as easy to learn."""


def learned_whole(record: Mapping[str, Any]) -> dict[str, Any]:
    """A stage: the same conversations, with a loss on all of them."""
    return {"segments": [{**segment, "learn": True} for segment in as_chat(record)["segments"]]}


learned_whole.columns = {"segments": list}  # type: ignore[attr-defined]


def conversation(rng: random.Random) -> str:
    turns = []
    for letters in (QUESTION, ANSWER) * rng.randrange(1, 3):
        start, length = rng.randrange(len(letters)), rng.randrange(12, 20)
        turns.append("".join(letters[(start + place) % len(letters)] for place in range(length)))
    return "¦".join(turns)


def loader_of(folder: Path, stage: str) -> Loader:
    folder.mkdir()
    rng = random.Random(7)
    (folder / "tokenizer.json").write_text(chat_tokenizer().to_str())
    corpora.write_jsonl(folder / "a.jsonl", [{"text": conversation(rng)} for _ in range(400)])
    sources = f"  chat:\n    path: {folder}/a.jsonl\n    stages:\n      - {stage}\n"
    tail = f'tokenizer: {{path: {folder}/tokenizer.json, eos: "</s>", bos: "<s>"}}\npack: {{sequence_length: {S}}}'
    runs.run_mixture(runs.write_mixture(folder, sources, "", tail), make_engine=runs.InProcess)
    return Loader(folder / "out", global_batch_size=ROWS, fields=("input_ids", "labels"), prefetch=0)


def make_model(vocab_size: int) -> Any:
    """A transformer of about a million parameters."""
    nn, functional, width, num_heads = torch.nn, torch.nn.functional, 160, 4

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.project, self.join = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            heads = self.project(self.norm(x)).unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.join(mixed.transpose(1, 2).flatten(2))
            return x + self.mlp(x)

    torch.manual_seed(0)
    ends = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)
    return nn.Sequential(ends[0], *(Block() for _ in range(3)), nn.LayerNorm(width), ends[1])


def mean_loss(model: Any, ids: np.ndarray, targets: np.ndarray) -> Any:
    """`targets`: -100 where none is counted."""
    logits = model(torch.from_numpy(ids))
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of torch wait for each other by spinning, which takes minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_model_learns_to_answer_only_where_it_may(tmp_path: Path) -> None:
    masked = loader_of(tmp_path / "masked", "tests.support.chat_tokenizer:as_chat")
    whole = loader_of(tmp_path / "whole", f"{__name__}:learned_whole")
    held_out, of_all = masked.batch(10 * STEPS), whole.batch(10 * STEPS)
    ids = held_out["input_ids"]
    assert (ids == of_all["input_ids"]).all()
    answers = held_out["labels"]
    others = np.where(answers < 0, of_all["labels"], -100)  # what the mask leaves out
    assert min((answers >= 0).sum(), (others >= 0).sum()) > 200

    def losses(model: Any) -> tuple[float, float]:
        with torch.no_grad():
            return mean_loss(model, ids, answers).item(), mean_loss(model, ids, others).item()

    after: dict[str, tuple[float, float]] = {}
    before = (0.0, 0.0)
    for name, loader in (("masked", masked), ("whole", whole)):
        model = make_model(loader.snapshot.tokenizer.vocab_size)
        assert 0.9e6 < sum(each.numel() for each in model.parameters()) < 1.1e6
        before = losses(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for step in range(STEPS):
            batch = loader.batch(step)
            mean_loss(model, batch["input_ids"], batch["labels"]).backward()
            optimizer.step()
            optimizer.zero_grad()
        after[name] = losses(model)
    (answered, asked), (answered_of_whole, asked_of_whole) = after["masked"], after["whole"]
    assert max(answered, answered_of_whole, asked_of_whole) < 0.5 * min(before)
    assert asked > 0.9 * before[1]
