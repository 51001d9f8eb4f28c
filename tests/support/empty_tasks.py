"""Tasks for tests of what runs tasks: a sample of no documents, which ends at once."""

from datapipe.records.outputs import TableFile
from datapipe.steps.train import SampleTask


def sample(number: int = 0, documents: tuple[TableFile, ...] = ()) -> SampleTask:
    """The task of a number, which is its fingerprint."""
    about = {"step": "web/sample", "fingerprint": f"{number:064x}", "seed": 0, "before": ""}
    return SampleTask(**about, documents=documents, fraction=1.0, validation=0.0, pattern="gpt2")
