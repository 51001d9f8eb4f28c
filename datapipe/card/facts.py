"""What a card tells, from the report, the manifest and the mixture: rows of its tables, made of numbers of the run alone. Pure.

Text of users goes through `escaping`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datapipe.card.data_files import DataFiles
from datapipe.card.escaping import Markdown, code, link, plain, prose
from datapipe.config.resolved import parsed_yaml
from datapipe.credentials import masked
from datapipe.metrics import counted, size
from datapipe.report.tables import Bytes, Cell, Share, Table, evaluation_table, kept_table, language_counts, mixture_table
from datapipe.shards.manifest import Manifest, Snapshot
from datapipe.stage.base import PHONE_REGIONS
from datapipe.storage import is_remote

_LISTED = 20
"""Languages and reasons of quarantine that are listed, the most frequent first."""

Rows = list[list[Cell]]


def gathered(
    report: Mapping[str, Any], manifest: Manifest, mixture: str, files: DataFiles, place: str, is_output: bool
) -> dict[str, Any]:
    """The facts of a snapshot, as the template takes them. Each row holds cells as `escaping.shown` does.

    Args:
        mixture: mixture.yaml of the snapshot; empty where there is none.
        place: where the files can be loaded from, as the reader of the card would write it.
        is_output: whether the card lies in an output, with report.json beside it and for datapipe's loader.
    """
    said = _parsed(mixture)
    provenance = report["provenance"]
    licenses, kinds = provenance["licenses"], provenance["synthetic"]
    schema = files.configurations[0].schema if files.configurations else None
    return {
        "name": manifest.name,
        "summary": list(_summary(report, manifest, files)),
        "sources": [
            *(_source(name, entry, provenance["sources"][name], said) for name, entry in report["sources"].items()),
            *(_taken(name, entry, provenance["sources"][name]) for name, entry in report["taken"].items()),
        ],
        "licenses": _cells(kept_table("", licenses)),
        "synthetic": _cells(kept_table("", kinds)) if kinds and kinds["synthetic"]["documents"] else [],
        "has_drawn": any(numbers["drawn_tokens"] is not None for numbers in licenses.values()),
        "removed": list(_removed(report)),
        "duplicates": _duplicates(report),
        "redacted": _redacted(report, said),
        "evaluation": _cells(evaluation_table(report["contamination"])),
        "languages": _languages(report),
        "tokenizer": list(_tokenizer(report)),
        "mixture": _cells(mixture_table(report["mixture"])) if report["mixture"] else [],
        "mixture_tokens": report["mixture"]["tokens"] if report["mixture"] else None,
        "cost": list(_cost(provenance["cost"])),
        "columns": [] if schema is None else [[code(field.name), code(str(field.type))] for field in schema],
        "is_output": is_output,
        "for_loader": files.is_packed and is_output,
        "path": Markdown(json.dumps(plain(place), ensure_ascii=False)),
        "reproduce": list(_reproduce(report, manifest)),
        "limits": list(_limits(report)),
    }


def _parsed(mixture: str) -> Mapping[str, Any]:
    try:
        return parsed_yaml(mixture)
    except ValueError:
        return {}


def _cells(table: Table) -> Rows:
    """The rows of a table, whose texts are names of users."""
    return [[code(value) if isinstance(value, str) else value for value in row] for row in table.rows]


def _percent(part: float, whole: float) -> Share | None:
    return Share(part / whole) if whole else None


def _summary(report: Mapping[str, Any], manifest: Manifest, files: DataFiles) -> Iterator[Markdown]:
    total, documents = report["total"], report["total"]["documents"]
    share = f" ({documents['kept'] / documents['read']:.1%})" if documents["read"] else ""
    kept = f"{documents['kept']:,} of {counted(documents['read'], 'document')} kept{share}"
    sources = counted(len(report["sources"]), "source")
    yield Markdown(f"{kept}, {size(total['kept_bytes'])} of text, of {sources}.")
    if isinstance(manifest, Snapshot):
        rows = counted(files.rows, "row")
        taken = sum(entry["tokens"] for entry in report["taken"].values())
        of_others = f", {counted(taken, 'token')} of them rows of other snapshots" if taken else ""
        tokens = counted(total["tokens"] + taken, "token")
        yield Markdown(f"{tokens}{of_others}, packed into {rows} of {manifest.sequence_length:,} tokens.")
    if number := manifest.num_taken_down:
        yield Markdown(
            f"{counted(number, 'document')} taken down: loaders hand out none of them. The counts below include them."
        )


def _source(name: str, entry: Mapping[str, Any], origin: Mapping[str, Any], said: Mapping[str, Any]) -> list[Cell]:
    documents, paths = entry["documents"], (said.get("sources") or {}).get(name, {}).get("path") or ()
    numbers = [documents["read"], documents["kept"], Bytes(entry["kept_bytes"]), entry["tokens"] or None]
    return [code(name), *numbers, *_origin(origin, [paths] if isinstance(paths, str) else paths)]


def _taken(name: str, entry: Mapping[str, Any], origin: Mapping[str, Any]) -> list[Cell]:
    """The row of a source whose rows are those of another snapshot: what was read is in the card of that one."""
    return [code(name), None, entry["documents"], None, entry["tokens"], *_origin(origin, ())]


def _origin(origin: Mapping[str, Any], paths: Sequence[str]) -> list[Cell]:
    """The licence of a source, its dates, who wrote it, and where it is from: its homepage, and the paths of its files where
    they are URLs. Paths of one machine tell nobody anything."""
    license = code(origin["license"]) if origin["license"] else Markdown("not stated")
    if origin["license_field"]:
        license = Markdown(f"by document, in {code(origin['license_field'])}; otherwise {license}")
    remote = [path for path in paths if is_remote(path.removeprefix("@"))]
    pages = [*([link(origin["homepage"])] if origin["homepage"] else []), *map(code, remote[:3])]
    return [license, _dates(origin["collected"]), _author(origin["synthetic"]), Markdown(", ".join(pages)) if pages else None]


def _dates(collected: Mapping[str, str] | None) -> Markdown | None:
    if not collected:
        return None
    first, last = collected["from"], collected["to"]
    return prose(first if first == last else f"{first} to {last}")


def _author(synthetic: Any) -> Markdown | None:
    if not synthetic:
        return None
    if synthetic is True:
        return Markdown("yes")
    prompt = synthetic.get("prompt")
    return Markdown(code(synthetic["model"]) + (f", prompt {code(prompt)}" if prompt else ""))


# ------------------------------------------------------------------------------------------------ what was removed


def _removed(report: Mapping[str, Any]) -> Iterator[list[Cell]]:
    """Rows of what was read, what each rule removed, and what was kept: label, condition, documents, share."""
    documents = report["total"]["documents"]
    whole = documents["read"]
    yield [Markdown("read"), None, whole, _percent(whole, whole)]
    for reason, count in documents["dropped"].items():
        stage, _, rule = reason.rpartition(":")
        yield [code(reason), _condition(report["measured"], stage, rule), count, _percent(count, whole)]
    if documents["quarantined"]:
        count = documents["quarantined"]
        yield [Markdown("could not be read or processed"), None, count, _percent(count, whole)]
    yield [Markdown("**kept**"), None, documents["kept"], _percent(documents["kept"], whole)]


def _condition(measured: Mapping[str, Any], stage: str, rule: str) -> Markdown | None:
    """The option and threshold of a rule: "`min_words` at least 50"."""
    for stages in measured.values():
        entry = stages.get(stage, {}).get(rule)
        if entry and entry["option"] and entry["threshold"] is not None:
            side = {"min": "at least", "max": "at most"}.get(entry["side"], "of")
            return Markdown(f"{code(entry['option'])} {side} {entry['threshold']:,.12g}")
    return None


def _duplicates(report: Mapping[str, Any]) -> Rows:
    """Rows of global stages that compare documents: stage, clusters, documents removed, largest cluster."""
    rows: Rows = []
    for stage, entry in report["clusters"].items():
        largest = max((high for _, high, *_ in entry["sizes"]), default=0)
        about = "about " if entry["sampled"] < 1 else ""
        rows.append([code(stage), f"{about}{entry['clusters']:,}", f"{about}{entry['dropped']:,}", f"up to {largest:,}"])
    return rows


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
    return [[code(name or "none"), count, _percent(count, whole)] for name, count in list(counts.items())[:_LISTED]]


def _tokenizer(report: Mapping[str, Any]) -> Iterator[Markdown]:
    entry = report["tokenizer"]
    if entry is None:
        return
    begin = "" if entry["bos_token"] is None else f"; every document begins with {code(entry['bos_token'])}"
    yield Markdown(f"{entry['vocab_size']:,} ids; the end-of-text token is {code(entry['eos_token'])}{begin}.")
    whole = entry["total"]
    if whole["bytes_per_token"]:
        yield Markdown(f"{whole['bytes_per_token']:.3f} bytes per token over {size(whole['bytes'])} of text.")
    if entry["unused"] and whole["documents"]:
        yield Markdown(f"{counted(entry['unused']['count'], 'id')} never occurred.")


def _cost(cost: Mapping[str, Any]) -> Iterator[Markdown]:
    if not cost:
        return
    yield Markdown(f"{cost['core_hours']:,.2f} core-hours of committed tasks.")
    amounts = {"sources_usd": "text of the sources", "compute_usd": "cores", "cluster_usd": "cluster", "total_usd": "in all"}
    told = [f"{what} {cost[name]:,.2f}" for name, what in amounts.items() if cost[name] is not None]
    if told:
        yield Markdown(f"US dollars: {', '.join(told)}.")


def _reproduce(report: Mapping[str, Any], manifest: Manifest) -> Iterator[Markdown]:
    version = code(report["run"]["datapipe"])
    yield Markdown(f"datapipe {version}. `.ci/requirements.txt` of its repository pins every dependency.")
    yield Markdown("`mixture.yaml` beside this file, with all options: `datapipe run mixture.yaml`.")
    yield Markdown(f"Fingerprint of the snapshot: {code(manifest.fingerprint)}. It covers the checksum of every data file.")
    if isinstance(manifest, Snapshot):
        yield Markdown(f"Fingerprint of the tokenizer: {code(manifest.tokenizer.fingerprint)}. Seed: {manifest.seed}.")
    yield Markdown("The same mixture over the same input gives the same bytes, on any number of cores or machines.")


def _limits(report: Mapping[str, Any]) -> Iterator[Markdown]:
    documents = report["total"]["documents"]
    if documents["quarantined"]:
        count = documents["quarantined"]
        are = "is" if count == 1 else "are"
        yield Markdown(f"{counted(count, 'document')} could not be read or processed, and {are} missing.")
        reasons: Sequence[tuple[str, int]] = Counter(documents["quarantine_reasons"]).most_common(_LISTED)
        for reason, number in reasons:
            yield Markdown(f"of these {number:,}: {code(masked(reason))}")
    for entry in report["unreadable_files"]:
        files = counted(entry["count"], "input file")
        yield Markdown(f"{files} of {code(entry['source'])} could not be read whole; what was behind the damage is missing.")
    for entry in report["contamination"]:
        if entry["undetectable"]:
            items = f"{entry['undetectable']:,} of {entry['entries']:,} items of {code(entry['name'])}"
            yield Markdown(f"{items} cannot be found by {code(entry['stage'])}, so nobody knows whether they are in the text.")
    if not report["contamination"]:
        yield Markdown("No evaluation set was searched for.")
    counted_languages = (report["tokenizer"] or {"sources": {}})["sources"]
    truncated = [name for name, source in counted_languages.items() if source["languages"] is None]
    if truncated:
        yield Markdown(f"More languages than are counted: {', '.join(map(code, truncated))}.")
    for entry in report["excesses"]:
        dropped, read = entry["dropped"], entry["read"]
        what = f"{code(entry['stage'])} removed {dropped:,} of {counted(read, 'document')} of {code(entry['source'])}"
        yield Markdown(f"{what}, more than the {entry['allowed']:.2%} that the mixture expects.")
    if unknown := report["provenance"]["licenses"].get("unknown"):
        yield Markdown(f"The licence of {counted(unknown['documents'], 'document')} is not known.")
    if not any(name.partition(":")[0].startswith("redact.") for name in report["total"]["counts"]):
        yield Markdown("No stage of datapipe looked for personal data or secrets.")
