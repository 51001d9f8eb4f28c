"""What a small run writes, as digests: to compare versions of libraries (`.ci/versions`).

    python -m tests.support.version_digests inputs FOLDER     inputs for all versions, and a tokenizer
    python -m tests.support.version_digests digests FOLDER    digests with the libraries of this process, as JSON

Rows of files between steps count, and every byte of shards, of documents and of the tokenizer.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from datapipe.exchange.ranges import HASH_SPACE, read_rows
from datapipe.exchange.tables import read_table
from datapipe.records import versions
from datapipe.records.names import TOKENIZER
from datapipe.records.outputs import ExchangeFile, OutputFile, ShardFile, TableFile
from datapipe.storage.root import Root
from tests.support import corpora, runs

LIBRARIES = ("fastokens", "numba", "numpy", "pyarrow", "tokenizers", "xxhash")

STRANGE = [
    "Ärger im Büro: 12 % mehr Überstunden!\nDie Chefin sagt nichts.\n\nDie Chefin sagt nichts. Am Ende des Tages.",
    "今天天气很好。我们去公园散步吧。今天天气很好。我们去公园散步吧。",
    "naïve cafe\u0301 — e\u0301\u0323 \U0001f600\u200d\U0001f468 \u200b zero\u00a0width ﬁ Å \u212b \u1e9b\u0323",
    "각 \u1100\u1161\u11a8 ǆ ΣΑΣ İstanbul straße",
    "हिन्दी में लिखा हुआ पाठ। नमस्ते दुनिया! ภาษาไทยไม่มีช่องว่าง עברית العربية ١٢٣",
    "1984 2001-02-30 42.5e10 call +49 30 901820 or (202) 456-1111, write to jo@site.org",
    "",
    " \n\t ",
]

MIXTURE = """name: versions
seed: 7
output: OUTPUT
sources:
  lines: {path: "FOLDER/web/*.jsonl", keep: [url, score, date]}
  table: {path: "FOLDER/table.csv", weight: 2, keep: [score]}
  columns: {path: "FOLDER/rows.parquet", keep: [score], strata: {by: score, bounds: [0.5], repeat: [1, 2]}}
stages:
  - normalize.unicode
  - filter.language: {keep: [], write: true, top_k: 3}
  - filter.gopher_repetition
  - filter.length: {min_chars: 10}
  - dedup.exact
  - dedup.minhash
  - dedup.lines
  - redact.pii
validation: 5%
TAIL
execution: {split_bytes: 32KiB, bucket_bytes: 64KiB, check_disk: false}
"""

TAILS = {
    "trained": "tokenizer: {train: {vocab_size: 400, sample_bytes: 256KiB}}\npack: {sequence_length: 64}",
    "given": "tokenizer: {path: FOLDER/tokenizer.json}\npack: {sequence_length: 128, method: concat}",
    "text": "tokenizer: none\ndocuments: {format: jsonl.zst, target_bytes: 32KiB}",
}


def rows_of(root: Root, file: OutputFile) -> Any:
    """What a file holds, however it is compressed."""
    if file.path.endswith(".parquet"):
        return pq.read_table(root.path(file.path)).to_pylist()
    if isinstance(file, ExchangeFile):
        rows = read_rows(root, [file], (0,), (HASH_SPACE,))
        return [] if rows is None else rows.to_pylist()
    if isinstance(file, TableFile):
        return [row for batch in read_table(root, file) for row in batch.to_pylist()]
    if isinstance(file, ShardFile):
        with pa.ipc.open_file(root.path(file.path)) as reader:
            return reader.read_all().to_pylist()
    return root.read_bytes(file.path)


def write_inputs(folder: Path) -> None:
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(corpora.documents(1, 200)):
        more = {"url": f"https://site.org/{number}", "score": number / 7 % 1, "date": f"2024-0{1 + number % 9}-11"}
        rows.append({**row, **more, "text": f"{row['text']}\n{STRANGE[number % len(STRANGE)]}"})
    for number in range(3):
        corpora.write_jsonl(folder / f"web/{number}.jsonl", rows[number::4])
    lines = [",".join(f'"{row[name]}"' for name in ("id", "text", "score")) for row in rows[3::4]]
    (folder / "table.csv").write_text("\n".join(["id,text,score", *lines]) + "\n", encoding="utf-8")
    corpora.write_parquet(folder / "rows.parquet", rows[1::3])
    output = _run(folder, "trained", folder / "first").mixture.output
    shutil.copy(Path(output, TOKENIZER), folder / "tokenizer.json")
    shutil.rmtree(output)


def digests(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as work:
        for name in TAILS:
            finished = _run(folder, name, Path(work, name))
            root = Root(finished.mixture.output)
            for step in finished.plan.steps:
                hasher = xxhash.xxh3_64()
                for record in step.records:
                    for kind, files in sorted(record.outputs.items()):
                        rows = repr((kind, [rows_of(root, file) for file in files])).replace(record.fingerprint, "task")
                        hasher.update(rows.encode())
                found[f"{name}: rows of {step.id}"] = hasher.hexdigest()
            found |= {f"{name}: bytes of {shard.path}": shard.checksum for shard in finished.snapshot.shards}
            if finished.snapshot.has_tokens:
                found[f"{name}: bytes of {TOKENIZER}"] = xxhash.xxh3_64_hexdigest(root.read_bytes(TOKENIZER))
    return found


def _run(folder: Path, tail: str, output: Path) -> runs.Finished:
    path = output.parent / f"{output.name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = MIXTURE.replace("TAIL", TAILS[tail]).replace("FOLDER", str(folder)).replace("OUTPUT", str(output))
    path.write_text(text, encoding="utf-8")
    return runs.run_mixture(path, make_engine=runs.InProcess)


if __name__ == "__main__":
    command, place = sys.argv[1], Path(sys.argv[2]).resolve()
    if command == "inputs":
        write_inputs(place)
    else:
        here = {library: versions.version_here(library) for library in LIBRARIES}
        print(json.dumps({"versions": here, "digests": digests(place)}))
