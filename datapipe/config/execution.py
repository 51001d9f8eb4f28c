"""The `execution` section of a mixture: how the work is cut into tasks, and what follows when one fails."""

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from datapipe.config.fields import ByteSize, Record

NODE_ID = "ray.io/node-id"
"""The label that Ray gives to each node."""

_VALUE = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?")
_LABEL = re.compile(rf"([a-zA-Z0-9.-]{{1,253}}/)?{_VALUE.pattern}")


class Resources(Record):
    """Resources that a task of a stage reserves on a Ray node. The local engine gives every task one core."""

    num_cpus: float = Field(default=1.0, ge=0, description="Number of CPU cores.")
    num_gpus: float = Field(default=0.0, ge=0, description="Number of GPUs; fractions share a GPU.")
    memory: ByteSize | None = Field(default=None, description="Memory to reserve.")


class ExecutionSpec(Record):
    """How the work is cut into tasks. It changes speed and memory, not the documents that are kept."""

    split_bytes: ByteSize = Field(default=32 << 20, ge=1024, description="Bytes of input text per task.")
    bucket_bytes: ByteSize = Field(
        default=256 << 20,
        ge=1024,
        description="Bytes of exchanged rows per task. A hot key with more is processed in chunks. A task takes at "
        "most twice as much memory plus 256 MiB, beside its imports.",
    )
    max_retries: int = Field(
        default=3, ge=0, description="Number of retries of a task that raises or runs out of memory. Then the run fails."
    )
    max_infrastructure_retries: int = Field(
        default=20, ge=0, description="Number of retries of a task after lost workers, or failures of disks and networks."
    )
    on_crash: Literal["fail", "quarantine"] = Field(
        default="fail",
        description="What happens when a document ends the process of a worker, as a crash of a native library does. "
        "fail: the run stops and names the document and the stage. quarantine: the document is quarantined "
        "and the run continues.",
    )
    stall_s: float = Field(
        default=600.0,
        gt=0,
        description="Seconds without progress after which a worker is ended and its task is tried again. A call over "
        "more than a batch of documents may take longer in proportion, while it computes.",
    )
    memory: ByteSize | None = Field(
        default=None,
        ge=64 << 20,
        description="Memory limit of a worker, including the processes that its stages start. A worker that takes more "
        "is ended, and its task is tried again with half the batch size. On Ray each task reserves this "
        "memory on its node.",
    )
    keep_work: Literal["none", "resume", "inspect"] = Field(
        default="resume",
        description="Which files under work/ are kept after the last task that reads them. resume: all. inspect: files "
        "for looking at documents, and for comparing files that are added later. none: files that the "
        "report is made of. Other files are deleted when their last reader is committed.",
    )
    check_disk: bool = Field(
        default=True,
        description="Whether a run is refused when the disk has less room than `datapipe plan` estimates. false: the "
        "run starts, and waits when the disk is full.",
    )
    cost_per_core_hour: float | None = Field(
        default=None, ge=0, description="Price of one core for one hour, in US dollars, for the report."
    )
    cost_per_node_hour: float | None = Field(
        default=None, ge=0, description="Price of one node of a Ray cluster for one hour, in US dollars, for the report."
    )
    resources: dict[str, Resources] = Field(
        default_factory=dict,
        description="Resources of tasks on Ray, by stage, or by tokenize, pack, tokenizer/train and write.",
    )
    placement: dict[str, str] = Field(
        default_factory=dict,
        description="Labels that a Ray node must have to get tasks, each with its value, as in `ray start --labels`. The local "
        "engine does not use them.",
    )

    @field_validator("placement")
    @classmethod
    def _has_labels_of_ray(cls, placement: dict[str, str]) -> dict[str, str]:
        for label, value in placement.items():
            if label == NODE_ID:
                raise ValueError(f"{NODE_ID} names one node, and tasks avoid nodes by it. Expected other labels")
            if not _LABEL.fullmatch(label) or not _VALUE.fullmatch(value):
                raise ValueError(
                    f"{label!r}: {value!r} is no label of Ray. Expected at most 63 letters, digits, -, _ and . on either side, "
                    f"and before the label at most a prefix that ends in /"
                )
        return placement

    def resources_for(self, uses: Sequence[str]) -> tuple[tuple[str, float], ...]:
        """The largest request of the stages in a task, as (resource, amount); empty if no stage makes one."""
        requests = [self.resources[name] for name in uses if name in self.resources]
        if not requests:
            return ()
        names = Resources.model_fields
        largest = {name: max(float(getattr(request, name) or 0) for request in requests) for name in names}
        return tuple((name, amount) for name, amount in largest.items() if amount or name != "memory")
