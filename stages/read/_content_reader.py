"""The base of readers of compressed content: how much memory its decompression may take."""

from pydantic import Field

from datapipe.stage import Reader
from datapipe.stage.decoding import MOST_WINDOW_BYTES


class ContentReader(Reader):
    """Reads the decompressed content of files."""

    max_window_bytes: int = Field(
        default=MOST_WINDOW_BYTES, ge=1 << 10, le=1 << 31, description="Largest window of a Zstandard file, held in memory."
    )
