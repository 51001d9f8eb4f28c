"""Writes the card of a snapshot into its output: beside report.json, and into the folder of the snapshot.

    snapshots/<fingerprint>/README.md, croissant.json      written once, as all files of a snapshot
    README.md, croissant.json                              of the newest snapshot

A README.md that somebody edited, or that datapipe did not write, stays as it is. The last line of a card holds a digest of the
lines above, by which an edit is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import xxhash

from datapipe.card.card import card_files
from datapipe.card.data_files import DataFiles, data_files
from datapipe.card.provenance import of_manifest
from datapipe.config.resolved import parsed_yaml
from datapipe.errors import UserError
from datapipe.ledger.names import CARD, MIXTURE, REPORT
from datapipe.report.summary import parse_report
from datapipe.shards.manifest import Manifest, read_manifest, snapshot_folder
from datapipe.storage import Root

_MARK, _MARK_END = "<!-- datapipe wrote this card, digest ", " -->\n"


def write_card(root: Root, manifest: Manifest, report: Mapping[str, Any]) -> str | None:
    """Writes the card of a snapshot. Returns a sentence where a README.md of somebody's stays in its place."""
    own = snapshot_folder(manifest.fingerprint)
    mixture = mixture_text(root, manifest)
    files = signed(card_files(report, manifest, mixture, data_files(root, manifest), _place(mixture)))
    for name, content in files.items():
        if not root.exists(f"{own}/{name}"):
            root.write_atomic(f"{own}/{name}", content)
    if read_manifest(root).fingerprint != manifest.fingerprint:
        return None
    is_other = root.exists(CARD) and not is_unedited(root.read_bytes(CARD))
    for name, content in files.items():
        if name != CARD or not is_other:
            root.write_atomic(name, content)
    return f"{root.url}/{CARD} is not as datapipe wrote it, and stays. The new card is {own}/{CARD}" if is_other else None


def signed(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a card with the digest at the end of README.md."""
    mark = f"{_MARK}{xxhash.xxh3_64_hexdigest(files[CARD])}{_MARK_END}".encode()
    return {**files, CARD: files[CARD] + mark}


def is_unedited(content: bytes) -> bool:
    """Whether a README.md is a card as datapipe wrote it."""
    text, mark, digest = content.rpartition(_MARK.encode())
    return bool(mark) and digest == f"{xxhash.xxh3_64_hexdigest(text)}{_MARK_END}".encode()


def report_of(root: Root, manifest: Manifest) -> dict[str, Any]:
    """The report of a snapshot. Raises UserError where there is none that this version reads."""
    for path in (f"{snapshot_folder(manifest.fingerprint)}/{REPORT}", REPORT):
        with suppress(FileNotFoundError, ValueError):
            return parse_report(root.read_bytes(path))
    raise UserError(
        f"{root.url}: no {REPORT} of snapshot {manifest.fingerprint[:12]} that this version can read, and the card is made of "
        f"it. Run its mixture again: nothing is computed twice"
    )


def mixture_text(root: Root, manifest: Manifest) -> str:
    """mixture.yaml of a snapshot; empty where it is gone."""
    for path in (f"{snapshot_folder(manifest.fingerprint)}/{MIXTURE}", MIXTURE):
        with suppress(FileNotFoundError):
            return root.read_bytes(path).decode()
    return ""


def card_maker(
    root: Root, manifest: Manifest, place: str, source: str | None = None
) -> Callable[[Manifest, DataFiles], dict[str, bytes]]:
    """What makes the card of an export, and the other files about it, from its manifest and data files.

    Args:
        root: the output that is exported.
        place: where a reader loads the export from.
        source: the only one that is exported; None: all.
    """
    whole, mixture = report_of(root, manifest), mixture_text(root, manifest)
    report = whole if source is None else _of_source(whole, manifest, source)

    def make(exported: Manifest, files: DataFiles) -> dict[str, bytes]:
        about = {MIXTURE: mixture.encode()} if mixture else {}
        return {**about, **signed(card_files(report, exported, mixture, files, place, is_output=False))}

    return make


def _of_source(report: Mapping[str, Any], manifest: Manifest, name: str) -> dict[str, Any]:
    """The report of one source alone. What was counted over all sources is left out."""
    if name in report["taken"]:
        raise UserError(f"--card --source {name}: it has rows of another output, whose card tells of them. Leave out --card.")
    entry = report["sources"][name]
    part = {
        **report,
        "sources": {name: entry},
        "taken": {},
        "total": entry,
        "mixture": None,
        "clusters": {},
        "contamination": [],
    }
    part["measured"] = {name: report["measured"].get(name) or {}}
    part["excesses"] = [excess for excess in report["excesses"] if excess["source"] == name]
    part["unreadable_files"] = [files for files in report["unreadable_files"] if files["source"] == name]
    tokenizer = report["tokenizer"]
    if tokenizer is not None and name in tokenizer["sources"]:
        own = tokenizer["sources"][name]
        part["tokenizer"] = {**tokenizer, "sources": {name: own}, "total": own}
    origin = (report["provenance"].get("sources") or {}).get(name) or {}
    known = of_manifest(manifest, part)
    if origin.get("license_field"):
        known["licenses"] = {}
    return {**part, "provenance": {**known, "sources": {name: origin}}}


def _place(mixture: str) -> str:
    """The output as the mixture has it; the folder itself where that is not known."""
    with suppress(ValueError):
        return str(parsed_yaml(mixture).get("output") or ".")
    return "."
