"""The C files of this folder, compiled once and loaded into commands by LD_PRELOAD."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.storm.rounds import SkipError, Storm


def preloaded(storm: Storm, name: str) -> Path:
    """The library of NAME.c. Raises SkipError where there is no compiler."""

    def compiled() -> Path:
        library = storm.folder / f"{name}.so"
        source = Path(__file__).with_name(f"{name}.c")
        storm.folder.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, capture_output=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise SkipError(f"{name}.c cannot be compiled: {error}") from error
        return library

    return storm.once(name, compiled)
