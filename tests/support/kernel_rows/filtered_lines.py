"""Rows of `datapipe/kernels/filters` that drop and edit lines, whose words are partly replaced by what the rules search."""

import random

import numpy as np

from datapipe.kernels.filters import c4, line_rules
from datapipe.kernels.text.marks import mark_table
from datapipe.kernels.types import input_record
from tests.oracles import lines as lines_oracle
from tests.support.kernel_table import Case, Steps, columns, grouped, joined, offsets_of, room, row

_OF_C4 = b"[12]|[]|[1[2]3]|[edit]|[Edit]|[citation needed]|[citation|Lorem Ipsum|lorem|JavaScript|java script|{|Terms of Use"
_OF_C4 += b"|terms\x00of use|privacy POLICY|cookie policy|uses cookies|use of cookies|Use cookies|used cookies|cookies policy"
_OF_C4 += b"|...\n|.\n|\"\n|'\n|?\n"


def _with_c4(case: Case) -> tuple[Case, list[bytes]]:
    case = case.spiced(_OF_C4.split(b"|"), 0.15)
    return case, case.spans(case.lines.starts, case.lines.lengths)


@row(c4.cut_citations)
def cut_citations(case: Case) -> Steps:
    case, lines = _with_c4(case.having([b"one line", *case.texts]))
    starts, stops = case.lines.starts, case.lines.starts + case.lines.lengths
    yield [case.lines, case.data], room(len(starts), np.int64, np.int32) + room(int(stops[-1] - starts[0]), np.uint8)
    clean = list(map(lines_oracle.without_citations, lines))
    between = [case.data[stop:start].tobytes() for stop, start in zip(stops[:-1], starts[1:], strict=True)]
    texts = [line + gap for line, gap in zip(clean, [*between, b""], strict=True)]
    written = joined(texts) if clean != lines else joined([])
    yield sum(map(len, texts)), [offsets_of(texts)[:-1], list(map(len, clean)), written]


@row(c4.classify_lines)
def classify_c4_lines(case: Case) -> Steps:
    case, lines = _with_c4(case)
    clean = list(map(lines_oracle.without_citations, lines))
    lengths = np.array(list(map(len, clean)), np.int32)
    starts = np.cumsum([0, *(lengths + 1)], dtype=np.int64)[:-1]
    flags = case.generator.integers(0, 2, 7) if case.seed % 2 else np.array([0, 1, 0, 1, 1, 1, 1])
    limits = c4.Limits(case.seed % 4, 7, *flags.astype(bool).tolist())
    record = input_record(c4.CleanLines, (starts, lengths, joined(line + b"\n" for line in clean)))
    yield [case.lines, case.data, record, mark_table(), limits], room(len(clean), np.uint8)
    yield None, [[lines_oracle.reason(line, without, list(map(int, limits))) for line, without in zip(lines, clean)]]


@row(c4.sum_documents)
def sum_c4_documents(case: Case) -> Steps:
    case, lines = _with_c4(case)
    reasons = case.generator.integers(0, c4.NUM_REASONS, len(lines)).astype(np.uint8)
    sentences = case.generator.integers(0, 9, len(lines))
    inputs = [case.lines.doc_offsets, case.lines.lengths, case.lines.chars, reasons, sentences, 20]
    yield inputs, room((len(case.texts), c4.NUM_SUMS), np.int64)
    found = list(zip(reasons.tolist(), map(len, lines), sentences.tolist(), case.lines.chars.tolist()))
    rows = []
    for own in grouped(case.lines.doc_offsets, found):
        counts = [sum(reason == each for reason, *_ in own) for each in range(c4.NUM_REASONS)]
        kept = [length for reason, length, *_ in own if reason == c4.KEPT]
        num_long = sum(chars >= 20 for *_, chars in own)
        rows.append([*counts, sum(count for *_, count, _ in own), num_long, sum(kept) + max(len(kept) - 1, 0)])
    yield None, [rows]


@row(c4.join_lines)
def join_lines(case: Case) -> Steps:
    case, _ = _with_c4(case)
    starts, lengths = case.lines.starts, case.lines.lengths
    if case.seed % 3 == 0:  # as citations leave white space at an edge
        starts, lengths = starts - 1, lengths + np.int32(1)
    kept = (case.generator.random(len(starts)) < 0.7).view(np.uint8)
    keep = (case.generator.random(len(case.texts)) < 0.9).view(np.uint8)
    outputs = [*room(len(case.offsets), np.int64), *room(int(lengths.sum()) + len(lengths), np.uint8)]
    clean = input_record(c4.CleanLines, (starts, lengths, case.data))
    yield [case.lines.doc_offsets, clean, kept, keep, mark_table()], outputs
    documents = grouped(case.lines.doc_offsets, list(zip(case.spans(starts, lengths), kept)))
    joint = [lines_oracle.joined([line for line, is_kept in own if is_kept]) for own in documents]
    texts = [text if is_kept else b"" for text, is_kept in zip(joint, keep)]
    yield None, [offsets_of(texts), joined(texts)]


_OF_RULES = b"items in cart|Items In Cart items in cart|items in carts|Read more...|Read more..|\nSign-in|sign-in|\n12 Likes\n"
_OF_RULES += b"|\n(1,234.5k comments!)\n|\n3m_ views\n|\n.5 views\n|\n   a\xc2\xa0\n"
_RULED = [*_OF_RULES.split(b"|"), "read more »»»".encode(), "\nSIGN-IN\u3000".encode(), "\n7 viewsé\n".encode(), b"\n| | --|\n"]
_RULED += ["\nSHOUTING IT É\n".encode(), "\n12345 ²\n".encode()]


def _with_rules(case: Case) -> tuple[Case, list[tuple[int, int, int, bytes]], line_rules.Limits, str]:
    """The case, what becomes of its lines, the limits, and the signs of lines of symbols."""
    rng = random.Random(case.seed)
    case = case.spiced(_RULED, 0.2)
    limits = line_rules.Limits(
        max_uppercase=0.5,
        max_numeric=rng.choice([0.5, 0.999999]),
        counters=rng.random() < 0.8,
        min_words=rng.choice([0, 2]),
        max_phrase_words=rng.choice([10, 4]),
        loose_dots=rng.random() < 0.5,
    )
    symbols = rng.choice(["", "|-"])
    lines = case.spans(case.lines.starts, case.lines.lengths)
    return case, [lines_oracle.classified(line, limits, symbols) for line in lines], limits, symbols


@row(line_rules.classify_lines)
def classify_lines(case: Case) -> Steps:
    case, found, limits, symbols = _with_rules(case)
    tables = [mark_table(), line_rules.symbol_table(symbols), limits]
    outputs = [*room(len(found), np.int32, np.int32), line_rules.room_for_edits(case.lines)]
    yield [case.lines, case.data, *tables], outputs
    reasons, before, after, rests = columns(found, 4)
    yield None, [before, after, reasons, offsets_of(rests)[:-1], list(map(len, rests)), joined(rests)]


@row(line_rules.sum_documents)
def sum_documents(case: Case) -> Steps:
    number, doc_offsets = len(case.lines.starts), case.lines.doc_offsets
    reasons = case.generator.integers(0, line_rules.NUM_REASONS, number).astype(np.uint8)
    before, after = (case.generator.integers(0, 99, number).astype(np.int32) for _ in range(2))
    yield [doc_offsets, reasons, before, after], room((len(case.texts), line_rules.NUM_SUMS), np.int64)
    documents = zip(*(grouped(doc_offsets, column.tolist()) for column in (reasons, before, after)))
    counts = [([own.count(reason) for reason in range(line_rules.NUM_REASONS)], sum(b), sum(a)) for own, b, a in documents]
    yield None, [[[*by_reason, all_before, all_after] for by_reason, all_before, all_after in counts]]


@row(line_rules.write_texts)
def write_texts(case: Case) -> Steps:
    case, found, _, _ = _with_rules(case)
    reasons, _, _, rests = columns(found, 4)
    sizes, rest_starts = np.array(list(map(len, rests)), np.int32), offsets_of(rests)[:-1].copy()
    edits = (np.array(reasons, np.uint8), rest_starts, sizes, joined(rests))
    keep = (case.generator.random(len(case.texts)) < 0.9).view(np.uint8)
    outputs = [*room(len(case.offsets), np.int64), *room(len(case.data), np.uint8)]
    record = input_record(line_rules.LineEdits, edits)
    yield [case.offsets, case.data, case.lines, record, keep, mark_table()], outputs
    starts, lengths, texts = case.lines.starts.tolist(), case.lines.lengths.tolist(), []
    documents = grouped(case.lines.doc_offsets, list(zip(starts, lengths, reasons, rests)))
    for begin, text, own, is_kept in zip(case.begins, case.texts, documents, keep):
        lines = [(start - begin, start + length - begin, reason, rest) for start, length, reason, rest in own]
        texts.append(lines_oracle.written(text, lines) if is_kept else b"")
    yield None, [offsets_of(texts), joined(texts)]
