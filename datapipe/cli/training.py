"""What is trained: `datapipe tokenizer train`, and `datapipe classifier train`, `annotate` and `evaluate`."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.options import Json, Limit, Settings, command_line, end_by_signals, print_json, share_of, show, size_of
from datapipe.errors import UserError

Until = Annotated[str, typer.Option(metavar="STAGE", help="Take documents before this stage. Default: filter.classifier.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes that run the stages. Default: one for each core.")]
TextField = Annotated[str, typer.Option(metavar="FIELD", help="With files: the field with the text.")]
MaxChars = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of characters to read from the start of each text, as in filter.classifier."),
]


def train(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…", help="Labelled files or globs; or a mixture, or the output of a run without tokenizer."
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE", help="The model to write. Its card is written beside it.")],
    kind: Annotated[str, typer.Option(metavar="KIND", help="linear, or fasttext: a standard .bin.")] = "linear",
    text: TextField = "text",
    label: Annotated[
        str, typer.Option(metavar="FIELD", help="The field with the label or number. Default with files: label.")
    ] = "",
    number: Annotated[bool, typer.Option("--number", help="Labels are numbers on a scale, and a number is predicted.")] = False,
    positive: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With a mixture: a source of positive examples; may be repeated. With files: the positive label.",
        ),
    ] = None,
    negative: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With a mixture: a source of negative examples. Default: all other sources."),
    ] = None,
    group_by: Annotated[
        str, typer.Option(metavar="FIELD", help="Documents with the same value of FIELD are all trained on, or all held out.")
    ] = "",
    held_out: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of the documents to measure with. They are not trained on.")
    ] = "20%",
    sample: Annotated[
        str, typer.Option(metavar="SIZE", help="Maximum bytes of text for each label, chosen by keyed hash.")
    ] = "64MB",
    max_chars: MaxChars = None,
    balanced: Annotated[bool, typer.Option("--balanced", help="Give each label the same weight.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample, the split and the training.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="An option of the kind, as in --set characters=true; may be repeated."
        ),
    ] = None,
    until: Until = "",
    limit: Limit = None,
    workers: Workers = None,
    engine: Annotated[str, typer.Option(metavar="local|ray", help="Runs the stages of a mixture.")] = "local",
    address: Annotated[str | None, typer.Option(metavar="ADDR", help="A running Ray cluster: auto, or host:port.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a model of this name.")] = False,
) -> None:
    """Train a classifier on labelled documents, and measure it.

    The same documents and options give the same bytes. The figures are those of documents that the model was not trained
    on.

    \b
    datapipe classifier train "data/*.jsonl" --output hq.model
    datapipe classifier train MIXTURE.yaml --output hq.model \\
      --positive books --negative web
    """
    from datapipe.engine.run import RunOptions
    from datapipe.models.documents import DocumentInput, is_of_runs
    from datapipe.models.examples import Labelling, Limits
    from datapipe.models.train import TrainingJob
    from datapipe.models.train import train as train_model
    from datapipe.report.layout import wide_console

    is_run = is_of_runs(inputs)
    job = TrainingJob(
        documents=DocumentInput(
            paths=tuple(inputs),
            until=until,
            text_field=text,
            options=RunOptions(limit=limit, workers=workers, engine=engine, address=address),
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
        options=_pairs("--set", set_ or (), "NAME=VALUE, such as --set characters=true"),
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


def annotate(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT…", help="A mixture, the output of a run with `tokenizer: none`, or files and globs."),
    ],
    rubric: Annotated[
        Path, typer.Option(metavar="FILE", help="The question to the model; mixtures/educational.md is an example.")
    ],
    endpoint: Annotated[str, typer.Option(metavar="URL", help="Base URL of the server, such as http://127.0.0.1:8000/v1")],
    model: Annotated[str, typer.Option(metavar="NAME", help="Name of the model on the server.")],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the labelled documents.")],
    sample: Annotated[int, typer.Option(min=1, metavar="N", help="Number of different texts to annotate.")] = 1000,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Only this source of the mixture.")] = None,
    until: Until = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
    cache: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the answers of all jobs. Default: OUTPUT/cache.")
    ] = None,
    api_key_env: Annotated[str, typer.Option(metavar="VAR", help="The environment variable that holds the key.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate tokens and cost, without a request.")] = False,
    input_price: Annotated[float, typer.Option(min=0, metavar="PRICE", help="Price of a million input tokens.")] = 0.0,
    output_price: Annotated[float, typer.Option(min=0, metavar="PRICE", help="Price of a million output tokens.")] = 0.0,
    max_cost: Annotated[float | None, typer.Option(min=0, help="Stop before the cost exceeds this amount.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Number of concurrent requests.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Timeout of one request.")] = 120.0,
    max_wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time to wait for a server that does not answer.")
    ] = 600.0,
    max_unparsed: Annotated[
        str, typer.Option(metavar="SHARE", help="Stop when a larger share of the answers has no score.")
    ] = "50%",
    skip_failed: Annotated[
        bool, typer.Option("--skip-failed", help="Leave out documents that the server refuses, or fails on each time.")
    ] = False,
    set_: Settings = None,
    text: TextField = "text",
    limit: Limit = None,
    workers: Workers = None,
) -> None:
    """Score a sample of documents with a language model, to train on.

    The server speaks the chat completions of OpenAI, as vLLM, SGLang and llama.cpp do. Every answer is kept: the same
    command continues where it was stopped, and asks nothing twice.

    \b
    datapipe classifier annotate MIXTURE.yaml --sample 2000 \\
      --rubric mixtures/educational.md \\
      --endpoint http://127.0.0.1:8000/v1 --model NAME \\
      --output runs/annotated
    """
    from datapipe.engine.run import RunOptions
    from datapipe.language_model.endpoint import endpoint_of
    from datapipe.language_model.spending import Prices
    from datapipe.models.annotation.annotate import Job, annotate_documents
    from datapipe.models.annotation.outcomes import Questions
    from datapipe.models.annotation.rubric import read_rubric
    from datapipe.models.documents import DocumentInput
    from datapipe.report.layout import wide_console

    prices = Prices(prompt=input_price, completion=output_price)
    if max_cost is not None and not prices:
        raise UserError("--max-cost requires prices: give --input-price and --output-price, of a million tokens")
    job = Job(
        documents=DocumentInput(
            paths=tuple(inputs),
            source=source,
            until=until,
            settings=tuple(set_ or ()),
            text_field=text,
            options=RunOptions(limit=limit, workers=workers),
        ),
        num_documents=sample,
        seed=seed,
        questions=Questions(rubric=read_rubric(rubric), model=model),
        endpoint=endpoint_of(endpoint, api_key_env, os.environ, timeout),
        output=output,
        cache=cache or output / "cache",
        prices=prices,
        concurrency=concurrency,
        max_wait_s=max_wait,
        max_cost=max_cost,
        max_unparsed=share_of("--max-unparsed", max_unparsed),
        skip_failed=skip_failed,
        is_dry_run=dry_run,
    )
    end_by_signals()
    try:
        annotate_documents(job, wide_console())
    except KeyboardInterrupt:
        show(f"stopped. All answers are kept. Go on with the same command: `{command_line()}`", to_stderr=True)
        raise typer.Exit(130) from None


def evaluate(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL…", help="Models of `classifier train`, or fastText's .bin and .ftz.")
    ],
    data: Annotated[
        list[str], typer.Option(metavar="FILE", help="Labelled documents: a file or glob of any format; may be repeated.")
    ],
    text: Annotated[str, typer.Option(metavar="FIELD", help="The field with the text.")] = "text",
    label: Annotated[str, typer.Option(metavar="FIELD", help="The field with the label, or the number.")] = "label",
    group_by: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Measure each value of this field, too; may be repeated.")
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE=LABEL", help="Read VALUE in the files as LABEL of the models; may be repeated."),
    ] = None,
    positive: Annotated[
        str, typer.Option(metavar="LABEL", help="With two labels, the positive one. Default: found by its name, such as 1.")
    ] = "",
    threshold: Annotated[
        float, typer.Option(metavar="SCORE", help="With two labels: the least score of a positive document.")
    ] = 0.5,
    cut: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="With numbers: the least number of a positive document.")
    ] = None,
    known_only: Annotated[
        bool, typer.Option("--known-only", help="Leave out documents with a label that the models do not know.")
    ] = False,
    max_chars: MaxChars = None,
    as_json: Json = False,
) -> None:
    """Measure classifiers on labelled documents, side by side.

    AUC, average precision and F1 of two classes; macro F1 and the
    confusion matrix of several; RMSE and Spearman of numbers. All
    with 95 % confidence intervals.

    \b
    datapipe classifier evaluate hq.model dclm.bin \\
      --data "test/*.jsonl" --group-by domain
    """
    from datapipe.models import evaluation
    from datapipe.models.evaluation_tables import print_evaluation, to_json
    from datapipe.models.labelled_files import LabelledFiles
    from datapipe.report.layout import wide_console

    files = LabelledFiles(patterns=data, text_field=text, label_field=label, other_fields=tuple(group_by or ()))
    question = evaluation.Question(
        renamed=_pairs("--rename", rename or (), "VALUE=LABEL, such as --rename True=1"),
        positive=positive,
        threshold=threshold,
        cut=cut,
        known_only=known_only,
        max_chars=max_chars,
    )
    evaluated = evaluation.evaluate(models, files, question)
    if as_json:
        print_json(to_json(evaluated))
    else:
        print_evaluation(evaluated, wide_console())


def _pairs(option: str, values: Sequence[str], expected: str) -> dict[str, str]:
    """What stands behind the = of each value, by what stands before it; of `--rename` behind the last one."""
    for value in values:
        if "=" not in value:
            raise UserError(f"{option} {value}: expected {expected}")
    return dict((value.rsplit if option == "--rename" else value.split)("=", 1) for value in values)


def tokenizer_train(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT…", help="Files or globs, of any supported format.")],
    vocab_size: Annotated[
        int, typer.Option(metavar="N", help="Number of tokens: 256 bytes, merges and the end-of-text token.")
    ],
    pattern: Annotated[str, typer.Option(metavar="P", help="Pre-tokenization: gpt2, cl100k, o200k, llama3, qwen2.")] = "gpt2",
    eos: Annotated[str, typer.Option(metavar="T", help="The end-of-text token.")] = "<|endoftext|>",
    sample: Annotated[str, typer.Option(metavar="SIZE", help="Approximate bytes of text to train on.")] = "256MB",
    output: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("tokenizer.json"),
    text: Annotated[str, typer.Option(metavar="FIELD", help="Input field with the text; dots select nested fields.")] = "text",
) -> None:
    """Train a byte-level BPE tokenizer from files, and measure it.

    The figures are those of documents that it was not trained on.

    \b
    datapipe tokenizer train "data/*.jsonl" \\
      --vocab-size 32000 --output tokenizer.json
    """
    from datapipe.engine.train_tokenizer import train_tokenizer_from_files
    from datapipe.report.layout import print_text, wide_console
    from datapipe.report.screen import print_training

    if output.exists() or not output.parent.is_dir():
        problem = "the file exists and is not overwritten" if output.exists() else "its folder does not exist"
        raise UserError(f"--output {output}: {problem}. Expected a new file in an existing folder")
    try:
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:  # checked before the work, which may take long
        raise UserError(f"--output {output}: its folder is not writable: {error.strerror}. Give another folder") from error
    sample_bytes, console = size_of("--sample", sample), wide_console()
    with console.status("") as status:
        trained = train_tokenizer_from_files(
            inputs,
            vocab_size=vocab_size,
            pattern=pattern,
            eos=eos,
            sample_bytes=sample_bytes,
            text_field=text,
            emit=status.update,
        )
    output.write_bytes(trained.content)
    print_training(trained, console)
    print_text(f"wrote {output}", console)
