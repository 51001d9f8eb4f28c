"""Hugging Face's Trainer on an output of `datapipe run`. Run it again and it goes on from its last checkpoint.

python hf_trainer.py runs/quickstart --steps 100 --folder checkpoints
"""

import argparse
import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from datapipe.loader.torch import StreamingDataset


class StreamingTrainer(Trainer):
    """Takes whole batches as they are, so neither collates nor shards nor shuffles them."""

    def get_train_dataloader(self) -> DataLoader:
        # Its own generator: a DataLoader draws a number to start with, and dropout would not go on as it was.
        return DataLoader(self.train_dataset, batch_size=None, generator=torch.Generator())


class SaveLoader(TrainerCallback):
    """Puts the loader's state beside each checkpoint. The Trainer takes batches ahead, so its count of steps is what counts."""

    def __init__(self, dataset: StreamingDataset) -> None:
        self.dataset = dataset

    def on_save(self, args, state, control, **_):
        batches = state.global_step * args.gradient_accumulation_steps
        path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
        path.write_text(json.dumps(self.dataset.state_dict(steps_done=batches)))


def train(output: str, steps: int, folder: Path) -> list[float]:
    """Trains until `steps` are done; returns the losses of all steps, those before the checkpoint included."""
    dataset = StreamingDataset(output, batch_size=4, labels="unshifted")  # the model shifts
    vocab_size, length = dataset.snapshot.tokenizer.vocab_size, dataset.snapshot.sequence_length
    saved = sorted(folder.glob("checkpoint-*/loader.json"), key=lambda path: path.stat().st_mtime)
    if saved:
        dataset.load_state_dict(json.loads(saved[-1].read_text()))
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, n_positions=length, n_embd=32, n_layer=1, n_head=2))
    options = TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=5, logging_steps=1, report_to="none",
        lr_scheduler_type="constant",
        ignore_data_skip=True,  # the dataset goes on by itself, at once; the Trainer would read all batches again
    )  # fmt: skip
    trainer = StreamingTrainer(model, options, train_dataset=dataset, callbacks=[SaveLoader(dataset)])
    trainer.train(resume_from_checkpoint=str(saved[-1].parent) if saved else None)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    print(train(**vars(parser.parse_args())))
