"""What a card tells, from the report, the manifest and the mixture: rows of its tables, made of numbers of the run alone. Pure.
The template has its sentences.

Text of users goes through `escaping`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from datapipe.config.interpolation import parsed_yaml
from datapipe.report.card.data_files import DataFiles
from datapipe.report.card.escaping import Markdown, code, link, plain
from datapipe.report.tables import (
    Cell,
    Share,
    Table,
    evaluation_table,
    kept_table,
    language_counts,
    measured_rules,
    mixture_table,
)
from datapipe.shards.manifest import Snapshot
from datapipe.stage.base import PHONE_REGIONS
from datapipe.storage.root import is_remote

_LISTED = 20
"""Languages and reasons of quarantine that are listed, the most frequent first."""

Rows = list[list[Cell]]


def gathered(
    report: Mapping[str, Any], manifest: Snapshot, mixture: str, files: DataFiles, place: str | None
) -> dict[str, Any]:
    """The facts of a snapshot, as the template takes them. Each row holds cells as `escaping.shown` does.

    Args:
        mixture: mixture.yaml of the snapshot; empty where there is none.
        place: of an export: where its files can be loaded from, as the reader of the card would write it. None for an output,
            with report.json beside the card, and for datapipe's loader.
    """
    said: Mapping[str, Any] = {}
    with suppress(ValueError):
        said = parsed_yaml(mixture)
    provenance = report["provenance"]
    licenses, kinds = provenance["licenses"], provenance["synthetic"]
    schema = files.configurations[0].schema if files.configurations else None
    return {
        "name": manifest.name,
        "report": report,
        "manifest": manifest,
        "snapshot": manifest if manifest.has_tokens else None,
        "num_rows": files.rows,
        "pages": {
            name: _pages(origin, (said.get("sources") or {}).get(name, {})) for name, origin in provenance["sources"].items()
        },
        "licenses": _cells(kept_table("", licenses)),
        "synthetic": _cells(kept_table("", kinds)) if kinds and kinds["synthetic"]["documents"] else [],
        "has_drawn": any(numbers["drawn_tokens"] is not None for numbers in licenses.values()),
        "conditions": {reason: _condition(report, reason) for reason in report["total"]["documents"]["dropped"]},
        "redacted": _redacted(report, said),
        "evaluation": _cells(evaluation_table(report["contamination"])),
        "languages": _languages(report),
        "mixture": _cells(mixture_table(report["mixture"])) if report["mixture"] else [],
        "columns": [] if schema is None else [[code(field.name), code(str(field.type))] for field in schema],
        "is_output": place is None,
        "for_loader": files.is_packed and place is None,
        "path": Markdown(json.dumps(plain(place or str(said.get("output") or ".")), ensure_ascii=False)),
        "looks_for_secrets": any(name.partition(":")[0].startswith("redact.") for name in report["total"]["counts"]),
    }


def _cells(table: Table) -> Rows:
    """The rows of a table, whose texts are names of users."""
    return [[code(value) if isinstance(value, str) else value for value in row] for row in table.rows]


def share(part: float, whole: float) -> Share | None:
    """A part of a whole; None of nothing."""
    return Share(part / whole) if whole else None


def _pages(origin: Mapping[str, Any], said: Mapping[str, Any]) -> Markdown | None:
    """The homepage of a source, and the paths of its files where they are URLs. Paths of one machine tell nobody anything.

    Args:
        said: the source in the mixture.
    """
    paths = said.get("path") or ()
    remote = [path for path in ([paths] if isinstance(paths, str) else paths) if is_remote(path.removeprefix("@"))]
    pages = [*([link(origin["homepage"])] if origin["homepage"] else []), *map(code, remote[:3])]
    return Markdown(", ".join(pages)) if pages else None


# ------------------------------------------------------------------------------------------------ what was removed


def _condition(report: Mapping[str, Any], reason: str) -> Markdown | None:
    """The option and threshold of a rule: "`min_words` at least 50"."""
    for rule in measured_rules(report):
        option, threshold = rule.facts["option"], rule.facts["threshold"]
        if f"{rule.stage}:{rule.name}" == reason and option and threshold is not None:
            side = {"min": "at least", "max": "at most"}.get(rule.facts["side"], "of")
            return Markdown(f"{code(option)} {side} {threshold:,.12g}")
    return None


def _redacted(report: Mapping[str, Any], said: Mapping[str, Any]) -> Rows:
    """Rows of what the redacting stages replaced: stage, kind, count."""
    redacting = {alias for alias, name in _stages(said) if name.startswith("redact.")}
    rows: Rows = []
    for name, count in report["total"]["counts"].items():
        stage, _, kind = name.rpartition(":")
        if kind in PHONE_REGIONS:
            continue  # documents, and nothing that was replaced
        if stage in redacting or stage.startswith("redact."):
            rows.append([code(stage), code(kind), count])
    return rows


def _stages(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The name in the run and in the catalogue of each stage of a mixture."""
    lists = [said.get("stages"), *(source.get("stages") for source in (said.get("sources") or {}).values())]
    for entry in (entry for listed in lists for entry in listed or ()):
        name, options = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
        yield (options or {}).get("as", name), name


# ------------------------------------------------------------------------------------------------ the other sections


def _languages(report: Mapping[str, Any]) -> Rows:
    counts = {name: entry["documents"] for name, entry in language_counts(report).items()}
    whole = sum(counts.values())
    return [[code(name or "none"), count, share(count, whole)] for name, count in list(counts.items())[:_LISTED]]
