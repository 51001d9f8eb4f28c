"""What a run warns of: each warning once, in report.json and last on the screen; `report/README.md` lists the kinds. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from shlex import quote

from datapipe.credentials import masked
from datapipe.dataclass import asdict
from datapipe.errors import suggest
from datapipe.metrics import DocumentCounts, Packing, UnreadableFile, Work, total_by_name
from datapipe.quantities import counted, rate_mb_per_s
from datapipe.stage.base import LANGUAGE_SETTINGS, OF_KIND, OTHER_KIND, PHONE_REGIONS
from datapipe.steps.budget import OVER_BUDGET
from datapipe.steps.counts import (
    MOST_LOST,
    Loss,
    SourceCounts,
    asked_share,
    excess_drops,
    fields_without_value,
    losses,
    source_counts,
    unreadable_text,
)
from datapipe.steps.kind import Plan
from datapipe.steps.pack import POOLED, PackMetrics, PackTask
from datapipe.steps.request import Request, RunWarning, named
from datapipe.steps.tokenize import TokenizeMetrics
from datapipe.steps.trusted import trusted_warning
from datapipe.token_counts import Fertility

LEAST_KEPT = 0.05
"""Share of a source's documents below which a wrong threshold or field is likely. FineWeb-Edu, a strict selection, has 1.3
trillion of FineWeb's 15 trillion tokens, 9 % (Penedo et al. 2024, arXiv 2406.17557)."""

# Shares above which a run warns: documents without text, tokens that stand for text without a token, samples of tar archives
# without text (wrong endings are likely), documents that are split (best fit alone splits none of them), and tokens that
# BOS-aligned rows have no place for.
MOST_EMPTY, MOST_UNKNOWN, MOST_WITHOUT_TEXT, MOST_SPLIT, MOST_DROPPED = 0.5, 0.001, 0.1, 0.05, 0.05
MOST_WITHOUT_REGION = 99  # documents: fewer are not worth a warning
_LISTED_FILES = 100
_OF_READING = ("missing_field", "unreadable_files")
_ABOUT_FILES = {
    "broken_links": ("files", " cannot be read: a broken link, or no file. Repair it, or `exclude` it."),
    "linked_again": ("links", ". Each folder is read once."),
    "named_twice": ("lines", ": the list names the file before. It is read once."),
}
"""By kind, the name of the list in the details, and the end of the text."""


def run_warnings(request: Request, plan: Plan, of_snapshot: Sequence[RunWarning] = ()) -> list[RunWarning]:
    """All warnings of a run as far as it went, and `of_snapshot`, those of its publication.
    Warnings about a source that is read replace those about its first records."""
    read = [source for source in request.sources if plan.of_kind("map", source)[0].is_committed]
    counts_by_source = {source: source_counts(plan, source) for source in read}
    early = [warning for warning in request.warnings if warning.source not in read or warning.kind not in _OF_READING]
    empty = {warning.source for warning in of_snapshot if warning.kind == "nothing_to_draw"}
    warned = list(_limited(request, counts_by_source))
    for source, counts in counts_by_source.items():
        warned += _null_fields(request, plan, source)
        warned += [unreadable_warning(source, counts.unreadable_files)] if counts.unreadable_files else []
        warned += _read_whole(plan, source)
        warned += [*_without_text(source, counts), *_short_lengths(source, counts)]
        warned += [*_other_kinds(request, source, counts), *_mixed_types(request, plan, source)]
        warned += [*_unknown_regions(request, source, counts), *_unknown_languages(request, source, counts)]
        warned += [] if source in empty else _of_losses(request, source, counts)
        warned += _unknown_tokens(plan, source)
        warned += _of_packing(plan, source)
        warned += _long_conversations(request, plan, source)
    trusted = trusted_warning(plan)
    warned += [*_excesses(request, plan), *_of_tokenizer(request, plan), *_read_again(plan)]
    return [*early, *warned, *([trusted] if trusted else []), *of_snapshot]


def _read_again(plan: Plan) -> Iterator[RunWarning]:
    count = sum(step.totals.rereads for step in plan.steps)
    if count:
        text = (
            f"{counted(count, 'block was', 'blocks were')} read again, because the checksum was wrong at first. The result is "
            f"right. Check network, disks and memory of these machines: nothing protects input files without checksums."
        )
        yield RunWarning(kind="read_again", text=text, details={"count": count})


def unreadable_warning(source: str, files: Sequence[UnreadableFile]) -> RunWarning:
    """The warning about damaged files of a source that the mixture allows."""
    details = {"files": [asdict(file) for file in files[:_LISTED_FILES]], "count": len(files)}
    return RunWarning(kind="unreadable_files", source=source, text=f"{unreadable_text(source, files)}.", details=details)


def files_warning(kind: str, source: str, listed: Sequence[str]) -> RunWarning:
    """A warning of `_ABOUT_FILES`: paths of a source that are passed over, the first by name."""
    key, ending = _ABOUT_FILES[kind]
    details = {key: list(listed[:_LISTED_FILES]), "count": len(listed)}
    return RunWarning.of(kind, source, f"{_first(listed)}{ending}", **details)


def _first(listed: Sequence[str]) -> str:
    return listed[0] + (f" and {len(listed) - 1:,} more" if len(listed) > 1 else "")


def same_file_warning(files: Sequence[tuple[str, str]], others: int) -> RunWarning:
    """The warning about a file that is read more than once: source and URL of each time, and the
    number of `others` that the same sources read more than once."""
    sources = list(dict.fromkeys(source for source, _ in files))
    names = " and ".join(f"'{source}' ({masked(url)})" for source, url in files)
    more = f", and so {'is' if others == 1 else 'are'} {counted(others, 'more file')}" if others else ""
    text = (
        f"the same file is read {counted(len(files), 'time')}, by {names}{more}. Its documents count as often, also in "
        f"training and validation at once, unless a stage such as dedup.exact drops copies. `exclude` it from all but one."
    )
    details = {"sources": sources, "files": [masked(url) for _, url in files], "count": 1 + others}
    return RunWarning(kind="same_file", source=sources[0] if len(sources) == 1 else "", text=text, details=details)


def normalized_warning(where: str, weights: Mapping[str, Fraction]) -> RunWarning:
    """The warning about weights under the key `where` that look like shares and do not add up to 1."""
    total = sum(weights.values())
    shares = {name: float(weight / total) for name, weight in weights.items()}
    became = ", ".join(f"'{name}' {share:.2%}" for name, share in list(shares.items())[:_LISTED_FILES])
    text = (
        f"{where} add up to {float(total):g}, and only their proportions count. They became: {became}. Write weights that add "
        f"up to 1 for that."
    )
    return RunWarning(kind="normalized_weights", text=text, details={"sum": float(total), "shares": shares})


def _null_fields(request: Request, plan: Plan, source: str) -> Iterator[RunWarning]:
    missing = (each for each in request.warnings if each.kind == "missing_field" and each.source == source)
    of_first_records = {warning.details["field"]: warning.details["fields"] for warning in missing}
    spec = request.mixture.sources[source]
    for name in fields_without_value(plan.of_kind("map", source)[0]):
        place = request.mixture.where("sources", source, spec.option_of(name))
        known = of_first_records.get(name, [])
        there = f" The first records have {', '.join(known)}." if known else ""
        text = f"{place}: the field '{name}' is null in every document of the source.{suggest(name, known)}{there}"
        yield RunWarning(kind="null_field", source=source, text=text, details={"field": name})


def _other_kinds(request: Request, source: str, counts: SourceCounts) -> Iterator[RunWarning]:
    numbers = counts.document_counts.counts
    for bound in request.sources[source].stages:
        for name in (bound.name, f"{bound.name} (tag)"):
            other, of_kind = numbers[f"{name}:{OTHER_KIND}"], numbers[f"{name}:{OF_KIND}"]
            if other > of_kind:
                column = next(iter(bound.stage.columns_read()), "")
                text = (
                    f"{bound.name}: {other:,} of {counted(other + of_kind, 'value')} of '{column}' cannot "
                    f"be compared with its limits: they are no numbers, or no dates. Check the column and the limits."
                )
                yield RunWarning.of(
                    "other_kind", source, text, stage=bound.name, field=column, other_kind=other, of_kind=of_kind
                )


def _unknown_regions(request: Request, source: str, counts: SourceCounts) -> Iterator[RunWarning]:
    numbers = counts.document_counts.counts
    for bound in request.sources[source].stages:
        *known, unknown = (numbers[f"{bound.name}:{name}"] for name in PHONE_REGIONS)
        if unknown > max(sum(known), MOST_WITHOUT_REGION):
            text = (
                f"{bound.name}: of {sum(known) + unknown:,} documents with a number like that of a phone, "
                f"{unknown:,} have neither a URL nor a language that implies a country, so numbers of the US were searched. "
                "Add `url` to the source's `keep`, put `filter.language: {keep: [], write: true}` before the stage, or give it "
                "`phone_regions: [US]`."
            )
            yield RunWarning.of("unknown_regions", source, text, stage=bound.name, by_default=unknown, known=sum(known))


def _unknown_languages(request: Request, source: str, counts: SourceCounts) -> Iterator[RunWarning]:
    numbers = counts.document_counts.counts
    for bound in request.sources[source].stages:
        for name in (bound.name, f"{bound.name} (tag)"):
            *known, unknown = (numbers[f"{name}:{counted_as}"] for counted_as in LANGUAGE_SETTINGS)
            if unknown > sum(known):
                column = next(iter(bound.stage.columns_read()), "")
                text = (
                    f"{bound.name}: {unknown:,} of {counted(sum(known) + unknown, 'document')} have no language in the column "
                    f"'{column}' that FineWeb-2 has settings for, and were decided by the default ones. Expected codes such as "
                    f"de or deu_Latn. Check the column, or label the documents with filter.language: {{keep: [], write: true}}."
                )
                details = {"stage": bound.name, "field": column, "by_default": unknown, "known": sum(known)}
                yield RunWarning.of("unknown_languages", source, text, **details)


def _mixed_types(request: Request, plan: Plan, source: str) -> Iterator[RunWarning]:
    planned, _ = plan.widened[source]
    for name, seen in planned.types.items():
        if seen.mixed_in:
            text = (
                f"{request.mixture.where('sources', source, 'keep')}: the field '{name}' has no one type: {seen.mixed_in}. "
                f"Its values are kept as text, numbers and lists as JSON writes them. Declare the type of the column in the "
                f"source: types: {{{name}: string}} keeps it like this, another type quarantines what does not fit."
            )
            yield RunWarning(kind="mixed_types", source=source, text=text, details={"field": name, "types": seen.mixed_in})


def _limited(request: Request, counts_by_source: Mapping[str, SourceCounts]) -> Iterator[RunWarning]:
    limit = request.limit
    cut = [source for source, counts in counts_by_source.items() if counts.document_counts.read >= (limit or 0)]
    if limit is not None and cut:
        whose = f"of source '{cut[0]}'" if len(cut) == 1 else f"of each of {named(cut)}"
        text = f"--limit: only the first {counted(limit, 'document')} {whose} {'was' if limit == 1 else 'were'} read."
        details = {"sources": cut, "limit": limit}
        yield RunWarning(kind="limited", source=cut[0] if len(cut) == 1 else "", text=text, details=details)


def _read_whole(plan: Plan, source: str) -> Iterator[RunWarning]:
    paths = sorted(plan.read_whole[source])
    if paths:
        text = (
            f"{_first(paths)} cannot be cut into ranges, because its records hold archives, or it is damaged, so one task "
            f"read it whole. Nothing is lost. Split such files to read them on all cores."
        )
        yield RunWarning.of("read_whole", source, text, files=paths[:_LISTED_FILES], count=len(paths))


def _excesses(request: Request, plan: Plan) -> Iterator[RunWarning]:
    for excess in excess_drops(plan):
        if excess.on_excess == "warn":
            advice = f"List the duplicates with `datapipe inspect {quote(request.mixture.output)} {excess.inspect}`."
            details = {"stage": excess.stage, "dropped": excess.dropped, "read": excess.read, "allowed": excess.allowed}
            yield RunWarning(kind="excess_drops", source=excess.source, text=f"{excess.text}. {advice}", details=details)


def _of_losses(request: Request, source: str, counts: SourceCounts) -> Iterator[RunWarning]:
    documents, stages = counts.document_counts, request.sources[source].stages
    if not counts.is_complete or not documents.read:
        return
    yield from _empty(source, counts, request.mixture.sources[source].text)
    left = documents.kept + documents.dropped[OVER_BUDGET]
    is_few = left / documents.read < LEAST_KEPT * asked_share(stages)
    if is_few:
        yield _few_kept(source, documents)
    worst = max(documents.dropped.values(), default=0)
    for loss in losses(documents, stages):
        # `few_kept` names what dropped most; where it does, other filters are strict, and deduplication alone is worth a word
        is_known = is_few and (not loss.is_global or worst in loss.dropped.values())
        if loss.share > MOST_LOST and not loss.is_asked and not is_known:
            yield _lost(request.mixture.output, source, loss)


def _lost(output: str, source: str, loss: Loss) -> RunWarning:
    dropped, (reason, _) = loss.dropped.total(), loss.dropped.most_common(1)[0]
    most = f", most of them for {reason.removeprefix(f'{loss.stage}:')}" if reason != loss.stage else ""
    text = (
        f"{loss.stage} dropped {dropped:,} of the {counted(loss.reached, 'document')} that reached it "
        f"({loss.share:.2%}){most}. See some with `datapipe inspect {quote(output)} --dropped {quote(loss.stage)} -n 5`, and "
        f"check its options and the text field of the source."
    )
    return RunWarning.of(
        "lost_to_stage", source, text, stage=loss.stage, dropped=dropped, reached=loss.reached, most_dropped_by=reason
    )


def _empty(source: str, counts: SourceCounts, text_field: str) -> Iterator[RunWarning]:
    kept, empty = counts.document_counts.kept + counts.document_counts.dropped[OVER_BUDGET], counts.empty
    if kept and empty / kept > MOST_EMPTY:
        text = (
            f"{empty:,} of {counted(kept, 'document')} ({empty / kept:.2%}) have no text: it is empty, or "
            f"white space. Check that `text: {text_field}` names the field with the text, or drop them with filter.length: "
            f"{{min_words: 1}}."
        )
        yield RunWarning.of("empty_documents", source, text, empty=empty, kept=kept)


def _few_kept(source: str, documents: DocumentCounts) -> RunWarning:
    quarantine, kept, read = ("quarantine", documents.quarantined), documents.kept, documents.read
    reason, count = max(documents.dropped.items(), key=lambda item: (item[1], item[0]), default=quarantine)
    text = (
        f"{kept:,} of {counted(read, 'document')} kept ({kept / read:.2%}). {reason} took {count:,}. Check the threshold, or "
        f"the text field of the source."
    )
    return RunWarning.of("few_kept", source, text, kept=kept, read=read, most_dropped_by=reason)


def _unknown_tokens(plan: Plan, source: str) -> Iterator[RunWarning]:
    fertility = Fertility()
    for step in plan.of_kind("tokenize", source):
        fertility.add(step.own(TokenizeMetrics).fertility)
    tokens = fertility.total.tokens
    share = fertility.unknown / tokens if tokens else 0.0
    if share > MOST_UNKNOWN:
        text = (
            f"{fertility.unknown:,} of {counted(tokens, 'token')} ({share:.2%}) are the "
            f"unknown token: the tokenizer has no token for their text. Use a tokenizer that knows the text, or all bytes."
        )
        yield RunWarning.of("unknown_tokens", source, text, unknown=fertility.unknown, tokens=tokens)


def _without_text(source: str, counts: SourceCounts) -> Iterator[RunWarning]:
    without = counts.document_counts.counts.get("read:sample_without_text", 0)
    num_samples = counts.document_counts.read + without
    if without > MOST_WITHOUT_TEXT * num_samples:
        text = (
            f"{without:,} of {counted(num_samples, 'sample')} have no text: none of their members has an "
            f"ending under `text` of the format. A base name ends at its first dot, so 1.en.txt ends in en.txt: name such "
            f"endings, `format: {{webdataset: {{text: [en.txt]}}}}`, or set `base_names: last_dot` there."
        )
        yield RunWarning.of("without_text", source, text, without_text=without, samples=num_samples)


def _short_lengths(source: str, counts: SourceCounts) -> Iterator[RunWarning]:
    num_records = counts.document_counts.counts.get("read:short_length", 0)
    if num_records:
        text = (
            f"{counted(num_records, 'record')} of its web archives have a Content-Length that is a few "
            f"bytes short. They are read to their ends, where the next record begins."
        )
        yield RunWarning.of("short_length", source, text, records=num_records)


def _of_packing(plan: Plan, source: str) -> Iterator[RunWarning]:
    for step in plan.of_kind("pack", source):
        tasks = [task for task in step.tasks or () if isinstance(task, PackTask) and task.method in POOLED]
        own = step.own(PackMetrics)
        for length, packing in own.packing.items():
            if tasks and step.is_committed:
                yield from _padding(source, length, packing, tasks, own.cell_parts)
                yield from _dropped(source, length, packing)


def _padding(source: str, length: int, packing: Packing, tasks: Sequence[PackTask], cell_parts: int) -> Iterator[RunWarning]:
    """Warnings about rows of one length. One short row for each part of a source is no fault of the packing, nor are those of
    parts of cells (`cell_parts`)."""
    limit, num_tokens = tasks[0].max_padding, packing.rows * length
    rows, is_aligned = f"source '{source}', rows of {length:,}:", tasks[0].method == "bos_aligned"
    avoidable = packing.padding_tokens - length * len({(task.split, task.stratum) for task in tasks})
    if avoidable > 0 and avoidable / num_tokens > limit:
        share = packing.padding_tokens / num_tokens
        why = "Its pools are small, and the last row of each is short. Raise pack.pool_documents or shards.target_bytes."
        why += " Or to fill the rows would drop more tokens than it saves." if is_aligned else ""
        if (avoidable - length * cell_parts) / num_tokens <= limit:
            why = (
                f"{counted(cell_parts, 'part')} of cells, which are packed by themselves, may end in a short row each. Fewer "
                f"values, bounds or quantiles in split.by, or a smaller sequence_length, pad less."
            )
        text = f"{rows} {share:.2%} is padding, pack.max_padding is {limit:.2%}. {why}"
        details = {"sequence_length": length, "padding_share": share, "max_padding": limit}
        yield RunWarning(kind="padding", source=source, text=text, details=details)
    if packing.documents and packing.split_for_padding / packing.documents > MOST_SPLIT:
        share = packing.split_for_padding / packing.documents
        count = f"{packing.split_for_padding:,} of {counted(packing.documents, 'document')} ({share:.2%})"
        verb = "cut" if is_aligned else "split"
        what = f"Rows of another sequence_length may hold them whole; a larger max_padding {verb}s fewer."
        text = f"{rows} {count} are {verb}, since padding would exceed pack.max_padding, {limit:.2%}. {what}"
        details = {"sequence_length": length, "split": packing.split_for_padding, "documents": packing.documents}
        yield RunWarning(kind="split_for_padding", source=source, text=text, details=details)


def _dropped(source: str, length: int, packing: Packing) -> Iterator[RunWarning]:
    """A warning where much of the text is behind what BOS-aligned rows hold of documents."""
    num_tokens = packing.tokens + packing.dropped_tokens
    if packing.dropped_tokens > MOST_DROPPED * num_tokens:
        text = (
            f"source '{source}', rows of {length:,}: {packing.dropped_tokens:,} of {counted(num_tokens, 'token')} "
            f"({packing.dropped_tokens / num_tokens:.2%}) are dropped: pack.bos_aligned keeps of each document what fits into "
            f"one row. A larger sequence_length keeps more; rows without bos_aligned keep all."
        )
        details = {"sequence_length": length, "dropped_tokens": packing.dropped_tokens, "tokens": num_tokens}
        yield RunWarning(kind="dropped_tokens", source=source, text=text, details=details)


def _long_conversations(request: Request, plan: Plan, source: str) -> Iterator[RunWarning]:
    """A warning about conversations that no row holds whole. Methods without pools cut documents of any length."""
    spec = request.mixture.sources[source]
    if not spec.messages or spec.max_document_tokens is not None or request.mixture.pack.method != "best_fit":
        return
    steps = [step for step in plan.of_kind("pack", source) if step.is_committed]
    by_length = total_by_name(step.own(PackMetrics).packing for step in steps)
    if not by_length:
        return
    length, packing = max(by_length.items())
    num_long = packing.split_documents - packing.split_for_padding
    if num_long:
        may_cut = spec.learn in (None, "assistant")
        cut = ", which cuts longer ones behind an answer; `longer: drop` beside it drops them."
        advice = cut if may_cut else " and `longer: drop`, which drop longer ones."
        text = (
            f"{num_long:,} of {counted(packing.documents, 'conversation')} are longer than rows of {length:,}, so they are cut "
            f"anywhere. Write `max_document_tokens: {length}` in the source{advice}"
        )
        details = {"sequence_length": length, "longer": num_long, "documents": packing.documents}
        yield RunWarning.of("long_conversations", source, text, **details)


def _of_tokenizer(request: Request, plan: Plan) -> Iterator[RunWarning]:
    tokenizer = plan.tokenizer
    training = request.mixture.tokenizer.train
    if tokenizer is not None and training is not None and tokenizer.vocab_size < training.vocab_size:
        text = (
            f"the tokenizer has {tokenizer.vocab_size:,} of the {training.vocab_size:,} tokens asked for: there is too little "
            "text to train on. Add text, raise tokenizer.train.sample_bytes, or ask for fewer."
        )
        details = {"vocab_size": tokenizer.vocab_size, "asked": training.vocab_size}
        yield RunWarning(kind="small_vocabulary", text=text, details=details)
    if tokenizer is not None and tokenizer.fallback_reason:
        work = total_by_name(step.totals.work for step in plan.of_kind("tokenize")).get("tokenize", Work())
        rate = rate_mb_per_s(work.bytes, work.seconds)
        speed = "" if rate is None else f" at {rate:.1f} MB/s a core"
        text = (
            f"`tokenizers` {tokenizer.library_version} encoded the text{speed}. fastokens, 20 to 160 times as fast, does not "
            f"encode with this tokenizer: {tokenizer.fallback_reason}"
        )
        yield RunWarning(kind="slow_tokenizer", text=text)
