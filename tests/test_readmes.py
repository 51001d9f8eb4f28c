"""The READMEs are true in what can be checked without running them: paths, links, modules and length."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from datapipe.cli.main import app
from datapipe.config.catalogue import describe, stage_names
from datapipe.config.yaml import parse_yaml
from tests.support.documents import DOCUMENTS, ROOMS, ROOT

STAGES = "|".join(sorted({name.partition(".")[0] for name in stage_names()}))
MOST_LINES = {"README.md": 150, "datapipe/README.md": 120}


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def prose(readme: Path) -> str:
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", readme.read_text(encoding="utf-8"), flags=re.S | re.M)


def anchors(readme: Path) -> set[str]:
    """The fragments that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(readme), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def named_paths(readme: Path) -> list[str]:
    """Words like `engine/driver.py` or `tests/golden/`: paths from the root, or from the folder of the README."""
    beside = {path.name for path in readme.parent.iterdir() if path.is_dir()}
    words = re.findall(r"`([\w.\-]+(?:/[\w.\-]+)*/?)`", prose(readme))
    return [word for word in words if "/" in word and word.partition("/")[0] in {*ROOMS, *beside} - {"runs"}]


def test_readmes_found_are_those_of_every_room() -> None:
    assert {"README.md", "datapipe/README.md", "stages/README.md", "mixtures/README.md"} <= set(names(DOCUMENTS))


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_readme_paths_exist(name: str) -> None:
    readme = ROOT / name
    candidates = {path: {ROOT / path, readme.parent / path} for path in named_paths(readme)}
    missing = [path for path, files in candidates.items() if not any(file.exists() for file in files)]
    assert missing == []


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_readme_links_lead_somewhere(name: str) -> None:
    readme = ROOT / name
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)]*)\)", prose(readme)):
        path, _, fragment = link.partition("#")
        target = (readme.parent / path).resolve() if path else readme
        if not target.exists() or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_readme_leads_to_every_document() -> None:
    seen, left = set(), [ROOT / "README.md"]
    while left:
        document = left.pop()
        if document.suffix == ".md" and document not in seen:
            seen.add(document)
            links = re.findall(r"\]\(([\w./-]+)[^)]*\)", prose(document))
            left += [path for link in links if (path := (document.parent / link).resolve()).is_file()]
    assert names([path for path in DOCUMENTS if path not in seen]) == []


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_readme_modules_exist(name: str) -> None:
    modules = re.findall(r"python -m (tests[\w.]*)", (ROOT / name).read_text(encoding="utf-8"))
    paths = {module: ROOT / module.replace(".", "/") for module in modules}
    is_there = {module: path.with_suffix(".py").is_file() or (path / "__main__.py").is_file() for module, path in paths.items()}
    assert [module for module in modules if not is_there[module]] == []


@pytest.mark.parametrize("name", list(MOST_LINES))
def test_readme_is_short(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= MOST_LINES[name]


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_readme_options_of_stages_exist(name: str) -> None:
    text, unknown = (ROOT / name).read_text(encoding="utf-8"), []
    for stage, given in re.findall(rf"(?:`|- )((?:{STAGES})\.\w+): (\{{[^{{}}\n…]*\}})", text):
        options = {option.name for option in describe(stage).options} | {"as", "when"}
        unknown += [f"{stage}: {key}" for key in parse_yaml(given, name).data if key not in options]
    assert unknown == []


def commands(document: Path) -> list[list[str]]:
    """The arguments of each `datapipe …` of a document: in blocks of commands, in comments of mixtures, and in sentences."""
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^ *```(?:sh|console|yaml|text)\n(.*?)```", text, re.S | re.M)
    quoted = r"(?:'[^']*'|\"[^\"]*\"|[^'\"\n])*"  # to the end of the line, where no quotation goes on
    found = [
        line
        for block in blocks
        for line in re.findall(rf"^(?:#? *\w+=\S+ |# +|\$ )*datapipe ([a-z-]+(?: {quoted})?)$", block, re.M)
    ]
    found += re.findall(r"`(?:\w+=\S+ )*datapipe ([a-z][^`\n]*)`", re.sub(r"^ *```.*?```", "", text, flags=re.S | re.M))
    words = [["1" if word == "N" else word for word in shlex.split(line, comments=True)] for line in found]
    return [list(takewhile(lambda word: word not in ("&&", "|", "&", ">"), each)) for each in words]


@pytest.fixture(scope="module")
def command_line() -> Any:
    """The command line, whose commands take their arguments and do nothing."""
    groups: list[Any] = [get_command(app)]
    for group in groups:
        for command in group.commands.values():
            command.callback = None
            groups += [command] if hasattr(command, "commands") else []
    return groups[0]


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_commands_of_documents_are_those_of_the_command_line(name: str, command_line: Any) -> None:
    wrong = []
    for arguments in commands(ROOT / name):
        try:
            command_line.main(arguments, standalone_mode=False)
        except Exception as error:
            if not (message := getattr(error, "format_message", None)):  # of click, which typer may bring itself
                raise
            if not re.match("Missing |.*requires an argument", message()):  # a sentence names an option without more
                wrong.append(f"{arguments}: {message()}")
    assert wrong == []


def test_reference_is_that_of_the_code() -> None:
    done = subprocess.run([sys.executable, ".ci/reference", "--check"], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_table_of_trainers_has_the_installed_versions() -> None:
    locked = (ROOT / ".ci/requirements-test.txt").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\w ]+ \| ([\w.]+)\S* \| \[`", (ROOT / "deploy/support.md").read_text(encoding="utf-8"), re.M)
    assert rows
    assert [
        number for number in rows if f"=={number}" not in locked + (ROOT / ".ci/torch.txt").read_text(encoding="utf-8")
    ] == []
