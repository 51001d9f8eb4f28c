"""DeepSpeed on an output of `datapipe run`: ZeRO, two micro-batches a step, and its own checkpoint with the loader's state.

deepspeed --num_gpus 2 deepspeed_loop.py runs/quickstart --steps 100 --folder checkpoint

Give `deepspeed.initialize` no training_data: the loader reads the micro-batches of each process itself. The state serves any
number of processes.
"""

import argparse
from itertools import islice
from pathlib import Path

import deepspeed
import torch
from torch import nn

from datapipe.loader.torch import dataloader

MICRO_BATCH, MICRO_BATCHES = 4, 2
CONFIG = {
    "train_micro_batch_size_per_gpu": MICRO_BATCH,
    "gradient_accumulation_steps": MICRO_BATCHES,
    "zero_optimization": {"stage": 1},
    "steps_per_print": 1000,
}


def train(output: str, steps: int, folder: Path) -> list[float]:
    """Trains until `steps` are done; returns the losses of this process, of each micro-batch after the checkpoint."""
    deepspeed.init_distributed(
        dist_backend=None if torch.cuda.is_available() else "gloo"
    )  # first: the loader asks for its rank
    loader = dataloader(output, batch_size=MICRO_BATCH)
    vocab_size = loader.snapshot.tokenizer.vocab_size
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(vocab_size, 32), nn.GELU(), nn.Linear(32, vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    if folder.exists():
        _, saved = engine.load_checkpoint(str(folder))
        loader.load_state_dict(saved["loader"])
    losses = []
    for batch in islice(loader, steps * MICRO_BATCHES - loader.step):
        logits = engine(batch["input_ids"].to(engine.device))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].to(engine.device).flatten())
        engine.backward(loss)
        engine.step()  # the optimizer's, after the last micro-batch of a step
        losses.append(loss.item())
    engine.save_checkpoint(str(folder), client_state={"loader": loader.state_dict()})
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    parser.add_argument("--local_rank", type=int, help="set by DeepSpeed's launcher")
    arguments = parser.parse_args()
    print(train(arguments.output, arguments.steps, arguments.folder))
