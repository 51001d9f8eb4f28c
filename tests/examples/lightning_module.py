"""Lightning on an output of `datapipe run`; the loader's state is part of Lightning's own checkpoint.

python lightning_module.py runs/quickstart --steps 100 --checkpoint last.ckpt
"""

import argparse
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from datapipe.loader.torch import StreamingDataset


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
    def __init__(self, dataset: StreamingDataset) -> None:
        super().__init__()
        self.dataset = dataset

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=None)

    def state_dict(self):  # Lightning takes a batch ahead, so its count of steps is what counts
        return self.dataset.state_dict(steps_done=self.trainer.global_step * self.trainer.accumulate_grad_batches)

    def load_state_dict(self, state):
        self.dataset.load_state_dict(state)


def train(output: str, steps: int, checkpoint: Path) -> list[float]:
    """Trains until `steps` are done, those before the checkpoint included; returns the losses of the others."""
    lightning.seed_everything(0, verbose=False)
    dataset = StreamingDataset(output, batch_size=4)
    model = Model(dataset.snapshot.tokenizer.vocab_size)
    trainer = lightning.Trainer(max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(model, Data(dataset), ckpt_path=checkpoint if checkpoint.exists() else None)
    trainer.save_checkpoint(checkpoint)
    return model.losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("last.ckpt"))
    print(train(**vars(parser.parse_args())))
