"""A loop of JAX over any number of processes, which takes batch n + 1 while the devices compute step n.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python -m tests.examples.jax_loop runs/quickstart --steps 100

    sharding of the batch ─▶ mesh_of ─▶ Loader: the rows of this process, int32 ─▶ make_array_from_process_local_data ─▶ step

Five things go wrong in silence elsewhere, and are right here:

- Rows come from the sharding (`mesh_of`), not from the number of the process: where a model axis goes over processes, they read
  the same rows.
- `global_shape` is given: without it, JAX guesses the shape from the rows of one process.
- The tokens are int32: JAX would cut int64 down, with a warning for each array.
- Labels are masked: optax and `take_along_axis` read label -100 as class V - 100.
- The state names the step, since a batch is ahead when it is saved.
"""

import argparse
import json
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from datapipe.loader import Loader
from datapipe.loader.jax import mesh_of

GLOBAL_BATCH, WIDTH, RATE = 8, 16, 0.5
FIELDS = ("input_ids", "labels", "step")

Batch = dict[str, Any]


def masked_loss(parameters: Batch, batch: Batch) -> jax.Array:
    """The mean over the labels of the global batch; optax has `softmax_cross_entropy_with_integer_labels(logits, classes)`."""
    logits = parameters["embedding"][batch["input_ids"]] @ parameters["head"]  # (B, S, V): your model's
    counts = batch["labels"] != -100
    classes = jnp.where(counts, batch["labels"], 0)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), classes[..., None], axis=-1)[..., 0]
    return jnp.where(counts, losses, 0).sum() / jnp.maximum(counts.sum(), 1)


@jax.jit
def update(parameters: Batch, batch: Batch) -> tuple[Batch, jax.Array]:
    loss, gradients = jax.value_and_grad(masked_loss)(parameters, batch)
    return jax.tree.map(lambda value, gradient: value - RATE * gradient, parameters, gradients), loss


def on_devices(sharding: NamedSharding, batch: Batch) -> Batch:
    """The global batch, of which each process gives its rows. A smaller last batch is filled up with rows without labels."""
    shape = (GLOBAL_BATCH, batch["input_ids"].shape[1])
    num_rows = GLOBAL_BATCH // mesh_of(sharding).data_size
    filled = {"input_ids": filled_up(batch["input_ids"], num_rows, 0), "labels": filled_up(batch["labels"], num_rows, -100)}
    return {name: jax.make_array_from_process_local_data(sharding, rows, global_shape=shape) for name, rows in filled.items()}


def filled_up(rows: np.ndarray, num_rows: int, filler: int) -> np.ndarray:
    if len(rows) == num_rows:
        return rows
    out = np.full((num_rows, rows.shape[1]), filler, rows.dtype)
    out[: len(rows)] = rows
    return out


def train(output: str, steps: int, checkpoint: Path) -> list[float]:
    """Trains to step `steps`, from the checkpoint if there is one. Returns the losses of these steps and the validation's."""
    devices = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(devices, PartitionSpec("data"))
    open_loader = partial(Loader, output, global_batch_size=GLOBAL_BATCH, mesh=mesh_of(sharding), dtype="int32", fields=FIELDS)
    loader = open_loader()
    if checkpoint.exists():
        parameters, state = pickle.loads(checkpoint.read_bytes())
        loader.load_state_dict(json.loads(state))
    else:
        parameters = new_parameters(loader.snapshot.tokenizer.vocab_size)
    parameters = jax.device_put(parameters, NamedSharding(devices, PartitionSpec()))

    losses, batch = [], next(loader)
    while True:
        parameters, loss = update(parameters, on_devices(sharding, batch))  # returns before the devices are done
        ahead = next(loader)
        losses.append(float(loss))
        if batch["step"] + 1 == steps:
            break
        batch = ahead
    if jax.process_index() == 0:
        state = loader.state_dict(step=batch["step"] + 1)  # without the step, it would count `ahead`
        checkpoint.write_bytes(pickle.dumps((jax.tree.map(np.asarray, parameters), json.dumps(state))))
    held_out = [masked_loss(parameters, on_devices(sharding, each)) for each in open_loader(split="validation")]
    return [*losses, *map(float, held_out)]


def new_parameters(vocab_size: int) -> Batch:
    generator = np.random.default_rng(0)
    shapes = {"embedding": (vocab_size, WIDTH), "head": (WIDTH, vocab_size)}
    return {name: generator.standard_normal(shape, np.float32) / 4 for name, shape in shapes.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pkl"))
    arguments = parser.parse_args()
    begin()
    print(train(arguments.output, arguments.steps, arguments.checkpoint))


def begin() -> None:
    """Joins the processes, where there are several."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(address, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
