"""A stage that crashes, stalls or raises on marked documents, and a corpus for it."""

from pathlib import Path

from tests.support import corpora, runs

MODULE = '''
import os
import re
import signal
from pathlib import Path

from datapipe.stage import DocumentBatch, Map


WAS_STOPPED = Path(FOLDER) / "was-stopped"


class Hostile(Map):
    """Ends its process, never returns or raises, where a document has the word."""

    def process(self, batch: DocumentBatch):
        text = " ".join(batch.texts.to_pylist())
        if "SEGFAULT" in text or ("TOGETHER" in text and batch.num_docs > 1):
            os.kill(os.getpid(), signal.SIGSEGV)
        for word, number in (("KILLS-ITSELF", signal.SIGKILL), ("TERMINATES", signal.SIGTERM)):
            if word in text:
                os.kill(os.getpid(), number)
        for word, process_id in (("STOPPED", os.getpid()), ("STOP-SUPERVISOR", os.getppid())):
            if word in text and not WAS_STOPPED.exists():
                WAS_STOPPED.touch()
                os.kill(process_id, signal.SIGSTOP)
        if "GREEDY" in text and batch.num_docs > 8 and os.environ.get("GREEDY"):
            held = b"x" * (1 << 30)
            signal.pause()
        if "RAISE-IT" in text:
            raise ValueError("raises")
        if "FOREVER" in text:
            re.match("(a+)+b", "a" * 64)  # 2**64 steps of one native call that never releases the interpreter
        return {"text": batch.texts}
'''


def stage_name(folder: Path) -> str:
    """The name of the stage in a mixture. Each folder has its own module: a process imports a module once."""
    return f"hostile_{folder.name}:Hostile"


def write_module(folder: Path) -> None:
    """Writes the stage's module into `folder`, where it also notes that it has stopped a process; once is enough."""
    (folder / f"hostile_{folder.name}.py").write_text(MODULE.replace("FOLDER", repr(str(folder))), encoding="utf-8")


def write_mixture(folder: Path, marks: dict[int, str]) -> Path:
    """A mixture over 60 documents.

    Args:
        marks: words to add to documents, by number.
    """
    rows = corpora.documents(5, 60, exact=0, near=0, short=0)
    for number, mark in marks.items():
        rows[number]["text"] += f" {mark}"
    corpora.write_jsonl(folder / "web.jsonl", rows)
    sources = f"  web:\n    path: {folder}/web.jsonl\n"
    tail = runs.TAIL.replace("validation: 5%", "max_quarantined: 50%")
    return runs.write_mixture(folder, sources, f"stages: [normalize.unicode, '{stage_name(folder)}']", tail)
