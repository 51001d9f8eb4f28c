"""Writes the card of a snapshot into its output: beside report.json, and into the folder of the snapshot.

    snapshots/<fingerprint>/README.md, croissant.json      written once, as all files of a snapshot
    README.md, croissant.json                              of the newest snapshot

A README.md that was edited, or that datapipe did not write, stays as it is: the last
line of a card holds a digest of the lines above.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import xxhash

from datapipe.config.interpolation import parsed_yaml
from datapipe.config.yaml import dump_yaml
from datapipe.errors import UserError
from datapipe.quantities import counted
from datapipe.records.names import CARD, CROISSANT, MIXTURE, REPORT
from datapipe.report.card.croissant import croissant
from datapipe.report.card.data_files import DataFiles, data_files
from datapipe.report.card.front_matter import front_matter
from datapipe.report.card.markdown import Markdown, code, columns_markdown, link, plain, section_markdown, shown
from datapipe.report.cells import Bytes, rendered, share
from datapipe.report.html.page import write_page
from datapipe.report.records import Kept, Origin, ReportProvenance, Total
from datapipe.report.report import Report, read_report
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.stage.licenses import UNKNOWN
from datapipe.storage.root import Root, is_remote

_MARK, _MARK_END = "<!-- datapipe wrote this card, digest ", " -->\n"


def write_card(root: Root, manifest: Snapshot, report: Report) -> str | None:
    """Writes the card of a snapshot. Returns a sentence where an edited README.md stays in its place."""
    own = snapshot_folder(manifest.fingerprint)
    files = signed(card_files(report, manifest, mixture_text(root, manifest), data_files(root, manifest)))
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


def report_of(root: Root, manifest: Snapshot) -> Report:
    """The report of a snapshot. Raises UserError where there is none that this version reads."""
    for folder in (snapshot_folder(manifest.fingerprint), ""):
        with suppress(FileNotFoundError, ValueError):
            return read_report(root.within(folder))
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
    """A function that makes the card of an export, and the other files about it, from its manifest and data files. `root` is
    the output, `place` where a reader loads the export from, and `source` the only one that is exported; None: all."""
    report, mixture = report_of(root, manifest), mixture_text(root, manifest)
    report = report if source is None else _of_source(report, source)

    def make(exported: Snapshot, files: DataFiles) -> dict[str, bytes]:
        about = {MIXTURE: mixture.encode()} if mixture else {}
        return {**about, **signed(card_files(report, exported, mixture, files, place))}

    return make


def _of_source(report: Report, name: str) -> Report:
    """The report of one source alone. What was counted over all sources is left out."""
    if name in report.taken:
        raise UserError(f"--card --source {name}: it has rows of another output, whose card describes them. Leave out --card.")
    entry, tokenizer, origin = report.sources[name], report.tokenizer, report.provenance.sources[name]
    if tokenizer is not None and name in tokenizer.sources:
        own = tokenizer.sources[name]
        tokenizer = tokenizer.model_copy(update={"sources": {name: own}, "total": own})
    tokens = entry.tokens if tokenizer else None
    kept = Kept(documents=entry.documents.kept, bytes=entry.kept_bytes, tokens=tokens, drawn_tokens=None)
    return report.with_(
        sources={name: entry},
        taken={},
        total=Total(**dict(entry), task_seconds=0.0),
        mixture=None,
        **report.of_source(name),
        warnings=tuple(warning for warning in report.warnings if warning.source == name),
        tokenizer=tokenizer,
        provenance=ReportProvenance(
            sources={name: origin},
            # none where documents have their own
            licenses={} if origin.license_field or not kept.documents else {origin.license or UNKNOWN: kept},
            synthetic={"synthetic": kept} if origin.synthetic else {},
        ),
    )


def card_files(
    report: Report, manifest: Snapshot, mixture: str, files: DataFiles, place: str | None = None
) -> dict[str, bytes]:
    """The content of README.md and croissant.json, by name. `place` is the data set on the hub or the path that a reader loads
    an export from; None for an output, whose mixture.yaml has its path."""
    front = front_matter(manifest.name, report, files)
    options: Mapping[str, Any] = {}
    with suppress(ValueError):
        options = parsed_yaml(mixture)
    sources = options.get("sources") or {}
    pages = {name: _pages(origin, sources.get(name, {})) for name, origin in report.provenance.sources.items()}
    schema = files.configurations[0].schema if files.configurations else None
    names = {
        "front_matter": Markdown(dump_yaml(front)),
        "name": manifest.name,
        "report": report,
        "manifest": manifest,
        "snapshot": manifest if manifest.has_tokens else None,
        "num_rows": files.rows,
        "sections": [section_markdown(each) for each in report.sections() if each.tables and each.anchor != "speed"],
        "pages": {name: links for name, links in pages.items() if links},
        "columns": "" if schema is None else columns_markdown(schema.names, list(map(str, schema.types))),
        "is_output": place is None,
        "for_loader": files.is_packed and place is None,
        "path": Markdown(json.dumps(plain(place or str(options.get("output") or ".")), ensure_ascii=False)),
        "looks_for_secrets": any(name.partition(":")[0].startswith("redact.") for name in report.total.counts),
    }
    functions = {"markdown": Markdown, "code": code, "bytes": Bytes, "counted": counted, "share": share}
    text = rendered("report/card/readme.md.jinja", names | functions, shown)
    return {CARD: text.encode(), CROISSANT: croissant(report, manifest, files, front)}


def _pages(origin: Origin, options: Mapping[str, Any]) -> Markdown:
    """The homepage of a source with these options in the mixture, and the paths of its files that are URLs."""
    paths = options.get("path") or ()
    remote = [path for path in ([paths] if isinstance(paths, str) else paths) if is_remote(path.removeprefix("@"))]
    return Markdown(", ".join([*([link(origin.homepage)] if origin.homepage else []), *map(code, remote[:3])]))


def complete_about(root: Root, snapshot: Snapshot) -> str | None:
    """`write_about` of the newest snapshot, after documents were taken down: what is there already stays as it
    is. The report of a run that failed since then stays, too. Returns what `write_about` does."""
    with suppress(FileNotFoundError, ValueError):
        shards = read_report(root).shards
        if snapshot.has_tokens and shards and shards.fingerprint == snapshot.fingerprint:
            return write_about(root, snapshot)
    return None


def write_about(root: Root, snapshot: Snapshot) -> str | None:
    """Writes report.html and the card of a snapshot by its report. Returns a sentence where an edited card stays."""
    report = report_of(root, snapshot)
    write_page(root, report)
    return write_card(root, snapshot, report) if root.exists(CARD) else None
