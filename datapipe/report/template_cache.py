"""Compiled templates in the cache of the machine: compiling those of a report takes longer than filling them."""

import platform
from pathlib import Path

import jinja2
import xxhash
from jinja2.bccache import Bucket, BytecodeCache

from datapipe.machine.cache import cache_home, keep, read_checked


class TemplateCache(BytecodeCache):
    """The code of templates, by their file and content. Each file has one kind of environment, `cells.rendered`."""

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fills the bucket where the cache has code of this template, of this Jinja and this Python."""
        if (data := read_checked(_path(bucket))) is not None:
            bucket.bytecode_from_string(data)

    def dump_bytecode(self, bucket: Bucket) -> None:
        keep(_path(bucket), bucket.bytecode_to_string())


def _path(bucket: Bucket) -> Path:
    made_of = "\0".join((jinja2.__version__, platform.python_version(), bucket.key, bucket.checksum))
    return cache_home() / "templates" / f"{xxhash.xxh3_128_hexdigest(made_of.encode())}.bin"
