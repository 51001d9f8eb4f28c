"""The card of a snapshot or an export: README.md for people and the hub, croissant.json for programs.

    report.json, manifest, mixture.yaml ─▶ facts ─────────▶ README.md        front matter, tables
    data files, columns ────────────────┴▶ description ───▶ croissant.json

The bytes follow from the report, the manifest, the mixture and the columns alone: no clock, no path of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from datapipe.card.croissant import croissant
from datapipe.card.data_files import DataFiles
from datapipe.card.escaping import Markdown, shown
from datapipe.card.facts import gathered
from datapipe.card.front_matter import front_matter
from datapipe.ledger.names import CARD, CROISSANT
from datapipe.shards.datasets.card import as_yaml
from datapipe.shards.manifest import Manifest


def card_files(
    report: Mapping[str, Any],
    manifest: Manifest,
    mixture: str,
    files: DataFiles,
    place: str = ".",
    is_output: bool = True,
) -> dict[str, bytes]:
    """The content of README.md and croissant.json, by name.

    Args:
        mixture: mixture.yaml of the snapshot; empty where there is none.
        place: where a reader loads the files from: the name of a data set on the hub, or a path.
        is_output: whether it is the card of an output, and not of an export.
    """
    licenses = report["provenance"].get("licenses") or {}
    front = front_matter(manifest.name, report, files, licenses)
    facts = gathered(report, manifest, mixture, files, place, is_output)
    text = _template().render(front_matter=Markdown(as_yaml(front)), facts=facts)
    return {CARD: text.encode(), CROISSANT: croissant(report, manifest, files, front)}


@lru_cache(maxsize=1)
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("datapipe.card", ""),
        autoescape=False,  # `finalize` escapes for Markdown
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = Markdown
    return environment.get_template("readme.md.jinja")
