"""The commands and programs of every document run, and what a document shows is what they print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from datapipe.config import load_mixture
from tests.support.document_files import DocumentFiles
from tests.support.documents import DOCUMENTS, ELSEWHERE, PROGRAMS, ROOT, blocks, commands, place_of, run_document

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in DOCUMENTS}
RUN = {"sh", "python"}
WITH_COMMANDS = [
    name for name, text in TEXTS.items() if any(block.language in RUN and not block.file for block in blocks(text))
]
NEEDS: dict[str, tuple[Any, ...]] = {
    "datapipe/loader/README.md": (pytest.mark.needs("torch"),),
    "datapipe/loader/parallel.md": (pytest.mark.needs("torch", "jax"),),
    "datapipe/models/README.md": (pytest.mark.needs("sklearn"),),
    "datapipe/report/card/README.md": (pytest.mark.needs("huggingface_hub"),),
    "mixtures/guides/cluster.md": (pytest.mark.ray, pytest.mark.needs("ray", "moto")),
    "mixtures/guides/mixture-search.md": (pytest.mark.needs("sklearn"),),
    "mixtures/guides/trained-filters.md": (pytest.mark.needs("sklearn"),),
    "mixtures/guides/trainers.md": (pytest.mark.needs("torch"),),
    "mixtures/guides/tutorial.md": (pytest.mark.needs("torch"),),
    "mixtures/guides/web-crawl.md": (pytest.mark.needs("resiliparse", "trafilatura"),),
    "README.md": (pytest.mark.needs("torch"),),
    "stages/filter/README.md": (pytest.mark.needs("sklearn"),),
}


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_of_a_document_runs(name: str) -> None:
    """Here, or in another place."""
    for block in blocks(TEXTS[name]):
        assert all(place_of(line) or re.match(rf"(\w+=\S* )?({PROGRAMS}) ", line) for line in commands(block)), block.text
        if not block.language and not name.endswith("reference.md"):
            assert not re.search(rf"^({PROGRAMS}|pip) ", block.text, re.M), f"```sh\n{block.text}"


def test_commands_that_run_elsewhere_do() -> None:
    lines = [line for text in TEXTS.values() for block in blocks(text) for line in commands(block)]
    assert [each for each in ELSEWHERE if not any(place_of(line) == each for line in lines)] == []
    assert [each for each in ELSEWHERE if each.there not in (ROOT / each.place).read_text(encoding="utf-8")] == []


LEFT_OUT = {
    "name": "x",
    "output": "out",
    "sources": {"web": {"path": "web.jsonl"}},
    "tokenizer": {"train": {"vocab_size": 400}},
    "pack": {"sequence_length": 128},
}
"""What a part of a mixture is completed with."""


@pytest.mark.parametrize("name", [name for name in TEXTS if "```yaml" in TEXTS[name]])
def test_examples_of_mixtures_load(name: str, tmp_path: Path) -> None:
    """Whole mixtures, parts of them, and each stage of a list of alternatives."""
    for block in blocks(TEXTS[name]):
        if block.language == "yaml" and block.file != "tokens.yaml":
            example = YAML(typ="safe").load(block.text)
            for part in [example] if isinstance(example, dict) else [{"stages": [stage]} for stage in example]:
                whole = LEFT_OUT | part
                if "snapshot:" in block.text or part.get("tokenizer") == "none":  # which have their own, or none
                    whole = {key: value for key, value in whole.items() if key in part or key not in ("tokenizer", "pack")}
                YAML(typ="safe").dump(whole, tmp_path / "mixture.yaml")
                load_mixture(tmp_path / "mixture.yaml")


class Model:
    """What the documents call `model`: takes tokens and labels, returns the loss."""

    def __init__(self) -> None:
        import torch

        self.torch, self.layers = torch, torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 256))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layers, name)

    def __call__(self, tokens: Any, labels: Any) -> Any:
        return self.torch.nn.functional.cross_entropy(self.layers(tokens).flatten(0, 1), labels.flatten())


def train(loader: Any) -> float:
    """What the documents call `train`: a loss that follows from the shares of the sources."""
    return float(np.mean([loader.batch(step)["input_ids"] for step in range(50)])) / 100


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> DocumentFiles:
    return DocumentFiles(tmp_path_factory.mktemp("documents"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")
@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in WITH_COMMANDS])
def test_document_runs_as_it_is_written(name: str, tmp_path: Path, files: DocumentFiles) -> None:
    if "/guides/" not in name:  # a guide begins in an empty folder
        files.copy("".join(block.text for block in blocks(TEXTS[name]) if block.language in RUN), tmp_path)
        for path in ROOT.iterdir():
            (tmp_path / path.name).symlink_to(path)
    given = {"train": train} | ({"model": Model()} if "model.parameters" in TEXTS[name] else {})
    list(run_document(ROOT / name, tmp_path, given))
