"""`datapipe classifier train`: trains a classifier on labelled documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.options import Limit, MaxChars, StageWorkers, TextField, Until, end_by_signals, share_of, size_of
from datapipe.errors import UserError


def train(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…", help="Labelled files or globs; or a mixture, or the output of a run without tokenizer."
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE", help="The model to write; its card stands beside it.")],
    kind: Annotated[str, typer.Option(metavar="KIND", help="linear, or fasttext: a standard .bin.")] = "linear",
    text: TextField = "text",
    label: Annotated[
        str, typer.Option(metavar="FIELD", help="The field with the label or number; with files `label` by default.")
    ] = "",
    number: Annotated[bool, typer.Option("--number", help="Labels are numbers on a scale, and a number is predicted.")] = False,
    positive: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With a mixture: a source of wanted text, may be repeated. With files: the label."),
    ] = None,
    negative: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With a mixture: a source of other text; all others by default.")
    ] = None,
    group_by: Annotated[
        str, typer.Option(metavar="FIELD", help="Documents with the same value are all trained on, or all held out.")
    ] = "",
    held_out: Annotated[str, typer.Option(metavar="SHARE", help="Documents to measure with, not trained on.")] = "20%",
    sample: Annotated[str, typer.Option(metavar="SIZE", help="Text of each label at most, chosen by keyed hash.")] = "64MB",
    max_chars: MaxChars = None,
    balanced: Annotated[bool, typer.Option("--balanced", help="Each label counts as much as any other.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample, the split and the training.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="An option of the kind, as in --set characters=true; may be repeated."
        ),
    ] = None,
    until: Until = "",
    limit: Limit = None,
    workers: StageWorkers = None,
    engine: Annotated[str, typer.Option(metavar="local|ray", help="Runs the stages of a mixture.")] = "local",
    address: Annotated[str | None, typer.Option(metavar="ADDR", help="A running Ray cluster: auto, or host:port.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a model of this name.")] = False,
) -> None:
    """Train a classifier on labelled documents, and measure it.

    The same documents and options give the same bytes. Figures are
    those of documents that were not trained on.

    \b
    datapipe classifier train "data/*.jsonl" --output hq.model
    datapipe classifier train MIXTURE.yaml --output hq.model \\
      --positive books --negative web
    """
    from datapipe.classifier.documents import DocumentInput, is_of_runs
    from datapipe.classifier.examples import Labelling, Limits
    from datapipe.classifier.train import TrainingJob
    from datapipe.classifier.train import train as train_model
    from datapipe.report.funnel import wide_console

    is_run = is_of_runs(inputs)
    job = TrainingJob(
        documents=DocumentInput(
            paths=tuple(inputs), until=until, text_field=text, limit=limit, workers=workers, engine=engine, address=address
        ),
        labelling=Labelling(
            label_field=label,
            group_field=group_by,
            is_number=number,
            positive=_positive_label(positive, negative, is_run),
            positives=tuple(positive or ()) if is_run else (),
            negatives=tuple(negative or ()) if is_run else (),
        ),
        limits=Limits(
            sample_bytes=size_of("--sample", sample),
            max_chars=max_chars,
            held_out=float(share_of("--held-out", held_out)),
            seed=seed,
            balanced=balanced,
        ),
        kind=kind,
        options=_options(set_ or ()),
        output=output,
        replaces=replace,
    )
    end_by_signals()
    train_model(job, wide_console())


def _positive_label(positive: Sequence[str] | None, negative: Sequence[str] | None, is_run: bool) -> str | None:
    if is_run or not (positive or negative):
        return None
    if negative or not positive or len(positive) > 1:
        raise UserError("--positive and --negative name sources of a mixture. With files give --positive LABEL, once")
    return positive[0]


def _options(pairs: Sequence[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UserError(f"--set {pair}: expected NAME=VALUE, such as --set characters=true")
    return dict(pair.split("=", 1) for pair in pairs)
