"""Writes the card of a snapshot into its output: beside report.json, and into the folder of the snapshot.

    snapshots/<fingerprint>/README.md, croissant.json      written once, as all files of a snapshot
    README.md, croissant.json                              of the newest snapshot

A README.md that somebody edited, or that datapipe did not write, stays as it is. The last line of a card holds a digest of the
lines above, by which an edit is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import xxhash
from jinja2 import Environment, PackageLoader, StrictUndefined

from datapipe.config.mixture import Mixture
from datapipe.config.yaml import dump_yaml
from datapipe.errors import UserError
from datapipe.quantities import counted
from datapipe.records.names import CARD, CROISSANT, MIXTURE, REPORT
from datapipe.report.card.croissant import croissant
from datapipe.report.card.data_files import DataFiles, data_files
from datapipe.report.card.escaping import Markdown, code, shown
from datapipe.report.card.facts import gathered, share
from datapipe.report.card.front_matter import front_matter
from datapipe.report.card.provenance import joined_provenance, numbers
from datapipe.report.html.page import write_page
from datapipe.report.joined import joined_report
from datapipe.report.summary import parse_report, report_bytes
from datapipe.report.tables import Bytes
from datapipe.shards.manifest import Snapshot, read_snapshot, snapshot_folder
from datapipe.shards.snapshots import published_additions
from datapipe.stage.licenses import UNKNOWN
from datapipe.steps.warnings import RunWarning
from datapipe.storage.root import Root

_MARK, _MARK_END = "<!-- datapipe wrote this card, digest ", " -->\n"


def write_card(root: Root, manifest: Snapshot, report: Mapping[str, Any]) -> str | None:
    """Writes the card of a snapshot. Returns a sentence where a README.md of somebody's stays in its place."""
    own = snapshot_folder(manifest.fingerprint)
    mixture = mixture_text(root, manifest)
    files = signed(card_files(report, manifest, mixture, data_files(root, manifest)))
    for name, content in files.items():
        if not root.exists(f"{own}/{name}"):
            root.write_atomic(f"{own}/{name}", content)
    if read_snapshot(root).fingerprint != manifest.fingerprint:
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


def report_of(root: Root, manifest: Snapshot) -> dict[str, Any]:
    """The report of a snapshot. Raises UserError where there is none that this version reads."""
    for path in (f"{snapshot_folder(manifest.fingerprint)}/{REPORT}", REPORT):
        with suppress(FileNotFoundError, ValueError):
            return parse_report(root.read_bytes(path))
    raise UserError(
        f"{root.url}: no {REPORT} of snapshot {manifest.fingerprint[:12]} that this version can read, and the card is made of "
        f"it. Run its mixture again: nothing is computed twice"
    )


def mixture_text(root: Root, manifest: Snapshot) -> str:
    """mixture.yaml of a snapshot; empty where it is gone."""
    for path in (f"{snapshot_folder(manifest.fingerprint)}/{MIXTURE}", MIXTURE):
        with suppress(FileNotFoundError):
            return root.read_bytes(path).decode()
    return ""


def card_maker(
    root: Root, manifest: Snapshot, place: str, source: str | None = None
) -> Callable[[Snapshot, DataFiles], dict[str, bytes]]:
    """What makes the card of an export, and the other files about it, from its manifest and data files.

    Args:
        root: the output that is exported.
        place: where a reader loads the export from.
        source: the only one that is exported; None: all.
    """
    whole, mixture = report_of(root, manifest), mixture_text(root, manifest)
    report = whole if source is None else _of_source(whole, source)

    def make(exported: Snapshot, files: DataFiles) -> dict[str, bytes]:
        about = {MIXTURE: mixture.encode()} if mixture else {}
        return {**about, **signed(card_files(report, exported, mixture, files, place))}

    return make


def _of_source(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The report of one source alone. What was counted over all sources is left out."""
    if name in report["taken"]:
        raise UserError(f"--card --source {name}: it has rows of another output, whose card tells of them. Leave out --card.")
    entry = report["sources"][name]
    tokenizer = report["tokenizer"]
    if tokenizer is not None and name in tokenizer["sources"]:
        own = tokenizer["sources"][name]
        tokenizer = {**tokenizer, "sources": {name: own}, "total": own}
    part = {
        **report,
        "sources": {name: entry},
        "taken": {},
        "total": entry,
        "mixture": None,
        "clusters": {},
        "contamination": [],
        "measured": {name: report["measured"].get(name, {})},
        "warnings": [warning for warning in report["warnings"] if warning["source"] == name],
        "tokenizer": tokenizer,
    }
    origin = report["provenance"]["sources"][name]
    kept = numbers(entry["documents"]["kept"], entry["kept_bytes"], entry["tokens"] if tokenizer else None, None)
    licenses = {} if origin["license_field"] or not kept["documents"] else {origin["license"] or UNKNOWN: kept}
    synthetic = {"synthetic": kept} if origin["synthetic"] else {}
    return {**part, "provenance": {"sources": {name: origin}, "licenses": licenses, "synthetic": synthetic, "cost": {}}}


def card_files(
    report: Mapping[str, Any],
    manifest: Snapshot,
    mixture: str,
    files: DataFiles,
    place: str | None = None,
) -> dict[str, bytes]:
    """The content of README.md and croissant.json, by name.

    Args:
        mixture: mixture.yaml of the snapshot; empty where there is none.
        place: of an export: where a reader loads the files from, the name of a data set on the hub or a path. None for an
            output, which is where its mixture has it.
    """
    front = front_matter(manifest.name, report, files)
    facts = gathered(report, manifest, mixture, files, place)
    text = _template().render(front_matter=Markdown(dump_yaml(front)), **facts)
    return {CARD: text.encode(), CROISSANT: croissant(report, manifest, files, front)}


@lru_cache(maxsize=1)
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("datapipe.report.card", ""),
        autoescape=False,  # `finalize` escapes for Markdown
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"markdown": Markdown, "code": code, "bytes": Bytes}
    environment.globals |= {"counted": counted, "share": share}
    return environment.get_template("readme.md.jinja")


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
            shards = parse_report(target.read_bytes(REPORT))["shards"]
            newest = read_snapshot(target)
            if newest.has_tokens and shards and shards["fingerprint"] == newest.fingerprint:
                told = write_about(target, newest)
    return told


def write_about(root: Root, snapshot: Snapshot) -> str | None:
    """Writes report.html and the card of a snapshot by its report. Returns a sentence where a card of somebody's stays."""
    report = report_of(root, snapshot)
    write_page(root, report)
    return write_card(root, snapshot, report) if root.exists(CARD) else None
