"""Trains a classifier: `datapipe classifier train`.

    labelled texts, files or runs  ─▶  training | held out (`examples.py`)  ─▶  Trainer  ─▶  MODEL
                                                    └──────  figures of MODEL  ◀──────────────┘  ─▶  MODEL.card.json, .md

The figures are those of the written file, as a filter will read it. The model gets its name when it is complete.
"""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from datapipe.dataclass import asdict, dataclass
from datapipe.errors import UserError, suggest
from datapipe.machine.files import replacing
from datapipe.machine.libraries import require
from datapipe.models.card import Figures, card_path, card_text, data_lines, figures_of
from datapipe.models.documents import DocumentInput, is_of_runs, texts_of_mixture
from datapipe.models.examples import Labelling, Limits, Prepared, Trainer, are_numbers, prepare
from datapipe.models.fasttext_training import FastTextTrainer
from datapipe.models.labelled_files import LabelledFiles
from datapipe.models.linear_trainer import LinearTrainer, heaviest_features
from datapipe.report.layout import print_text
from datapipe.stage.models.classifier import Classifier, open_classifier
from datapipe.stage.models.linear import read_file

TRAINERS: dict[str, type[Trainer]] = {"linear": LinearTrainer, "fasttext": FastTextTrainer}
"""The kinds of model that can be trained, by the name that `--kind` takes."""

_SHOWN_FEATURES = 15
_VERSION = 2
_LIBRARIES = ("datapipe", "numpy", "numba", "pyarrow", "scikit-learn", "scipy")
"""Libraries that decide the bytes of a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    documents: DocumentInput
    labelling: Labelling
    limits: Limits
    kind: str
    options: Mapping[str, str]
    output: Path
    replaces: bool


def train(job: TrainingJob, console: Console) -> dict[str, Any]:
    """Trains and measures a model, writes it and its card, and prints the figures. Returns the card. Raises UserError where
    the data, an option or the output path is wrong, DatapipeError where the run of a mixture failed."""
    require("scikit-learn", "datapipe classifier train")
    trainer = trainer_of(job.kind, job.options, job.limits.seed)
    if job.labelling.is_number and not trainer.predicts_numbers:
        able = ", ".join(name for name, kind in TRAINERS.items() if kind.predicts_numbers)
        raise UserError(f"--kind {job.kind}: models of this kind predict no numbers. Expected one of: {able}")
    _check_output(job.output, job.replaces)
    files = None
    if not is_of_runs(job.documents.paths):
        files = LabelledFiles(
            patterns=job.documents.paths,
            text_field=job.documents.text_field,
            label_field=job.labelling.label_field or "label",
            other_fields=(job.labelling.group_field,) if job.labelling.group_field else (),
        )
    work = job.output.with_name(f"{job.output.name}.documents")
    texts = files.read() if files is not None else texts_of_mixture(job.documents, job.labelling, work, console)
    prepared = prepare(texts, job.limits, job.labelling)
    with console.status(f"training on {len(prepared.training):,} documents …"):
        content = trainer.train(prepared.training)
    with replacing(job.output) as partial:
        partial.write_bytes(content)
        opened = open_classifier(partial)
        figures = figures_of(job.output.name, opened, prepared.held_out)
        card = _card(job, trainer, prepared, files, partial, opened, figures)
    written = json.dumps(card, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    card_path(job.output, "json").write_text(written, encoding="utf-8")
    card_path(job.output, "md").write_text(card_text(card, figures.tables()), encoding="utf-8")
    _print(card, figures, job.output, console)
    return card


def trainer_of(kind: str, options: Mapping[str, str], seed: int) -> Trainer:
    if kind not in TRAINERS:
        near, kinds = suggest(kind, TRAINERS), ", ".join(TRAINERS)
        raise UserError(f"--kind {kind}: no such kind of model.{near} Expected one of: {kinds}")
    trainer = TRAINERS[kind]
    known = [name for name in trainer.model_fields if name != "seed"]
    for name in options:
        if name not in known:
            near, names = suggest(name, known), ", ".join(known)
            raise UserError(f"--set {name}: models of the kind {kind} have no such option.{near} They have: {names}")
    try:
        return trainer.model_validate_strings({**options, "seed": str(seed)})
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        raise UserError(f"--set {name}={problem['input']}: {problem['msg']}") from error


def _check_output(output: Path, replaces: bool) -> None:
    if output.exists() and not replaces:
        raise UserError(f"--output {output}: the file exists and is not overwritten. Give --replace, or another name")
    if output.is_dir() or not output.parent.is_dir():
        problem = "it is a folder" if output.is_dir() else "its folder does not exist"
        raise UserError(f"--output {output}: {problem}. Expected a file in an existing folder")


def _card(
    job: TrainingJob,
    trainer: Trainer,
    prepared: Prepared,
    files: LabelledFiles | None,
    model: Path,
    opened: Classifier,
    figures: Figures,
) -> dict[str, Any]:
    limits = job.limits
    heaviest = heaviest_features(read_file(model), prepared.training.texts, _SHOWN_FEATURES) if job.kind == "linear" else {}
    split = {"seed": limits.seed, "held_out": limits.held_out, "max_chars": limits.max_chars, "balanced": limits.balanced}
    return {
        "version": _VERSION,
        "model": job.output.name,
        "sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "kind": job.kind,
        "predicts": opened.kind,
        "labels": list(opened.labels),
        "options": {**trainer.model_dump(mode="json"), **split, "sample_bytes": limits.sample_bytes},
        "data": {
            "inputs": list(job.documents.paths),
            "label": job.labelling.label_field or None,
            "positives": list(job.labelling.positives),
            "negatives": list(job.labelling.negatives),
            "group": job.labelling.group_field or None,
            "is_number": job.labelling.is_number,
            "digest": prepared.digest,
            **asdict(prepared.counts),
            "labels_are_numbers": not job.labelling.is_number and are_numbers(prepared.training.labels),
            "unlabelled": files.num_unlabelled if files else 0,
            "rejected": files.num_rejected if files else 0,
            "trained": len(prepared.training),
            "held_out": len(prepared.held_out),
        },
        "figures": figures.to_json(),
        "heaviest": heaviest,
        "versions": {name: version(name) for name in _LIBRARIES},
    }


def _print(card: dict[str, Any], figures: Figures, output: Path, console: Console) -> None:
    for line in data_lines(card["data"])[1:]:
        print_text(line, console)
    missing = [label for label, number in figures.labels.items() if not number]
    if not figures.measures.num_docs:
        print_text("no document is held out, so there are no figures. Give --held-out 20%, or evaluate the model", console)
    elif missing:
        print_text(f"no held-out document has the label '{missing[0]}': figures are not defined. Give more documents", console)
    for table in figures.tables():
        console.print(table)
    for label, features in card["heaviest"].items():
        print_text(f"heaviest for {label}: {', '.join(ngram.strip() for ngram, _ in features)}", console)
    print_text(f"wrote {output}, {card_path(output, 'json').name} and {card_path(output, 'md').name}", console)
