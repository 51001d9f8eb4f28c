"""A comparison with one peer: programs of both sides, run in turn."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.__main__ import ROOT, measured_on
from tests.benchmarks.peers import environments
from tests.benchmarks.peers.results import Figure, Result

PROGRAMS = Path(__file__).parent / "programs"
OURS = "datapipe"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is measured of ours and of one peer.

    Attributes:
        work: what both do.
        peer: the name of its environment.
        unit: of the figures.
        prepare: writes what the sides read, and runs both once, uncounted.
        ours, theirs: one measurement each.
    """

    work: str
    peer: str
    unit: str
    prepare: Callable[[], object]
    ours: Callable[[], Figure]
    theirs: Callable[[], Figure]

    @property
    def name(self) -> str:
        return f"{self.work}: {self.peer}"


def run_program(side: str, subject: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """The figures that a program prints. `side`: the environment of a peer, or OURS. `folder`: what libraries keep at home."""
    python, environment = sys.executable, os.environ | {"PYTHONPATH": str(ROOT)}
    if side != OURS:
        python = environments.interpreter(side)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment = inherited | {"HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    printed = environments.run([python, str(PROGRAMS / f"{side}_{subject}.py"), *arguments], environment)
    figures = [line for line in printed.splitlines() if line.startswith("{")]  # libraries print lines of their own
    if not figures:
        raise environments.PeerError(f"{side}_{subject}.py printed no figures")
    return json.loads(figures[-1])


def measured(comparison: Comparison, num_pairs: int) -> Result:
    """Pairs of figures: ours, the peer's, ours, the peer's, …; or why there are none."""
    peer = environments.label(comparison.peer)
    try:
        comparison.prepare()
        pairs = [(comparison.ours(), comparison.theirs()) for _ in range(num_pairs)]
    except (environments.PeerError, OSError) as error:
        return Result(peer=peer, unit=comparison.unit, error=str(error))
    ours, theirs = pairs[0]
    return Result(
        peer=peer,
        unit=comparison.unit,
        pairs=tuple((one.value, other.value) for one, other in pairs),
        kept=None if ours.kept is None or theirs.kept is None else (ours.kept, theirs.kept),
        measured=measured_on(),
    )
