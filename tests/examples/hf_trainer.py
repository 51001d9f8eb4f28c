"""Hugging Face's Trainer on an output of `datapipe run`. Run it again and it goes on from its last checkpoint.

python hf_trainer.py runs/quickstart --steps 100 --folder checkpoints
torchrun --nproc-per-node 2 hf_trainer.py runs/quickstart --steps 100 --folder checkpoints
"""

import argparse
import json
from pathlib import Path

from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from datapipe.loader.torch import StreamingDataLoader, dataloader


class StreamingTrainer(Trainer):
    """Takes batches as the loader makes them: whole, in order, and each process its own rows."""

    def __init__(self, *arguments, loader: StreamingDataLoader, **options) -> None:
        super().__init__(*arguments, callbacks=[SaveLoader(loader)], **options)
        self.loader = loader

    def get_train_dataloader(self) -> DataLoader:
        return self.loader


class SaveLoader(TrainerCallback):
    """Puts the loader's state beside each checkpoint."""

    def __init__(self, loader: StreamingDataLoader) -> None:
        self.loader = loader

    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:  # one rank's state serves all ranks
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            path.write_text(json.dumps(self.loader.state_dict()))


def train(output: str, steps: int, folder: Path) -> list[float]:
    """Trains until `steps` are done; returns the losses of all steps, those before the checkpoint included."""
    options = TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=5, logging_steps=1, report_to="none",
        lr_scheduler_type="constant", gradient_accumulation_steps=2,
        ignore_data_skip=True,  # the loader goes on by itself, at once; the Trainer would read all batches again
    )  # fmt: skip
    loader = dataloader(output, batch_size=4, labels="unshifted")  # the model shifts
    snapshot = loader.snapshot
    saved = sorted(folder.glob("checkpoint-*/loader.json"), key=lambda path: path.stat().st_mtime)
    if saved:
        loader.load_state_dict(json.loads(saved[-1].read_text()))
    set_seed(0)
    config = GPT2Config(
        vocab_size=snapshot.tokenizer.vocab_size, n_positions=snapshot.sequence_length, n_embd=32, n_layer=1, n_head=2
    )
    trainer = StreamingTrainer(GPT2LMHeadModel(config), options, loader=loader)
    trainer.train(resume_from_checkpoint=str(saved[-1].parent) if saved else None)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    print(train(**vars(parser.parse_args())))
