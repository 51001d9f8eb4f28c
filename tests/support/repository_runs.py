"""Mixtures over repositories: files of code, and a tokenizer with tokens between files."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import AddedToken

from datapipe.columns import make_keys
from datapipe.steps.splits import file_hash
from tests.oracles.repositories import File
from tests.support import runs
from tests.support.chat_tokenizer import chat_tokenizer

SEPARATORS = ("<repo_name>", "<file_sep>")
NUM_INPUTS = 3
SCHEMA = pa.schema([(name, pa.string()) for name in ("repo", "path", "text", "license")])


def files(count: int = 240, seed: int = 3) -> list[dict[str, Any]]:
    """Files of repositories of different sizes, some without a name, some with equal paths."""
    rng = random.Random(seed)
    names = ["a/large", "a/large", "b/b", "c/é", "d/d", None, ""]
    folders = ["", "src/", "src/a/", "../", "deep/" * 60]
    return [
        {
            "repo": rng.choice(names),
            "path": rng.choice([None, *(f"{rng.choice(folders)}{rng.randrange(40)}.py" for _ in range(9))]),
            "text": f"def f{number}():\n    return '{rng.choice(['x', '<file_sep>', 'é漢'])}'" + "\n" * rng.randrange(2),
            "license": rng.choice(["MIT", "isc", None]),
        }
        for number in range(count)
    ]


def write(folder: Path, listed: Sequence[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(NUM_INPUTS):
        pq.write_table(
            pa.Table.from_pylist(listed[number::NUM_INPUTS], SCHEMA), folder / f"{number}.parquet", row_group_size=20
        )


def as_read(listed: Sequence[dict[str, Any]], source: str = "code") -> list[File]:
    """The files as the oracle takes them."""
    made = []
    for number in range(NUM_INPUTS):
        own = listed[number::NUM_INPUTS]
        keys = make_keys(file_hash(source, f"{number}.parquet"), pa.array(range(len(own)), pa.uint64()).to_numpy()).to_pylist()
        values = [{name: value or "" for name, value in row.items()} for row in own]
        made += [File(key, row["repo"], row["path"], row["text"], row["license"]) for key, row in zip(keys, values)]
    return made


def write_mixture(
    folder: Path, corpus: Path, options: str = "max_bytes: 1500", *, source: str = "", stages: str = "", tail: str = ""
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = chat_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SEPARATORS])
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    sources = f"  code:\n    path: {corpus}/*.parquet\n    repository: {{group_by: repo, {options}}}\n{source}"
    path = f'tokenizer: {{path: {folder}/tokenizer.json, eos: "</s>"}}\npack: {{sequence_length: 64}}\n'
    return runs.write_mixture(folder, sources, stages, tail or path)
