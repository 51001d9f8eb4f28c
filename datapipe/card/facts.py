"""What a card tells, from the report, the manifest and the mixture: rows of its tables, made of numbers of the run alone. Pure.

Text of users goes through `escaping`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datapipe.card.data_files import DataFiles
from datapipe.card.escaping import Markdown, code, link, plain, prose
from datapipe.card.front_matter import language_counts
from datapipe.config.resolved import parsed_yaml
from datapipe.credentials import masked
from datapipe.metrics import counted, size
from datapipe.shards.manifest import Manifest, Snapshot
from datapipe.stage.base import PHONE_REGIONS
from datapipe.storage import is_remote

NONE = Markdown("·")
_LISTED = 20
"""Languages and reasons of quarantine that are listed, the most frequent first."""

Rows = list[list[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The parts of a card. Each row holds cells as `escaping.shown` takes them."""

    name: str
    summary: list[Markdown]
    sources: Rows
    licenses: Rows
    synthetic: Rows
    has_drawn: bool
    removed: Rows
    duplicates: Rows
    redacted: Rows
    evaluation: Rows
    languages: Rows
    tokenizer: list[Markdown]
    mixture: Rows
    mixture_tokens: int | None
    cost: list[Markdown]
    columns: Rows
    is_output: bool
    for_loader: bool
    path: Markdown
    reproduce: list[Markdown]
    limits: list[Markdown]


def gathered(
    report: Mapping[str, Any], manifest: Manifest, mixture: str, files: DataFiles, place: str, is_output: bool
) -> Facts:
    """The facts of a snapshot.

    Args:
        mixture: mixture.yaml of the snapshot; empty where there is none.
        place: where the files can be loaded from, as the reader of the card would write it.
        is_output: whether the card lies in an output, with report.json beside it and for datapipe's loader.
    """
    said = _parsed(mixture)
    provenance = report["provenance"]
    licenses = _by_name(provenance.get("licenses") or {})
    kinds = _by_name(provenance.get("synthetic") or {})
    schema = files.configurations[0].schema if files.configurations else None
    return Facts(
        name=manifest.name,
        summary=list(_summary(report, manifest, files)),
        sources=[
            *(_source(name, entry, provenance, said) for name, entry in report["sources"].items()),
            *(_taken(name, entry, provenance) for name, entry in report["taken"].items()),
        ],
        licenses=licenses,
        synthetic=kinds if (provenance.get("synthetic") or {}).get("synthetic", {}).get("documents") else [],
        has_drawn=any(row[-1] is not NONE for row in licenses),
        removed=list(_removed(report)),
        duplicates=_duplicates(report),
        redacted=_redacted(report, said),
        evaluation=[
            [
                code(each["name"]),
                code(each["stage"]),
                each["entries"],
                each["contaminated"],
                each["clean"],
                each["undetectable"],
            ]
            for each in report["contamination"]
        ],
        languages=_languages(report),
        tokenizer=list(_tokenizer(report)),
        mixture=_mixture(report),
        mixture_tokens=(report["mixture"] or {}).get("tokens"),
        cost=list(_cost(provenance.get("cost") or {})),
        columns=[] if schema is None else [[code(field.name), code(str(field.type))] for field in schema],
        is_output=is_output,
        for_loader=files.is_packed and is_output,
        path=Markdown(json.dumps(plain(place), ensure_ascii=False)),
        reproduce=list(_reproduce(report, manifest)),
        limits=list(_limits(report)),
    )


def _parsed(mixture: str) -> Mapping[str, Any]:
    try:
        return parsed_yaml(mixture)
    except ValueError:
        return {}


def _percent(part: float, whole: float) -> Markdown:
    return Markdown(f"{part / whole:.2%}") if whole else NONE


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


def _source(name: str, entry: Mapping[str, Any], provenance: Mapping[str, Any], said: Mapping[str, Any]) -> list[Any]:
    origin = (provenance.get("sources") or {}).get(name) or {}
    documents = entry["documents"]
    license = code(origin["license"]) if origin.get("license") else Markdown("not stated")
    if origin.get("license_field"):
        license = Markdown(f"by document, in {code(origin['license_field'])}; otherwise {license}")
    return [
        code(name),
        documents["read"],
        documents["kept"],
        Markdown(size(entry["kept_bytes"])),
        entry["tokens"] or NONE,
        license,
        _dates(origin.get("collected")),
        _author(origin.get("synthetic")),
        _origin(origin.get("homepage"), (said.get("sources") or {}).get(name) or {}),
    ]


def _taken(name: str, entry: Mapping[str, Any], provenance: Mapping[str, Any]) -> list[Any]:
    """The row of a source whose rows are those of another snapshot: what was read is in the card of that one."""
    origin = (provenance.get("sources") or {}).get(name) or {}
    license = code(entry["license"]) if entry.get("license") else Markdown("not stated")
    author, dates = _author(origin.get("synthetic")), _dates(origin.get("collected"))
    page = _origin(origin.get("homepage"), {})
    return [code(name), NONE, entry["documents"], NONE, entry["tokens"], license, dates, author, page]


def _dates(collected: Mapping[str, str] | None) -> Markdown:
    if not collected:
        return NONE
    first, last = collected["from"], collected["to"]
    return prose(first if first == last else f"{first} to {last}")


def _author(synthetic: Any) -> Markdown:
    if not synthetic:
        return NONE
    if synthetic is True:
        return Markdown("yes")
    prompt = synthetic.get("prompt")
    return Markdown(code(synthetic["model"]) + (f", prompt {code(prompt)}" if prompt else ""))


def _origin(homepage: str | None, source: Mapping[str, Any]) -> Markdown:
    """The homepage of a source, and the paths of its files where they are URLs. Paths of one machine tell nobody anything."""
    paths = source.get("path") or ()
    remote = [path for path in ([paths] if isinstance(paths, str) else paths) if is_remote(path.removeprefix("@"))]
    told = [*([link(homepage)] if homepage else []), *map(code, remote[:3])]
    return Markdown(", ".join(told)) if told else NONE


def _by_name(entries: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Rows of what is kept: name, documents, text, tokens, tokens drawn."""
    return [
        [
            code(name),
            numbers["documents"],
            NONE if numbers["bytes"] is None else Markdown(size(numbers["bytes"])),
            NONE if numbers["tokens"] is None else numbers["tokens"],
            NONE if numbers["drawn_tokens"] is None else numbers["drawn_tokens"],
        ]
        for name, numbers in entries.items()
    ]


# ------------------------------------------------------------------------------------------------ what was removed


def _removed(report: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Rows of what was read, what each rule removed, and what was kept: label, condition, documents, share."""
    documents = report["total"]["documents"]
    whole = documents["read"]
    yield [Markdown("read"), NONE, whole, _percent(whole, whole)]
    for reason, count in documents["dropped"].items():
        stage, _, rule = reason.rpartition(":")
        yield [code(reason), _condition(report["measured"], stage, rule), count, _percent(count, whole)]
    if documents["quarantined"]:
        count = documents["quarantined"]
        yield [Markdown("could not be read or processed"), NONE, count, _percent(count, whole)]
    yield [Markdown("**kept**"), NONE, documents["kept"], _percent(documents["kept"], whole)]


def _condition(measured: Mapping[str, Any], stage: str, rule: str) -> Markdown:
    """The option and threshold of a rule: "`min_words` at least 50"."""
    for stages in measured.values():
        entry = (stages.get(stage) or {}).get(rule)
        if entry and entry.get("option") and entry.get("threshold") is not None:
            side = {"min": "at least", "max": "at most"}.get(entry["side"], "of")
            return Markdown(f"{code(entry['option'])} {side} {entry['threshold']:,.12g}")
    return NONE


def _duplicates(report: Mapping[str, Any]) -> Rows:
    """Rows of global stages that compare documents: stage, clusters, documents removed, largest cluster."""
    rows: Rows = []
    for stage, entry in report["clusters"].items():
        largest = max((high for _, high, *_ in entry["sizes"]), default=0)
        sample = entry.get("sampled", 1.0)
        about = "about " if sample < 1 else ""
        removed = f"{about}{entry['dropped']:,}"
        rows.append([code(stage), Markdown(f"{about}{entry['clusters']:,}"), Markdown(removed), Markdown(f"up to {largest:,}")])
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
    counts = language_counts(report)
    whole = sum(counts.values())
    return [[code(name or "none"), count, _percent(count, whole)] for name, count in list(counts.items())[:_LISTED]]


def _tokenizer(report: Mapping[str, Any]) -> Iterator[Markdown]:
    entry = report["tokenizer"]
    if entry is None:
        return
    begin = "" if entry.get("bos_token") is None else f"; every document begins with {code(entry['bos_token'])}"
    yield Markdown(f"{entry['vocab_size']:,} ids; the end-of-text token is {code(entry['eos_token'])}{begin}.")
    whole = entry["total"]
    if whole["bytes_per_token"]:
        yield Markdown(f"{whole['bytes_per_token']:.3f} bytes per token over {size(whole['bytes'])} of text.")
    if entry["unused"] and whole["documents"]:
        yield Markdown(f"{counted(entry['unused']['count'], 'id')} never occurred.")


def _mixture(report: Mapping[str, Any]) -> Rows:
    """Rows of what training draws: source, share, tokens, epochs."""
    sources = (report["mixture"] or {}).get("sources") or {}
    return [
        [
            code(name),
            Markdown(f"{entry['share']:.2%}"),
            NONE if entry["tokens"] is None else entry["tokens"],
            NONE if entry["epochs"] is None else Markdown(f"{entry['epochs']:,.2f}"),
            entry["epoch_tokens"],
        ]
        for name, entry in sources.items()
    ]


def _cost(cost: Mapping[str, Any]) -> Iterator[Markdown]:
    if not cost:
        return
    yield Markdown(f"{cost['core_hours']:,.2f} core-hours of committed tasks.")
    amounts = {"sources_usd": "text of the sources", "compute_usd": "cores", "cluster_usd": "cluster", "total_usd": "in all"}
    told = [f"{what} {cost[name]:,.2f}" for name, what in amounts.items() if cost.get(name) is not None]
    if told:
        yield Markdown(f"US dollars: {', '.join(told)}.")


def _reproduce(report: Mapping[str, Any], manifest: Manifest) -> Iterator[Markdown]:
    version = (report["run"] or {}).get("datapipe")
    yield Markdown(
        f"datapipe {code(version) if version else 'of the version that wrote `report.json`'}. `.ci/requirements.txt` of its "
        f"repository pins every dependency."
    )
    yield Markdown("`mixture.yaml` beside this file, with all options: `datapipe run mixture.yaml`.")
    yield Markdown(f"Fingerprint of the snapshot: {code(manifest.fingerprint)}. It covers the checksum of every data file.")
    if isinstance(manifest, Snapshot):
        yield Markdown(f"Fingerprint of the tokenizer: {code(manifest.tokenizer.fingerprint)}. Seed: {manifest.seed}.")
    yield Markdown("The same mixture over the same input gives the same bytes, on any number of cores or machines.")


def _limits(report: Mapping[str, Any]) -> Iterator[Markdown]:
    documents = report["total"]["documents"]
    if documents["quarantined"]:
        count = documents["quarantined"]
        yield Markdown(f"{counted(count, 'document')} could not be read or processed, and {_are(count)} missing.")
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
    truncated = [
        name for name, source in ((report["tokenizer"] or {}).get("sources") or {}).items() if source.get("languages") is None
    ]
    if truncated:
        yield Markdown(f"More languages than are counted: {', '.join(map(code, truncated))}.")
    for entry in report["excesses"]:
        dropped, read = entry["dropped"], entry["read"]
        what = f"{code(entry['stage'])} removed {dropped:,} of {counted(read, 'document')} of {code(entry['source'])}"
        yield Markdown(f"{what}, more than the {entry['allowed']:.2%} that the mixture expects.")
    licenses = report["provenance"].get("licenses") or {}
    if "unknown" in licenses:
        yield Markdown(f"The licence of {counted(licenses['unknown']['documents'], 'document')} is not known.")
    if not any(name.partition(":")[0].startswith("redact.") for name in report["total"]["counts"]):
        yield Markdown("No stage of datapipe looked for personal data or secrets.")


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
