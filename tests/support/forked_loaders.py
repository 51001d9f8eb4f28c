"""A DataLoader whose workers are forked, over a service: python -m tests.support.forked_loaders URL {fresh,reading}

Prints the shape of the first batch, or the error of a worker.
"""

import sys
import warnings

import torch

from datapipe.loader import Loader
from datapipe.loader.torch import StreamingDataset


def main(url: str, parent: str) -> None:
    warnings.simplefilter("ignore")
    reading = Loader(url, batch_size=8)
    if parent == "reading":
        next(reading)
    context = torch.multiprocessing.get_context("fork")
    dataset = StreamingDataset(url, batch_size=8)
    batches = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    try:
        print(tuple(next(iter(batches))["input_ids"].shape), flush=True)
    except Exception as error:
        print(error, flush=True)
    reading.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
