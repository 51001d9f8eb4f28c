"""The sections about a run, its tokens and its cost: of the records that every report has. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from datapipe.dataclass import replace
from datapipe.quantities import counted, size
from datapipe.report.cells import Bytes, Cell, Section, Share, Table, cell, share, share_of, short_share
from datapipe.report.drawing import Bars, Stacked
from datapipe.report.records import Interval, Kept, MixtureShares, Origin, Summary
from datapipe.token_counts import TokenCounts
from datapipe.tokens.figures import LanguageFertility, TokenizerFigures

_SHOWN_LANGUAGES = 12
"""Languages of each source in the table of the tokenizer: those with most text."""

_LEAST_STARTING_S = 0.5
_STACKED_SOURCES = 7
_STEADY = 0.05  # Shares that move by less are called the same over the run


def _filled(table: Table) -> Table:
    filled = [column for column in range(len(table.headings)) if any(row[column] is not None for row in table.rows)]
    rows = [[row[column] for column in filled] for row in table.rows]
    return replace(table, headings=[table.headings[column] for column in filled], rows=rows)


def sources(report: Summary) -> Section:
    """What is kept of each source, and where it comes from; rows of other snapshots last."""
    epochs = {name: source.epochs for name, source in report.mixture.sources.items()} if report.mixture else {}
    has_tokens = bool(report.total.tokens)
    entries = {**report.sources, **({"total": report.total} if len(report.sources) > 1 else {})}
    rows: list[list[Cell]] = []
    for name, entry in entries.items():
        documents, tokens = entry.documents, entry.tokens if has_tokens else None
        counts = [documents.read, documents.kept, share(documents.kept, documents.read), tokens]
        is_total = entry is report.total
        rows.append([name, *counts, None if is_total else epochs.get(name), Bytes(entry.kept_bytes)])
        rows[-1] += [None] * 4 if is_total else _origin(report.provenance.sources.get(name))
    for name, taken in report.taken.items():
        rows.append([name, None, taken.documents, None, taken.tokens, epochs.get(name), None, *_origin(taken)])
    headings = ["source", "read", "kept", "share", "tokens", "epochs", "text", "licence", "collected", "synthetic", "home"]
    table = _filled(Table(title=heading(report), headings=headings, rows=rows, strong=["total"]))
    return Section(anchor="sources", title="Sources", tables=[table])


def heading(report: Summary) -> str:
    """The run in one line: "trial: 1,032 of 1,904 documents kept (54%), 6,824,645 tokens"."""
    total, documents = report.total, report.total.documents
    amount = counted(total.tokens, "token") if total.packing else f"{size(total.kept_bytes)} of text"
    of_read = f"{documents.kept:,} of {counted(documents.read, 'document')} kept"
    return f"{report.name}: {of_read} ({short_share(documents.kept, documents.read)}), {amount}"


def _origin(origin: Origin | None) -> list[str | None]:
    if origin is None:
        return [None] * 4
    stated = origin.license or "not stated"
    license = f"by document, in {origin.license_field}; otherwise {stated}" if origin.license_field else stated
    dates = origin.collected and " to ".join(dict.fromkeys((origin.collected.first, origin.collected.last)))
    synthetic = origin.synthetic
    if synthetic is True:
        return [license, dates, "yes", origin.homepage]
    prompt = f", prompt {synthetic.prompt}" if synthetic and synthetic.prompt else ""
    return [license, dates, f"{synthetic.model}{prompt}" if synthetic else None, origin.homepage]


def language_counts(report: Summary) -> dict[str, TokenCounts]:
    """Texts by language, most documents first. "" are documents without a language. Empty where languages were not counted."""
    counts: dict[str, TokenCounts] = {}
    for source in report.tokenizer.sources.values() if report.tokenizer else ():
        for name, each in (source.languages or {}).items():
            part = TokenCounts(documents=each.documents, bytes=each.bytes, words=each.words, tokens=each.tokens)
            counts.setdefault(name, TokenCounts()).add(part)
    return dict(sorted(counts.items(), key=lambda item: (-item[1].documents, item[0])))


def languages(report: Summary) -> Section:
    counts = sorted(language_counts(report).items(), key=lambda each: -each[1].bytes)
    tables: list[Table] = []
    if any(name for name, _ in counts):
        whole = sum(each.documents for _, each in counts)
        rows: list[list[Cell]] = [
            [name or "(none)", each.documents, share(each.documents, whole), Bytes(each.bytes), each.tokens]
            for name, each in counts
        ]
        part = share_of(counts[0][1].bytes, sum(each.bytes for _, each in counts))
        title = f"{rows[0][0]} is {part} of the kept text; {counted(len(rows), 'language')} in all"
        headings = ["language", "documents", "share", "text", "tokens"]
        tables.append(Table(title=title, headings=headings, rows=rows, drawing=Bars(column=3)))
    return Section(anchor="languages", title="Languages", tables=tables)


def mixture(report: Summary) -> Section:
    section, shares = Section(anchor="mixture", title="What training draws"), report.mixture
    if not shares:
        return section
    order = sorted(shares.sources, key=lambda name: -shares.sources[name].share)
    rows: list[list[Cell]] = []
    weak: list[str] = []
    for name in order:
        source = shares.sources[name]
        rows.append([name, Share(source.share), source.tokens, source.epochs, source.epoch_tokens, source.max_epochs])
        for number, stratum in enumerate(source.strata or ()):
            kept, times = counted(stratum.documents, "document"), counted(stratum.repeat, "time")
            weak.append(f"  {name}, stratum {number}: {kept}, {times} an epoch")
            rows.append([weak[-1], None, None, None, stratum.tokens, None])
    title = f"{_mixture_title(shares)}: {order[0]} is {shares.sources[order[0]].share:.1%}"
    headings = ["source", "share", "tokens", "epochs", "tokens an epoch", "max epochs"]
    table = Table(title=title, headings=headings, rows=rows, weak=weak, drawing=Bars())
    figures = [_over_the_run(shares.schedule, order)] if shares.schedule else []
    return replace(section, tables=[table], figures=figures)


def _mixture_title(shares: MixtureShares) -> str:
    total, requested = shares.tokens, shares.asked_tokens
    title = "mixture: " + ("endless" if total is None else counted(total, "token"))
    if total is not None and (requested is None or total < requested - requested // 1000):
        title += ", where sources reach their max_epochs" + ("" if requested is None else f", of {requested:,} requested")
    return title + (f", in {counted(shares.phases, 'phase')}" if shares.phases > 1 else "")


def _over_the_run(schedule: Sequence[Interval], order: Sequence[str]) -> Table:
    names = [*order[:_STACKED_SOURCES], *(["others"] if len(order) > _STACKED_SOURCES else [])]
    rows: list[list[float]] = []
    for interval in schedule:
        drawn, whole = interval.tokens, sum(interval.tokens.values()) or 1
        shares = [drawn.get(name, 0) / whole for name in order[:_STACKED_SOURCES]]
        others = sum(drawn.get(name, 0) for name in order[_STACKED_SOURCES:]) / whole
        rows.append([interval.start_tokens, interval.stop_tokens, *map(Share, [*shares, others][: len(names)])])
    moves = max(max(column) - min(column) for column in list(zip(*rows))[2:])
    title = "Shares stay the same over the run" if moves < _STEADY else "Shares change over the run"
    return Table(title=title, headings=["tokens from", "to", *names], rows=rows, drawing=Stacked())


def tokenizer(report: Summary) -> Section:
    section, figures = Section(anchor="tokenizer", title="Tokenizer"), report.tokenizer
    if figures is None:
        return section
    begin = "" if figures.bos_token is None else f"; every document begins with {figures.bos_token}"
    ends = f"The end-of-text token is {figures.eos_token}{begin}."
    return replace(section, tables=[fertility_table(figures)], notes=[ends, *tokenizer_notes(figures)])


def fertility_table(figures: TokenizerFigures) -> Table:
    """Bytes per token and tokens per word of sources, languages with most text, and all sources."""
    rows: list[list[Cell]] = []
    for name, source in figures.sources.items():
        rows.append(_fertility(name, source))
        by_size = sorted((source.languages or {}).items(), key=lambda each: (-each[1].bytes, each[0]))
        for language, counts in by_size[:_SHOWN_LANGUAGES]:
            rows.append(_fertility(f"{name} · {language or '(no language)'}", counts))
        if len(by_size) > _SHOWN_LANGUAGES:
            rows.append([f"{name} · {counted(len(by_size) - _SHOWN_LANGUAGES, 'more language')}", *[None] * 5])
    if len(figures.sources) > 1:
        rows.append(_fertility("total", figures.total))
    return Table(
        title=f"tokenizer of {figures.vocab_size:,} ids (tokens exclude those around documents)",
        headings=["source", "tokens", "bytes per token", "tokens per word", "documents", "text"],
        rows=rows,
        strong=["total"],
        drawing=Bars(column=2, unit=" bytes per token") if any(row[2] for row in rows) else None,
    )


def _fertility(name: str, counts: LanguageFertility) -> list[Cell]:
    return [name, counts.tokens, counts.bytes_per_token, counts.tokens_per_word, counts.documents, Bytes(counts.bytes)]


def tokenizer_notes(figures: TokenizerFigures) -> Iterator[str]:
    unknown = ", ".join(f"{name} {each.unknown_tokens:,}" for name, each in figures.sources.items() if each.unknown_tokens)
    if unknown:
        yield f"Tokens of text that the tokenizer does not know: {unknown}."
    if figures.unused is not None and figures.total.documents:
        examples = ", ".join(f"{each.id} {each.token!r}" for each in figures.unused.examples)
        ids = f"{figures.unused.count:,} of {figures.vocab_size:,} ids never occur in these texts"
        yield f"{ids} (special tokens not counted){f': {examples}' if examples else ''}."


def provenance(report: Summary) -> Section:
    known = report.provenance
    tables: list[Table] = []
    if known.licenses:
        unit = "tokens" if any(each.tokens for each in known.licenses.values()) else "bytes"
        order = sorted(known.licenses.items(), key=lambda each: -(getattr(each[1], unit) or 0))
        amounts = [getattr(each, unit) or 0 for _, each in order]
        title = f"{order[0][0]} covers {share_of(amounts[0], sum(amounts))} of the kept {unit}"
        drawing = Bars(column=3 if unit == "tokens" else 2)
        tables.append(replace(_kept_table(title, "licence", dict(order)), drawing=drawing))
    if known.synthetic and known.synthetic["synthetic"].documents:
        tables.append(_kept_table("Natural and synthetic text", "text", known.synthetic))
    cost = dict(known.cost or ())
    amounts = [[name.replace("_", " "), value] for name, value in cost.items() if isinstance(value, int | float)]
    tables.append(Table(title="Cost", headings=["", "amount"], rows=amounts))
    return Section(anchor="provenance", title="Licences, synthetic text, cost", tables=tables)


def _kept_table(title: str, name: str, entries: Mapping[str, Kept]) -> Table:
    rows: list[list[Cell]] = [
        [key, kept.documents, None if kept.bytes is None else Bytes(kept.bytes), kept.tokens, kept.drawn_tokens]
        for key, kept in entries.items()
    ]
    return Table(title=title, headings=[name, "documents", "text", "tokens", "tokens drawn"], rows=rows)


def speed(report: Summary) -> Section:
    steps = sorted(report.total.steps.items(), key=lambda each: -each[1].seconds)
    whole = sum(work.seconds for _, work in steps) or 1.0
    rows: list[list[Cell]] = [
        [name, work.seconds, Share(work.seconds / whole), work.mb_per_s, Bytes(work.bytes), work.documents]
        for name, work in steps
    ]
    tables: list[Table] = []
    if rows:
        title = f"time by step, summed over workers: {rows[0][0]} takes {cell(rows[0][2])} of {whole:,.1f} seconds"
        headings = ["step", "seconds", "of the time", "MB/s", "text", "documents"]
        tables.append(Table(title=title, headings=headings, rows=rows, drawing=Bars(unit=" s"), strong=[steps[0][0]]))
    peaks = sorted(report.tasks.items(), key=lambda each: -each[1].peak_bytes)
    table = Table(
        title=f"No worker took more than {size(peaks[0][1].peak_bytes)}, in {peaks[0][0]}" if peaks else "",
        headings=["step", "peak memory of a worker", "seconds", "tasks"],
        rows=[[name, Bytes(each.peak_bytes), each.seconds, each.committed] for name, each in peaks if each.peak_bytes],
        drawing=Bars(),
        note="Peaks of a worker since it started, at the end of a task.",
    )
    return Section(anchor="speed", title="Time and memory", tables=[*tables, table], notes=[*_speed_notes(report)])


def _speed_notes(report: Summary) -> Iterator[str]:
    beside_s = report.total.task_seconds - sum(work.seconds for work in report.total.steps.values())
    if beside_s >= _LEAST_STARTING_S:
        yield f"Beside these, tasks took {beside_s:,.1f} s to start: importing libraries, compiling and loading kernels."
    if steps := report.second_attempts:
        tasks, won = sum(each.tasks for each in steps.values()), sum(each.won for each in steps.values())
        slow = f"{counted(tasks, 'task')} of {', '.join(steps)} took much longer than others"
        yield f"{slow} and had a second attempt, which ended first in {won:,}."
