"""The front matter of a card: what the Hugging Face hub reads of README.md.

Keys are those of the hub's specification (hub-docs, `datasetcard.md`). The hub names licences as SPDX does,
in lower case, with exceptions. A licence that it does not list is `other`, with its name beside it.
"""

import re
from collections.abc import Iterable
from typing import Any

from datapipe.report.card.data_files import Configuration, DataFiles, SplitFiles
from datapipe.report.card.markdown import plain
from datapipe.report.card.provenance import UNCOUNTED, VARIOUS
from datapipe.report.report import Report
from datapipe.report.sections import language_counts
from datapipe.snapshots.export.card import hub_features
from datapipe.stage.licenses import UNKNOWN, named, single_licenses

LEAST_LANGUAGE_SHARE = 0.01  # Share of the documents from which on a language is listed
_HUB_LICENSES = frozenset(
    # hub-docs, `repositories-licenses.md`, November 2026: those that SPDX lists too
    """afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 gpl-2.0 gpl-3.0 isc
    lgpl-2.1 lgpl-3.0 lppl-1.3c mit mpl-2.0 ms-pl ncsa ofl-1.1 osl-3.0 postgresql unlicense wtfpl zlib""".split()  # noqa: SIM905
)
_RENAMED = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl"}


def front_matter(name: str, report: Report, files: DataFiles) -> dict[str, Any]:
    infos = [_info(each, files) for each in files.configurations]
    return {
        **_license(report.provenance.licenses),
        **_languages(report),
        "pretty_name": plain(name),
        "size_categories": [size_category(files.rows)],
        "task_categories": ["text-generation"],
        "tags": ["datapipe", *(["tokenized"] if files.is_packed else [])],
        "configs": [
            {"config_name": each.name, "data_files": [{"split": split.split, "path": _pattern(split)} for split in each.splits]}
            for each in files.configurations
        ],
        **({"dataset_info": infos[0] if len(infos) == 1 else infos} if infos else {}),
    }


def size_category(rows: int) -> str:
    """The hub's category of a number of rows: "n<1K", "10K<n<100K", "n>1T"."""
    if rows < 1000:
        return "n<1K"
    if rows >= 10**12:
        return "n>1T"
    low, high = (f"{10 ** (power % 3)}{' KMBT'[power // 3]}" for power in (len(str(rows)) - 1, len(str(rows))))
    return f"{low}<n<{high}"


def hub_license(license: str) -> str:
    """The hub's name of a single licence of SPDX, or "other"."""
    name = license.lower()
    name = _RENAMED.get(name, re.sub(r"-(only|or-later)$|\+$", "", name))
    return name if name in _HUB_LICENSES or name in _RENAMED.values() else "other"


def _license(licenses: Iterable[str]) -> dict[str, Any]:
    """The licences of all documents; nothing where there are none."""
    names: dict[str, str] = {}  # of the hub by licence
    for license in licenses:
        if license in (UNKNOWN, UNCOUNTED):
            names[UNKNOWN] = UNKNOWN
        else:
            singles = [license] if license == VARIOUS else single_licenses(named(license))
            names |= {single: hub_license(single) for single in singles}
    if not names:
        return {}
    listed = list(dict.fromkeys(names.values()))
    others = [single for single, name in names.items() if name == "other"]
    name = {"license_name": ", ".join(map(plain, others)).lower()} if others else {}
    return {"license": listed[0] if len(listed) == 1 else listed, **name}


def _languages(report: Report) -> dict[str, Any]:
    counts = {name: entry.documents for name, entry in language_counts(report).items()}
    least = sum(counts.values()) * LEAST_LANGUAGE_SHARE
    listed = [name for name, count in counts.items() if re.fullmatch(r"[a-z]{2,3}", name) and count >= least]
    return {"language": listed} if listed else {}


def _pattern(split: SplitFiles) -> str | list[str]:
    return split.paths[0] if len(split.paths) == 1 else list(split.paths)


def _info(configuration: Configuration, files: DataFiles) -> dict[str, Any]:
    has_keys = files.is_packed and files.format != "jsonl.zst"  # keys have no type of the hub
    schema, splits = None if has_keys else configuration.schema, configuration.splits
    features = None if schema is None else hub_features(schema, files.format != "parquet")
    return {
        "config_name": configuration.name,
        **({} if features is None else {"features": features}),
        "splits": [{"name": split.split, "num_bytes": split.bytes, "num_examples": split.rows} for split in splits],
        "download_size": sum(split.file_bytes for split in splits),
        "dataset_size": sum(split.bytes for split in splits),
    }
