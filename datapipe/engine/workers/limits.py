"""What a worker may take: time without a sign of work, and memory.

The memory of a worker is what it has allocated (`RssAnon` and `RssShmem` of Linux), with that of the processes that it has
started: pages of mapped files are not counted, since the kernel takes them back. The supervisor looks several times a second,
and ends a worker that has more than it may. A limit of the kernel (RLIMIT_DATA, RLIMIT_AS) would count memory that libraries
reserve and never use, and a library that gets none aborts: a crash in the place of a message. A worker may exceed its limit by
what it allocates between two looks: 0.2 GB, measured with one that did nothing else. A look takes 0.08 ms.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from datapipe.config.execution import ExecutionSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a worker; see `ExecutionSpec`.

    Attributes:
        memory_bytes: None for no limit.
    """

    stall_s: float = 600.0
    memory_bytes: int | None = None

    @classmethod
    def of(cls, execution: ExecutionSpec) -> Limits:
        return cls(stall_s=execution.stall_s, memory_bytes=execution.memory)


NO_LIMITS = Limits()


def allocated_bytes(process_id: int) -> int:
    """Memory that a process and the children of its main thread have allocated; 0 where the system does not tell."""
    total = 0
    with suppress(OSError):
        status = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8", errors="replace")
        for line in status.splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) << 10
        children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text(encoding="ascii")
        total += sum(allocated_bytes(int(child)) for child in children.split())
    return total
