"""Searching a mixture on a CPU: 64 runs of a tiny transformer over one snapshot, and the found mixture beside others.

    generated corpora ─ datapipe run ─▶ snapshot ─ mixtures propose ─▶ 64 rows of weights ─ train ─▶ results.csv
                                                      mixtures fit ─▶ the found mixture ─ train, 5 seeds ─▶ table

The target is held-out text of two kinds: stories, and sums. Six sources are related to it in different ways:

    stories   the target's stories, but a small corpus        tales    other names and verbs in the same grammar
    sums      the target's sums, small too                    long     sums of more digits
    wrong     sums whose results are one too large            lists    the target's words in no order: harm

python tests/examples/mixture_search.py FOLDER      everything, about 20 minutes of a core; prints the table
"""

import csv
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from datapipe.loader import Loader

CLI = [sys.executable, "-c", "from datapipe.cli.main import main; main()"]
SEQUENCE_LENGTH, ROWS, WIDTH = 64, 8, 48

MIXTURE = """
name: search
seed: 17
output: {folder}/snapshot
validation: 0
sources:
{sources}
stages: []
tokenizer: {{train: {{vocab_size: 512}}}}
pack: {{sequence_length: {length}}}
mixture: {{tokens: {tokens}}}
"""
NAMES, VERBS = ("anna", "ben", "carl", "dora", "emil"), ("sees", "finds", "takes", "likes")
THINGS = ("ball", "house", "tree", "book", "river")
OTHERS = ("fred", "gina", "hugo", "iris"), ("hears", "paints", "sells"), ("piano", "stone", "garden", "letter")


def story(rng: random.Random, names: Sequence[str], verbs: Sequence[str], things: Sequence[str]) -> str:
    """Sentences about one person and one thing, which come again: what a model can learn to repeat."""
    name, thing = rng.choice(names), rng.choice(things)
    lines = [f"{name} {rng.choice(verbs)} the {rng.choice(['old', 'red', 'small'])} {thing} ." for _ in range(3)]
    return " ".join([*lines, f"the {thing} is of {name} ."])


def sums(rng: random.Random, most: int, error: int = 0) -> str:
    """Sums of two numbers below `most`."""
    pairs = [(rng.randrange(most), rng.randrange(most)) for _ in range(4)]
    return " ; ".join(f"{a} + {b} = {a + b + error}" for a, b in pairs)


def lists(rng: random.Random) -> str:
    words = [*NAMES, *THINGS, *OTHERS[0], *OTHERS[2]]
    return " ".join(rng.choice(words) for _ in range(20))


KINDS = {
    "stories": (lambda rng: story(rng, NAMES, VERBS, THINGS), 300),
    "tales": (lambda rng: story(rng, *OTHERS), 1500),
    "sums": (lambda rng: sums(rng, 20), 300),
    "long": (lambda rng: sums(rng, 500), 1500),
    "wrong": (lambda rng: sums(rng, 20, error=1), 1000),
    "lists": (lists, 1500),
}
"""By source: what makes a document, and how many there are."""


def prepare(folder: Path, scale: float, tokens: int) -> Path:
    """Writes the corpora and runs the mixture, which has the weights of their sizes. Returns the mixture's file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, (make, count) in KINDS.items():
        rng = random.Random(name)
        texts = [make(rng) for _ in range(max(20, int(count * scale)))]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        lines.append(f"  {name}: {{path: {folder}/{name}.jsonl, weight: {sum(map(len, texts))}, max_epochs: 4}}")
    mixture = folder / "mixture.yaml"
    mixture.write_text(MIXTURE.format(folder=folder, sources="\n".join(lines), length=SEQUENCE_LENGTH, tokens=tokens))
    datapipe("run", mixture, "--workers", "1")
    return mixture


def target(folder: Path, count: int = 150) -> tuple[torch.Tensor, torch.Tensor]:
    """Held-out documents of the target, a row each: input ids and labels."""
    from tokenizers import Tokenizer

    tokenizer, rng = Tokenizer.from_file(str(folder / "snapshot/tokenizer.json")), random.Random("target")
    texts = [story(rng, NAMES, VERBS, THINGS) if number % 2 else sums(rng, 20) for number in range(count)]
    ids = torch.zeros((count, SEQUENCE_LENGTH), dtype=torch.int64)
    labels = torch.full((count, SEQUENCE_LENGTH), -100)
    for row, encoding in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        tokens = torch.tensor(encoding.ids[: SEQUENCE_LENGTH + 1])
        ids[row, : len(tokens) - 1], labels[row, : len(tokens) - 1] = tokens[:-1], tokens[1:]
    return ids, labels


class Block(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.project, self.join = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.join(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Model(nn.Module):
    """A transformer of two blocks and 85,000 parameters."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, WIDTH), nn.Embedding(SEQUENCE_LENGTH, WIDTH)
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH)

    def loss(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.tokens(ids) + self.positions.weight[: ids.shape[1]])
        logits = self.norm(x) @ self.tokens.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def train(
    output: Path, weights: Mapping[str, Any], held_out: tuple[torch.Tensor, torch.Tensor], steps: int, seed: int
) -> float:
    """The loss on the target of a model that is trained over a snapshot with these weights."""
    torch.manual_seed(seed)
    loader = Loader(output, batch_size=ROWS, mixture=dict(weights), seed=seed)
    model = Model(512)
    for parameter in (model.tokens.weight, model.positions.weight):
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for _, batch in zip(range(steps), loader):
        model.loss(*(torch.from_numpy(np.asarray(batch[name])) for name in ("input_ids", "labels"))).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return float(model.loss(*held_out))


def rows_of(table: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The runs of a table of weights: name, and weights as a loader takes them."""
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            yield row.pop("run"), row


def datapipe(*arguments: object) -> str:
    done = subprocess.run([*CLI, *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def search(folder: Path, *, runs: int = 64, steps: int = 200, scale: float = 1.0, seeds: int = 5) -> dict[str, list[float]]:
    """The whole search. Returns the losses of each mixture, by seed."""
    mixture = prepare(folder, scale, tokens=steps * ROWS * SEQUENCE_LENGTH)
    held_out, output = target(folder), folder / "snapshot"
    datapipe("mixtures", "propose", "--around", mixture, "--runs", runs, "--to", folder / "swarm")
    with (folder / "swarm/results.csv").open("w") as file:
        file.write("run,loss\n")
        for number, (run, weights) in enumerate(rows_of(folder / "swarm/weights.csv")):
            file.write(f"{run},{train(output, weights, held_out, steps, seed=number)}\n")
            file.flush()
    print(datapipe("mixtures", "fit", folder / "swarm/results.csv", "--mixture", mixture, "--to", folder / "found"))
    [(_, natural), *_] = rows_of(folder / "swarm/weights.csv")
    mixtures = {"natural": natural, "uniform": dict.fromkeys(natural, 1)}
    if (folder / "found/weights.csv").exists():
        mixtures |= dict(rows_of(folder / "found/weights.csv"))
    losses = {
        name: [train(output, each, held_out, steps, 1000 + seed) for seed in range(seeds)] for name, each in mixtures.items()
    }
    (folder / "losses.json").write_text(json.dumps(losses, indent=1))
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, losses in search(Path(sys.argv[1])).items():
        print(f"{name:8}  {np.mean(losses):.4f} ± {np.std(losses, ddof=1):.4f}   {' '.join(f'{loss:.4f}' for loss in losses)}")
