"""Lightning on an output of `datapipe run`; the loader's state is part of Lightning's own checkpoint.

python lightning_module.py runs/quickstart --steps 100 --checkpoint last.ckpt
torchrun --nproc-per-node 2 lightning_module.py runs/quickstart --steps 100 --checkpoint last.ckpt
"""

import argparse
import os
from pathlib import Path

import lightning
import torch
from torch import nn

from datapipe.loader.torch import StreamingDataLoader, dataloader


class Model(lightning.LightningModule):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(vocab_size, 32), nn.GELU(), nn.Linear(32, vocab_size))
        self.losses: list[float] = []

    def training_step(self, batch, number):
        logits = self.layers(batch["input_ids"])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Data(lightning.LightningDataModule):
    """Restores the loader from every checkpoint. Lightning itself does so within an epoch alone."""

    def __init__(self, loader: StreamingDataLoader) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self):
        return self.loader

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)


def train(output: str, steps: int, checkpoint: Path) -> list[float]:
    """Trains until `steps` are done, those before the checkpoint included; returns the losses of the others."""
    lightning.seed_everything(0, verbose=False)
    loader = dataloader(output, batch_size=4)  # the rank is torchrun's; else make the loader in `train_dataloader`
    model = Model(loader.snapshot.tokenizer.vocab_size)
    trainer = lightning.Trainer(
        max_steps=steps, limit_train_batches=10, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )  # fmt: skip
    trainer.fit(model, Data(loader), ckpt_path=checkpoint if checkpoint.exists() else None)
    trainer.save_checkpoint(checkpoint)
    return model.losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("last.ckpt"))
    print(train(**vars(parser.parse_args())))
