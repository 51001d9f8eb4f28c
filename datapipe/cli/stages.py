"""`datapipe stages` and `datapipe schema`: the stages and keys of a mixture file.

On a terminal paragraphs and tables of docstrings are set to its width. In a pipe lines are as long as they are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from datapipe.config.catalogue import StageDescription
    from datapipe.stage.base import Stage

_SENTENCE_END = re.compile(r"(?<=[.!?]) ")
_INDENT = 4


def stages(
    name: Annotated[str, typer.Argument(help="A stage or a format: its documentation and options.")] = "",
) -> None:
    """List every stage and reader, or print the options of one."""
    from datapipe.config import catalogue
    from datapipe.report.layout import Screen, print_text

    console = Screen()
    if name:
        _print_stage(name, console)
        return
    described = [catalogue.describe(name) for name in catalogue.stage_names()]
    readers = [(name, catalogue.describe(f"read.{name}")) for name in catalogue.formats()]
    _print_names([(stage.name, stage) for stage in described], console)
    print_text("\nreaders, by the `format:` of a source:", console)
    _print_names(readers, console)
    print_text("\n`datapipe stages NAME` prints the options of one.", console)


def _print_names(named: list[tuple[str, StageDescription]], console: Console) -> None:
    from datapipe.report.layout import print_text

    name_width = max(len(name) for name, _ in named)
    kind_width = max(len(stage.kind) for _, stage in named)
    for name, stage in named:
        sentence = _SENTENCE_END.split(stage.summary, maxsplit=1)[0]
        if console.is_terminal:
            print_text(f"{name}  ({stage.kind})\n{' ' * _INDENT}{sentence}", console, hanging=0)
        else:
            print_text(f"{name:<{name_width}}  {stage.kind:<{kind_width}}  {sentence}", console)


def _print_stage(name: str, console: Console) -> None:
    """Prints a stage: its summary, the docstring of its module, and its options. What it has not takes no line."""
    from datapipe.config import catalogue
    from datapipe.report.layout import print_text

    described = catalogue.describe(f"read.{name}" if name in catalogue.formats() else name)
    print_text(f"{described.name}  ({described.kind})", console)
    if described.summary and described.summary != " ".join(described.details.split()):
        print_text(f"{' ' * _INDENT}{described.summary}", console, hanging=0)
    for block in re.split(r"\n\s*\n", described.details) if described.details else ():
        print_text("", console)
        _print_block(block, console)
    if described.options:
        print_text("", console)
    for option in described.options:
        print_text(f"{' ' * 6}{option.name}: {option.type} = {option.default}", console)
        if option.description:
            print_text(f"{' ' * 10}{option.description}", console, hanging=0)


def _print_block(block: str, console: Console) -> None:
    """Prints the lines of a docstring between two empty ones: prose, tables of Markdown, and lines that keep their form."""
    from datapipe.report.layout import print_lines, print_table_of_markdown, print_text

    for kind, group in groupby(block.splitlines(), _kind_of_line):
        lines = list(group)
        if kind == "table":
            print_table_of_markdown(lines, console, _INDENT)
        elif kind == "prose" and console.is_terminal:
            print_text(" " * _INDENT + " ".join(lines), console, hanging=0)
        else:
            for line in (" " * _INDENT + line for line in lines):
                fits = len(line) <= console.width
                print_lines([line], console) if fits else print_text(line, console)


def _kind_of_line(line: str) -> str:
    return "table" if line.startswith("|") else "as it is" if line.startswith((" ", "- ")) else "prose"


def schema() -> None:
    """Print the JSON Schema of the mixture file, for editors.

    It includes the options of every stage.
    """
    print(json.dumps(mixture_schema(), indent=2))


_USER_STAGE = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"


def mixture_schema() -> dict[str, Any]:
    """The JSON Schema of the mixture file with the options of every stage. Editors use it to complete and check a mixture."""
    from datapipe.config import Mixture
    from datapipe.config.catalogue import readers, stage_class, stage_names

    schema = Mixture.model_json_schema()
    definitions = schema["$defs"]
    choices: list[dict[str, Any]] = [
        {"enum": stage_names(), "description": "A stage with its default options."},
        {"type": "string", "pattern": _USER_STAGE, "description": "A class or function of your own: package.module:NAME."},
        {
            "type": "object",
            "patternProperties": {_USER_STAGE: {"type": ["object", "null"]}},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
            "description": "A class or function of your own with its options.",
        },
    ]
    renamed = {"type": "string", "description": "Name of this use in reports and reasons. Default: the stage's name."}
    when = {
        "type": "object",
        "minProperties": 1,
        "description": "The documents that the stage sees, by column: {language: [ja, zh]}, {quality: '>= 3'}. Default: all.",
    }
    every = {name: stage_class(name) for name in stage_names()}
    choices += _with_options(definitions, "", every, {"as": renamed, "when": when})
    definitions["StageEntry"] = {"anyOf": choices}
    stage_list = {"type": "array", "items": {"$ref": "#/$defs/StageEntry"}}
    kinds = {"then": {"$ref": "#/$defs/SnapshotSource"}, "else": {"$ref": "#/$defs/Source"}}
    schema["properties"]["sources"]["additionalProperties"] = {"if": {"type": "object", "required": ["snapshot"]}, **kinds}
    source = definitions["Source"]["properties"]
    schema["properties"]["stages"] |= stage_list
    source["stages"]["anyOf"] = [stage_list, {"type": "null"}]
    formats: list[dict[str, Any]] = [
        {"enum": ["auto", *readers()], "description": "A format with its default options."},
        {"type": "string", "pattern": r"\$\{.+\}"},
    ]
    formats += _with_options(definitions, "read.", readers(), {})
    source["format"] |= {"anyOf": formats}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _with_options(
    definitions: dict[str, Any], prefix: str, stages: Mapping[str, type[Stage]], more: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The schema of each name with the options of its stage below it, which become definitions.
    `prefix`: of the names of definitions. `more`: options that every stage takes."""
    for name, stage in stages.items():
        defined = f"{prefix}{name}"
        options = stage.model_json_schema(ref_template=f"#/$defs/{defined}.{{model}}")
        inner = {f"{defined}.{model}": definition for model, definition in options.pop("$defs", {}).items()}
        definitions.update({defined: {**options, "properties": {**options.get("properties", {}), **more}}, **inner})
        value = {"anyOf": [{"$ref": f"#/$defs/{defined}"}, {"type": "null"}]}
        yield {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}
