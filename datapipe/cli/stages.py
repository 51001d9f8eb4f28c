"""`datapipe stages` and `datapipe schema`: the stages and keys of a mixture file."""

from __future__ import annotations

import json
import textwrap
from typing import Annotated

import typer


def stages(name: Annotated[str, typer.Argument(help="Only this stage.")] = "") -> None:
    """List every stage with its options and defaults; for one stage, also print its documentation."""
    from datapipe import catalogue

    names = [name] if name else catalogue.stage_names()
    for stage_name in names:
        described = catalogue.describe(stage_name)
        print(f"{described.name}  ({described.kind})\n    {described.summary}")
        if name:
            print("\n" + textwrap.indent(described.details, "    ") + "\n")
        for option in described.options:
            print(f"      {option.name}: {option.type} = {option.default}\n          {option.description}")
        print()


def schema() -> None:
    """Print the JSON Schema of the mixture file, with the options of every stage, for editors."""
    from datapipe import catalogue

    print(json.dumps(catalogue.mixture_schema(), indent=2))
