"""The worker processes of Ray on this machine that run one of our tasks."""

from pathlib import Path


def ray_workers() -> list[int]:
    """Their process ids: Ray names a worker process after its task."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except (FileNotFoundError, ProcessLookupError):
            continue
        if command.startswith(b"ray::") and (b"/read" in command or b"/apply" in command):
            found.append(int(entry.name))
    return found
