"""`datapipe classifier annotate`: scores of a language model for a sample of documents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.options import Limit, Settings, StageWorkers, TextField, Until, command_line, end_by_signals, say, share_of
from datapipe.errors import UserError


def annotate(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT…", help="A mixture, the output of a run with `tokenizer: none`, or files and globs."),
    ],
    rubric: Annotated[Path, typer.Option(metavar="FILE", help="What is asked; mixtures/educational.md is an example.")],
    endpoint: Annotated[str, typer.Option(metavar="URL", help="Base URL of the server, such as http://127.0.0.1:8000/v1")],
    model: Annotated[str, typer.Option(metavar="NAME", help="The model, as the server calls it.")],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the labelled documents.")],
    sample: Annotated[int, typer.Option(min=1, metavar="N", help="Different texts to annotate.")] = 1000,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Only this source of the mixture.")] = None,
    until: Until = "",
    seed: Annotated[int, typer.Option(min=0, help="Of the sample.")] = 0,
    cache: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Answers of all jobs; OUTPUT/cache by default.")] = None,
    api_key_env: Annotated[str, typer.Option(metavar="VAR", help="The environment variable that holds the key.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate tokens and cost; ask nothing.")] = False,
    input_price: Annotated[float, typer.Option(min=0, metavar="PRICE", help="Of a million tokens that are read.")] = 0.0,
    output_price: Annotated[float, typer.Option(min=0, metavar="PRICE", help="Of a million tokens that are written.")] = 0.0,
    max_cost: Annotated[float | None, typer.Option(min=0, help="Stop before this command costs more.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Requests under way at a time.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Of one request.")] = 120.0,
    max_wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long a server is waited for that gives no answer at all.")
    ] = 600.0,
    max_unparsed: Annotated[str, typer.Option(metavar="SHARE", help="Stop where more answers give no score.")] = "50%",
    skip_failed: Annotated[
        bool, typer.Option("--skip-failed", help="Leave out documents that the server refuses, or fails on each time.")
    ] = False,
    set_: Settings = None,
    text: TextField = "text",
    limit: Limit = None,
    workers: StageWorkers = None,
) -> None:
    """Score a sample of documents with a language model, to train on.

    The server speaks the chat completions of OpenAI, as vLLM, SGLang and llama.cpp do. Every answer is kept: the same command
    goes on where it was stopped, and asks nothing twice.

    \b
    datapipe classifier annotate MIXTURE.yaml --sample 2000 \\
      --rubric mixtures/educational.md \\
      --endpoint http://127.0.0.1:8000/v1 --model NAME \\
      --output runs/annotated
    """
    from datapipe.classifier.annotation.annotate import Job, annotate_documents
    from datapipe.classifier.annotation.endpoint import endpoint_of
    from datapipe.classifier.annotation.outcomes import Questions
    from datapipe.classifier.annotation.rubric import read_rubric
    from datapipe.classifier.annotation.spending import Prices
    from datapipe.classifier.documents import DocumentInput
    from datapipe.report.funnel import wide_console

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
            limit=limit,
            workers=workers,
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
        say(f"stopped. All answers are kept. Go on with the same command: `{command_line()}`", to_stderr=True)
        raise typer.Exit(130) from None
