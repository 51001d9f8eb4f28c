"""Several processes share the tokens of each row. Each has a part of every document, and gathers the keys and values of all.

torchrun --nproc-per-node 2 context_parallel.py runs/quickstart --steps 100 --checkpoint checkpoint.pt

Attention here is a mask over gathered tokens, which is short and runs anywhere. Kernels for variable-length attention take the
fields cu_seqlens and max_seqlen instead, which are those of this process's own tokens.
"""

import argparse
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from datapipe.loader import Loader
from datapipe.loader.share import Mesh

FIELDS = ("input_ids", "labels", "position_ids", "segment_ids", "global_target_tokens")


class Gathered(torch.autograd.Function):
    """The tokens (T, …) of all processes, one after another. Backward, each gets the sum of the gradients of its tokens."""

    @staticmethod
    def forward(ctx, values: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradients: torch.Tensor) -> torch.Tensor:
        total = gradients.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


gathered = Gathered.apply


class Model(nn.Module):
    """Embeddings of tokens and positions, one layer of attention within documents, and a head."""

    def __init__(self, vocab_size: int, sequence_length: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(sequence_length, width)
        self.attention, self.head = nn.Linear(width, 3 * width), nn.Linear(width, vocab_size)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, segment_ids: torch.Tensor) -> torch.Tensor:
        inputs = self.tokens(input_ids) + self.positions(position_ids)
        queries, keys, values = self.attention(inputs).chunk(3, dim=-1)
        same_document = segment_ids[:, None] == gathered(segment_ids)[None]
        earlier = gathered(position_ids)[None] <= position_ids[:, None]
        mixed = nn.functional.scaled_dot_product_attention(
            queries[None], gathered(keys)[None], gathered(values)[None], attn_mask=(same_document & earlier)[None]
        )
        return self.head(inputs + mixed[0])


def train(output: str, steps: int, checkpoint: Path) -> list[float]:
    """Trains until `steps` are done, those before the checkpoint included; returns this process's part of the other losses."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = Mesh(data_rank=0, data_size=1, context_rank=rank, context_size=size, layout="document_zigzag")
    loader = Loader(output, global_batch_size=4, mesh=mesh, fields=FIELDS)
    torch.manual_seed(0)
    inner = Model(loader.snapshot.tokenizer.vocab_size, loader.snapshot.sequence_length)
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        inner.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])  # of any process, with any number of them
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for batch in islice(loader, steps - loader.step):
        tokens, labels, positions, segments = (torch.from_numpy(batch[field])[0] for field in FIELDS[:4])  # (T,) each
        logits = model(tokens, positions, segments)
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum") / batch["global_target_tokens"]
        (loss * size).backward()  # DDP divides the sum of the gradients by the number of processes
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if rank == 0:
        torch.save({"model": inner.state_dict(), "loader": loader.state_dict()}, checkpoint)
    dist.barrier()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    dist.init_process_group("gloo")
    print(train(**vars(parser.parse_args())))
    dist.destroy_process_group()
