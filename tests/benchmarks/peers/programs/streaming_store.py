"""MosaicML streaming, from an object store, into an empty cache: FOLDER/few/mds is s3://rows/few/mds."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from epoch import measure
from streaming_loader import batches, write


def read(folder: Path) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as cache:
        yield from batches(remote=f"s3://rows/{folder.name}/mds", local=cache)


if __name__ == "__main__":
    measure(read, write)
