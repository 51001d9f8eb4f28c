"""A training loop that moves with its corpus, in its own process that may be killed at any time:

    python -m tests.support.growing_trainer OUTPUT FOLDER WORLD

OUTPUT is a folder or a service. All ranks live in this process, as many as WORLD; at every eighth step the first of them looks
for a newer snapshot, and the others move to it. FOLDER gets a checkpoint every five steps, and a line for each step: digest,
loss and snapshot. The loop ends when FOLDER/stop exists.
"""

import hashlib
import json
import os
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import torch

from datapipe.loader import Loader

SIZE = 12


def main(output: str, folder: Path, world: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(400, 8), torch.nn.Linear(8, 400))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    saved = torch.load(folder / "checkpoint.pt", weights_only=True) if (folder / "checkpoint.pt").exists() else None
    snapshot = saved["loader"]["snapshot"] if saved else None
    fields = ("input_ids", "labels", "step")
    options = {"global_batch_size": SIZE, "world_size": world, "fields": fields, "snapshot": snapshot}
    ranks = [Loader(output, rank=rank, **options) for rank in range(world)]
    if saved:
        model.load_state_dict(saved["model"])
        for rank in ranks:
            rank.load_state_dict(saved["loader"])
    step_time = threading.Event()
    with open(folder / "steps.jsonl", "a") as log:
        while not (folder / "stop").exists():
            step = ranks[0].step
            if step % 8 == 0:
                found = ranks[0].advance()
                for rank in ranks[1:]:
                    rank.advance(found)
            parts = [next(rank) for rank in ranks]
            assert {part["step"] for part in parts} == {step}
            ids, labels = (np.concatenate([part[field] for part in parts]) for field in ("input_ids", "labels"))
            loss = torch.nn.functional.cross_entropy(
                model(torch.from_numpy(ids)).flatten(0, 1), torch.from_numpy(labels).flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told = {"step": step, "digest": digest(ids, labels), "loss": loss.item(), "snapshot": ranks[0].snapshot.fingerprint}
            log.write(json.dumps(told) + "\n")
            log.flush()
            if ranks[0].step % 5 == 0:
                torch.save({"model": model.state_dict(), "loader": ranks[0].state_dict()}, folder / "checkpoint.new")
                os.replace(folder / "checkpoint.new", folder / "checkpoint.pt")
            step_time.wait(0.01)
    (folder / "state.json").write_text(json.dumps(ranks[0].state_dict()))
    for rank in ranks:
        rank.close()


def digest(ids: np.ndarray, labels: np.ndarray) -> str:
    return hashlib.sha256(ids.tobytes() + labels.tobytes()).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
