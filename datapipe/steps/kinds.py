"""The kinds of work of a run, and the plan of all their steps. Pure.

    inputs ─▶ read ─▶ (merge ─▶) match ─▶ compare ─▶ … ─▶ decisions ─▶ apply ─▶ … ─▶ sample ─▶ train ─▶ tokenize ─▶ pack
                                                                                └▶ write, without a tokenizer

Rows in too many sorted runs are merged before they are reduced, and token rows before they are packed.

    map        splits of input, or documents of the step before   ─▶  documents, drops, quarantine, rows to exchange
    reduce     a hash range of the tables of an exchange          ─▶  tables of rows
    merge      a hash range of some files of a table              ─▶  the same rows in one sorted run
    gather     a range of document keys of the final tables       ─▶  drops, cuts and sizes, one file of each
    rank       scores of documents                                ─▶  a summary of those in an interval
    narrow     the summaries of a source                          ─▶  a narrower interval, or the cut
    grid       columns of documents                               ─▶  scores and parts of names, of a source that is split
    cells      scores and parts of names                          ─▶  the names of the cells
    sample     documents                                          ─▶  the words of a keyed sample of them, counted
    train      counted words                                      ─▶  tokenizer.json
    tokenize   documents                                          ─▶  token rows to exchange, of each part of the source
    cell_sizes bytes of token rows by cell                        ─▶  their sums
    size       token rows of a source with a budget of tokens     ─▶  the tokens of each document
    stops      these, of spans of hashes                          ─▶  their sums, narrower spans, or where budgets end
    limit      tokens of documents, and where budgets end         ─▶  drops
    pack       a hash range of the token rows                     ─▶  shards
    write      documents                                          ─▶  files of text, in a run without a tokenizer
    fold       small files of many tasks of a step                ─▶  the same, added up

A step gets its tasks once the step before is committed; until then only its name is known. So the driver compiles the plan
again whenever a step ends, and a resumed run passes the committed steps at once.
"""

from collections.abc import Sequence

from datapipe.config.mixture import Mixture
from datapipe.steps.budget import LimitTask, SizeTask
from datapipe.steps.fold import FoldTask
from datapipe.steps.grid import CellSizesTask, CellsTask, GridTask
from datapipe.steps.kind import LookUp, Plan, Planning, Step, StepKind
from datapipe.steps.map import MapTask
from datapipe.steps.merge import MergeTask
from datapipe.steps.pack import PackTask
from datapipe.steps.pipeline import lay_out
from datapipe.steps.rank import NarrowTask, RankTask
from datapipe.steps.reduce import GatherTask, ReduceTask
from datapipe.steps.request import Request
from datapipe.steps.stops import StopsTask
from datapipe.steps.tokenize import TokenizeTask
from datapipe.steps.train import SampleTask, TrainTask
from datapipe.steps.write import WriteTask

KINDS: list[StepKind] = [
    *(MapTask, ReduceTask, MergeTask, GatherTask, RankTask, NarrowTask, SampleTask, TrainTask),
    *(GridTask, CellsTask, TokenizeTask, FoldTask, CellSizesTask, SizeTask, StopsTask, LimitTask, PackTask, WriteTask),
]
"""Every kind of work, each after those that its steps follow."""


def kind_named(name: str) -> StepKind:
    return next(kind for kind in KINDS if kind.kind == name)


def kinds_of(mixture: Mixture) -> list[StepKind]:
    """The kinds that runs of a mixture may have."""
    return [kind for kind in KINDS if kind.of_tokens in (None, not mixture.tokenizer.is_none)]


def compile_plan(request: Request, look_up: LookUp, before: Plan | None = None, earlier: Sequence[Step] = ()) -> Plan:
    """The plan of a run as of now. `before` is an earlier plan, from fewer records; `earlier` are the committed steps of the
    snapshot that files are added to. Raises UserError where the order of global stages is contradictory."""
    if before is None:
        before = Plan(pipeline=lay_out({name: source.stages for name, source in request.sources.items()}), earlier=earlier)
    planning, kinds = Planning(request, look_up, before), kinds_of(request.mixture)
    for kind in kinds:
        kind.plan(planning)
    for source in request.sources:
        for kind in kinds:
            kind.plan_source(planning, source)
    return planning.plan
