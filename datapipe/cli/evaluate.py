"""`datapipe classifier evaluate`: measures of models on labelled documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.options import Json, MaxChars, print_json
from datapipe.errors import UserError


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
        typer.Option(metavar="VALUE=LABEL", help="What VALUE in the files means: a LABEL of the models; may be repeated."),
    ] = None,
    positive: Annotated[
        str, typer.Option(metavar="LABEL", help="Of two labels, the one whose score counts. Default: by names such as 1.")
    ] = "",
    threshold: Annotated[
        float, typer.Option(metavar="SCORE", help="Of two labels: from this score on a document counts as positive.")
    ] = 0.5,
    cut: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Of numbers: from this one on a document counts as positive.")
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
    from datapipe.classifier import evaluation
    from datapipe.classifier.evaluation_tables import print_evaluation, to_json
    from datapipe.classifier.labelled_files import LabelledFiles
    from datapipe.report.funnel import wide_console

    files = LabelledFiles(patterns=data, text_field=text, label_field=label, other_fields=tuple(group_by or ()))
    question = evaluation.Question(
        renamed=_renamed(rename or ()),
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


def _renamed(pairs: Sequence[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UserError(f"--rename {pair}: expected VALUE=LABEL, such as --rename True=1")
    return dict(pair.rsplit("=", 1) for pair in pairs)
