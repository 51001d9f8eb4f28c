"""`datapipe stages` and `datapipe schema`: the stages and keys of a mixture file."""

from __future__ import annotations

import json
import re
import textwrap
from typing import Annotated

import typer

_COLUMNS = 80
_SENTENCE_END = re.compile(r"(?<=[.!?]) ")


def stages(name: Annotated[str, typer.Argument(help="A stage: its documentation, options and defaults.")] = "") -> None:
    """List every stage in a line; of one stage, print the documentation, options and defaults."""
    if name:
        _print_stage(name)
    else:
        _print_list()


def _print_stage(name: str) -> None:
    from datapipe import catalogue

    described = catalogue.describe(name)
    print(f"{described.name}  ({described.kind})\n    {described.summary}")
    print("\n" + textwrap.indent(described.details, "    ") + "\n")
    for option in described.options:
        print(f"      {option.name}: {option.type} = {option.default}\n          {option.description}")
    print()


def _print_list() -> None:
    """Prints a line of at most 80 columns for each stage: name, kind, and the first sentence, cut between words."""
    from datapipe import catalogue

    described = [catalogue.describe(name) for name in catalogue.stage_names()]
    name_width, kind_width = (max(map(len, texts)) for texts in zip(*((stage.name, stage.kind) for stage in described)))
    for stage in described:
        head = f"{stage.name:<{name_width}}  {stage.kind:<{kind_width}}  "
        sentence = _SENTENCE_END.split(stage.summary, maxsplit=1)[0]
        print(head + textwrap.shorten(sentence, _COLUMNS - len(head), placeholder=" …"))
    print("\n`datapipe stages NAME` prints the options of one.")


def schema() -> None:
    """Print the JSON Schema of the mixture file, with the options of every stage, for editors."""
    from datapipe import catalogue

    print(json.dumps(catalogue.mixture_schema(), indent=2))
