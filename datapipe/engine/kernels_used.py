"""Which kernels a run calls, so that they are compiled before its tasks need them."""

from collections.abc import Iterator

from datapipe.config import Mixture, catalogue
from datapipe.errors import UserError
from datapipe.kernels import kernels_named
from datapipe.kernels.text.icu_breaks import LIBRARY
from datapipe.records.source_code import code_of_class
from datapipe.stage.base import Stage
from datapipe.steps.kinds import kinds_of

_OF_LOADERS, _OF_JSON_LINES = "datapipe.kernels.tokens.gather:", "datapipe.kernels.text.json_strings:"
_OF_DICTIONARIES = ("datapipe.kernels.text.icu_breaks:", "datapipe.kernels.text.spaced_words:")


def kernels_of_run(mixture: Mixture) -> list[str]:
    """The kernels that the tasks of a mixture reach, "module:function", sorted. Raises UserError for a wrong
    stage. A kernel that is missing here is compiled by its first caller, while others wait."""
    uses = [use for name in mixture.sources for use in mixture.stages_of(name)]
    stages: list[Stage] = [catalogue.build_stage(use) for use in uses]
    stages += [reader for name in mixture.sources for reader in _readers(mixture, name)]
    others = (_OF_LOADERS,) if mixture.documents.format == "jsonl.zst" else (_OF_LOADERS, _OF_JSON_LINES)
    if not any(LIBRARY in stage.libraries_used() for stage in stages):
        others += _OF_DICTIONARIES
    reached = {kernel for kind in kinds_of(mixture) for kernel in code_of_class(kind).kernels}
    for stage in stages:
        unused = stage.unused_kernels()
        reached.update(kernel for kernel in code_of_class(type(stage)).kernels if not kernel.startswith(unused))
    names = {kernel.qualified_name for name in reached for kernel in kernels_named(name)}
    return sorted(name for name in names if not name.startswith(others))


def _readers(mixture: Mixture, source: str) -> Iterator[Stage]:
    spec = mixture.sources[source]
    for path in [spec.path] if isinstance(spec.path, str) else spec.path:
        try:
            yield catalogue.reader_for(path) if spec.format.name == "auto" else catalogue.build_reader(spec.format)
        except UserError:
            continue  # listing the inputs raises it, with its line in the mixture
