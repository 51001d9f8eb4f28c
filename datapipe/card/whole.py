"""The report and the card of a snapshot that grew, and of one that documents were taken down from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from datapipe.card.provenance import joined_provenance
from datapipe.card.write import report_of, write_card
from datapipe.config.mixture import Mixture
from datapipe.ledger.names import CARD, REPORT
from datapipe.plan.warnings import RunWarning
from datapipe.report.html.page import write_page
from datapipe.report.joined import joined_report
from datapipe.report.summary import parse_report, report_bytes
from datapipe.shards.additions import published_additions
from datapipe.shards.manifest import Snapshot, read_manifest
from datapipe.storage import Root


def whole_report(
    mixture: Mixture,
    before: bytes,
    added: bytes,
    snapshot: Snapshot,
    addition: Mapping[str, Any],
    warnings: Sequence[RunWarning],
) -> bytes:
    """report.json of a snapshot that grew.

    Args:
        before, added: report.json of the snapshot before, and of the addition. Raises ValueError for those of other versions.
        addition: its part, folder, and the snapshot that it was added to.
        warnings: about the new snapshot.
    """
    first, second = parse_report(before), parse_report(added)
    report = joined_report(first, second, snapshot, addition)
    report["warnings"] += [warning.to_json() for warning in warnings if warning.to_json() not in report["warnings"]]
    return report_bytes(report | {"provenance": joined_provenance(mixture, first, second, report)})


def complete_about(root: Root, snapshot: Snapshot) -> str | None:
    """`write_about` of the newest snapshot and of its additions, after a takedown, and after one that was killed: what is there
    already stays as it is. The report of a run that failed since then stays, too. Returns what `write_about` does."""
    told: str | None = None
    for folder in (*published_additions(root, snapshot), ""):
        target = root.within(folder)
        with suppress(FileNotFoundError, ValueError):
            shards = parse_report(target.read_bytes(REPORT)).get("shards") or {}
            newest = read_manifest(target)
            if isinstance(newest, Snapshot) and shards.get("fingerprint") == newest.fingerprint:
                told = write_about(target, newest)
    return told


def write_about(root: Root, snapshot: Snapshot) -> str | None:
    """Writes report.html and the card of a snapshot by its report. Returns a sentence where a card of somebody's stays."""
    report = report_of(root, snapshot)
    write_page(root, report)
    return write_card(root, snapshot, report) if root.exists(CARD) else None
