"""Installed libraries: their versions, and what to install where one is missing or cannot be imported.

A stage names its distributions (`Stage.libraries`), which are checked when a run is planned. The libraries of an extra of
datapipe are also imported: one that lacks its own dependencies fails there, not in a worker.
"""

import importlib
import re
from importlib import metadata

from datapipe.errors import UserError

_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
_NAME = re.compile(r"[\w.-]+")


def require(library: str, needed_by: str) -> str:
    """The version of an installed distribution, which can be imported if it belongs to an extra of datapipe. Raises UserError
    otherwise, naming `needed_by`: "extract.html"."""
    extra = _extra_of(library)
    advice = f"Run: pip install 'datapipe[{extra}]'" if extra else f"Run: pip install {library}"
    version = installed_version(library)
    if version == "none":
        raise UserError(f"{needed_by} needs {library}, which is not installed. {advice}")
    failure = _import_failure(library) if extra else ""
    if failure:
        raise UserError(f"{needed_by} needs {library}, which is installed and cannot be imported ({failure}). {advice}")
    return version


def installed_version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "none"


def _extra_of(library: str) -> str:
    """The extra of datapipe with a distribution; "" for none or without datapipe."""
    try:
        requirements = metadata.requires("datapipe") or []
    except metadata.PackageNotFoundError:
        return ""
    for requirement in requirements:
        name, extra = _NAME.match(requirement), _EXTRA.search(requirement)
        if name and extra and extra[1] != "test" and _normalised(name[0]) == _normalised(library):
            return extra[1]
    return ""


def _normalised(name: str) -> str:
    """The form by which names of distributions are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _import_failure(library: str) -> str:
    """Why importing the packages of a distribution fails; "" if it does not."""
    inits = [path.parts for path in metadata.files(library) or () if path.name.startswith("__init__.")]
    for name in sorted({parts[0] for parts in inits if len(parts) == 2}):
        try:
            importlib.import_module(name)
        except Exception as error:  # a library may raise anything when it is imported
            return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""
