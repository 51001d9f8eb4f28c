"""A trained classifier of any kind: `open_classifier(path)` by the first bytes of the file, and its `scores(texts)`."""

from collections.abc import Sequence
from pathlib import Path

from datapipe.errors import UserError
from datapipe.stage.models import fasttext
from datapipe.stage.models.linear import MAGIC, LinearModel, read_file

POSITIVE = ("1", "true", "yes", "positive", "good", "high", "hq", "keep")
"""Labels that mean the wanted one of two, as public models name it. DCLM's is `hq`."""

Classifier = LinearModel | fasttext.CompiledModel
"""A model that scores texts: `labels` are the names of the classes, one name where it predicts a number. Of the `kind`
"classes" scores are probabilities from 0 to 1; of the kind "number" a score is the predicted number."""


def open_classifier(path: Path) -> Classifier:
    """Opens the model in a local file. Raises UserError for a file that is no model, or a damaged one."""
    try:
        with path.open("rb") as file:
            first = file.read(len(MAGIC))
    except OSError as error:
        raise UserError(
            f"{path}: the model cannot be read: {error.strerror}. Expected a file of `datapipe classifier train`, or "
            f"a .bin or .ftz of fastText"
        ) from error
    return LinearModel(read_file(path)) if first == MAGIC else fasttext.open_model(path)


def positive_label(labels: Sequence[str], positive: Sequence[str] = POSITIVE) -> int | None:
    """The number of the label of two whose name, in lower case, is among `positive`; None for other names."""
    meant = [number for number, label in enumerate(labels) if label.lower() in positive]
    return meant[0] if len(labels) == 2 and len(meant) == 1 else None
