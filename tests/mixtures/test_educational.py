"""The worked example of `mixtures/educational.yaml`: its commands, from annotation to a trained model to a filtered corpus."""

from __future__ import annotations

import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIXTURE = ROOT / "mixtures" / "educational.yaml"


def commands(text: str) -> list[list[str]]:
    """The commands in a text, each on one line or several."""
    lines = text.replace("\n# ", "\n").replace("\\\n", "").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.strip().startswith("datapipe ")]


def test_commands_of_the_readme_are_those_of_the_mixture() -> None:
    readme = (ROOT / "datapipe/classifier/annotation/README.md").read_text(encoding="utf-8")
    section = readme.partition("## From scores to a filtered corpus")[2].partition("\n## ")[0]
    assert commands(section) == commands(MIXTURE.read_text(encoding="utf-8"))
    assert len(commands(section)) == 3
