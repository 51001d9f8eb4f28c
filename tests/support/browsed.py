"""An output with documents of every fate, personal data in every corner of them, and requests to the endpoints about it.

folder  ─▶  files with planted data  ─▶  a run (`finished.py`)  ─▶  `Browsed`: the endpoints, by name and options
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipe.explore.documents import Inspector
from datapipe.explore.endpoints import Api
from datapipe.explore.server import Request
from tests.support import corpora

EMAIL, PHONE = "planted.person@mailhost-of-ours.org", "+1 415 555 2671"
SECRET = "ghp_" + "aZ7kQ2mX9wB4nR6tY1uP3sD5fG8hJ0LcVe2b"
PLANTED = (EMAIL, PHONE, SECRET, "planted.person")
_HIDDEN = EMAIL.replace("host", "host\x07")
"""The run removes the control character, so that its redaction sees the address."""

_MAIL = f"write to {EMAIL} or call {PHONE}, the token is {SECRET} and nothing else"
_FRAME = f"This line stands in every page of the site, with {EMAIL} in it, so that it is cut out of all but one."

FUNCTIONS = """
def picky(record):
    if "raise an error" in record["text"]:
        raise ValueError("cannot take " + record["text"])
    return True
"""

MIXTURE = """
name: browsed
seed: 3
output: {folder}/out
max_quarantined: 50%
sources:
  web: {{path: "{folder}/web-*.jsonl", keep: [url, title]}}
  plain: {{path: "{folder}/plain.jsonl", stages: [filter.length: {{min_words: 5}}]}}
stages:
  - normalize.unicode
  - filter.length: {{min_words: 9, max_words: 400}}
  - filter.gopher_repetition: {{mode: tag}}
  - '{module}:picky'
  - dedup.exact
  - dedup.minhash
  - dedup.lines: {{max_removed_share: 0.9}}
  - redact.pii
  - redact.secrets
validation: 0%
tokenizer: {{train: {{vocab_size: 400, sample_bytes: 64KiB}}}}
pack: {{sequence_length: 64}}
execution: {{split_bytes: 8KiB, bucket_bytes: 64KiB}}
"""


def rows() -> Iterator[dict[str, Any]]:
    """Documents of source web: kept, cut, short, long, duplicates, and one that raises; all with planted data."""
    rng = random.Random(4)
    for number in range(40):
        prose = corpora.prose(rng, 60 + number)
        frame = _FRAME + "\n" if number % 4 == 0 else ""
        yield {"id": f"{EMAIL}/{number}", "url": f"https://a.org/{number}?of={EMAIL}", "title": f"{PHONE} {number}"} | {
            "text": f"{frame}{prose}\n{_MAIL} in document {number}.\n"
        }
    yield from (_row(f"short-{number}", f"short: {_HIDDEN} {PHONE} {SECRET}{' more' * number}") for number in range(5))
    yield _row("long", corpora.prose(rng, 500) + _MAIL)
    copied = corpora.prose(rng, 80) + f"\n{_MAIL}."
    yield from (_row(f"copy-{number}", copied) for number in range(3))
    near = corpora.prose(rng, 200)
    yield from (_row(f"near-{number}", f"{near}\n{_MAIL} near {number}") for number in range(3))
    yield _row("raises", f"raise an error over {_MAIL}, of nine words and some")


def _row(own_id: str, text: str) -> dict[str, Any]:
    return {"id": own_id, "url": f"https://b.org/{own_id}", "title": EMAIL, "text": text}


@dataclass(frozen=True)
class Browsed:
    """An output, and the endpoints about it."""

    folder: Path
    api: Api

    def get(self, *path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        """The answer of an endpoint; of a stream its lines, under "lines"."""
        query = {name: str(value) for name, value in options.items()}
        answer = self.api(Request(path=path, query=query, body=body))
        answer = dict(answer) if isinstance(answer, dict) else {"lines": list(answer)}  # type: ignore[arg-type]
        return json.loads(json.dumps(answer, allow_nan=False))

    def listed(self, **options: Any) -> list[dict[str, Any]]:
        return self.get("documents", limit=500, **options)["documents"]


def write(folder: Path) -> Path:
    """Writes the inputs, the functions and the mixture; its file. The functions are in `folder`, which must be on the path."""
    documents = list(rows())
    for number in range(2):
        corpora.write_jsonl(folder / f"web-{number}.jsonl", documents[number::2])
    with open(folder / "web-0.jsonl", "a") as stream:
        stream.write(json.dumps({"text": 5, "of": _MAIL}) + "\n" + '{"text": "' + f"{_MAIL} and a line that never ends\n")
        stream.write('{"text": "' + "x" * 4060 + f" {EMAIL} and then a line that never ends\n")
    corpora.write_jsonl(folder / "plain.jsonl", [{"id": f"plain-{n}", "text": "word " * n} for n in range(1, 12)])
    module = f"functions_of_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(FUNCTIONS)
    path = folder / "mixture.yaml"
    path.write_text(MIXTURE.format(folder=folder, module=module))
    return path


def browse(output: Path) -> Browsed:
    """The endpoints about an output."""
    return Browsed(output.parent, Api(Inspector.open(str(output))))
