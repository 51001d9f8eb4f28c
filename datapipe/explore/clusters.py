"""Clusters of duplicates: lists of them, and one with its texts side by side.

    drops, 1st pass  ─▶  survivors, a keyed sample beyond `MOST_CLUSTERS`
    drops, 2nd pass  ─▶  for each: how many were dropped for it, least and greatest similarity

Both passes read two or three columns of one record batch at a time. The result is kept for the next page of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import catalogue
from datapipe.columns import KEY_BYTES, compute, key_halves, key_matrix, numbers
from datapipe.errors import UserError
from datapipe.explore.differences import difference
from datapipe.explore.document.replay import finite
from datapipe.explore.documents import stage_alias
from datapipe.explore.output import BrowsedOutput
from datapipe.explore.query import MOST_LISTED
from datapipe.explore.rows import Rows
from datapipe.explore.stored import StoredRows
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.global_stage import Global

SORTS = ("size", "least_alike", "sample")
MOST_CLUSTERS = 1 << 17
MOST_MEMBERS = 50
_SEED = seed_for(0, "inspect")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Clusters:
    """The clusters of one stage, (num_clusters,) each.

    Attributes:
        survivors: byte strings of 16, ascending.
        hashes: keyed hashes of the survivors.
        dropped: documents that were dropped for each.
        least, greatest: similarity; infinite where none was measured.
    """

    survivors: np.ndarray
    hashes: np.ndarray
    dropped: np.ndarray
    least: np.ndarray
    greatest: np.ndarray


class ClusterView:
    """Clusters of an output."""

    def __init__(
        self,
        output: BrowsedOutput,
        stored: StoredRows,
        rows: Rows,
        text: Callable[[int, Mapping[str, Any]], tuple[str, str]],
    ) -> None:
        self._output, self._stored, self._rows, self._text = output, stored, rows, text
        self._of = lru_cache(maxsize=8)(self._clusters)

    def listed(self, stage: str, source: str, sort: str, offset: int, limit: int) -> dict[str, Any]:
        """A page of the clusters of a stage. Raises UserError for an order that there is not."""
        if sort not in SORTS or limit > MOST_LISTED:
            raise UserError(f"sort '{sort}', limit {limit}: expected one of {', '.join(SORTS)}, and at most {MOST_LISTED}.")
        found = self._of(stage, source)
        first = {"size": -found.dropped.astype(np.float64), "least_alike": found.least, "sample": np.zeros(len(found.dropped))}
        order = np.lexsort((found.hashes, first[sort]))[offset : offset + limit]
        return {"total": len(found.survivors), "clusters": [self._entry(stage, found, index) for index in order.tolist()]}

    def _entry(self, stage: str, found: _Clusters, index: int) -> dict[str, Any]:
        least, greatest = float(found.least[index]), float(found.greatest[index])
        return {
            "stage": stage,
            "survivor": self._row(found.survivors[index]),
            "dropped": int(found.dropped[index]),
            "similarity": [least, greatest] if np.isfinite(least) else None,
        }

    def _row(self, key: bytes) -> dict[str, Any]:
        """The row of a document; of one of an earlier run, what is known of it."""
        key = bytes(key).ljust(KEY_BYTES, b"\0")
        row = self._rows.of_key(key)
        nothing = dict.fromkeys(("value", "threshold", "distance", "bytes", "excerpt"))
        name = self._rows.name(key)
        unknown = {"key": key.hex(), "name": name, "id": name, "source": "", "fate": "kept", "stage": "", "rule": "", **nothing}
        return unknown if row is None else row

    def cluster(self, key: bytes, stage: str, members: int) -> dict[str, Any]:
        """A cluster with its texts, and what differs between the survivor and each dropped document."""
        found = self._members(key, stage, min(members, MOST_MEMBERS))
        if not found:
            raise UserError(f"No document was dropped by '{stage}' in favour of this one. Choose a cluster of api/clusters.")
        survivor = self._row(key)
        text, note = self._shown(survivor)
        listed, first = [], None
        for member_key, similarity in found:
            row = self._row(member_key)
            own, own_note = self._shown(row)
            if text and own:
                parts, other = self._differing(stage, row["source"], text, own)
                first = parts if first is None else first
            else:
                other = [{"text": own, "same": True}] if own else []
            listed.append({"row": row, "similarity": similarity, "parts": other, "note": own_note})
        own_parts = first if first is not None else [{"text": text, "same": True}] if text else []
        return {"survivor": {"row": survivor, "parts": own_parts, "note": note}, "members": listed}

    def _shown(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """The redacted text, as much as is compared, and why there is none."""
        numbers_of = self._rows.lookup.rows_of_key(bytes.fromhex(row["key"]))
        if not numbers_of:
            return "", "A document of an earlier run, whose text is not read here."
        text, note = self._text(numbers_of[0], row)
        return text, "" if text else note

    def _differing(self, stage: str, source: str, first: str, second: str) -> tuple[list[dict], list[dict]]:
        """The parts of two texts."""
        use = self._output.use_of(source, stage)
        built = None if use is None else catalogue.build_stage(use)
        shingles = built.shingles() if isinstance(built, Global) else (5, "word")
        passages = difference(first, second, shingles, context=None).passages
        if not passages:
            return [{"text": first, "same": True}], [{"text": second, "same": True}]
        return tuple(  # type: ignore[return-value]
            [{"text": segment.text, "same": not segment.differs} for segment in side]
            for side in (passages[0].first, passages[0].second)
        )

    # ---------------------------------------------------------------------------------------------- reading drops

    def _drops(self, stage: str, source: str, names: list[str]) -> Iterator[pa.RecordBatch]:
        """The drops of a stage that name a survivor."""
        if source and source not in self._output.sources:
            raise UserError(f"no source '{source}'. The sources of this output: {', '.join(self._output.sources)}.")
        for number, table in enumerate(self._output.tables):
            if table.fate == "dropped" and source in ("", table.source):
                for _, batch in self._stored.batches(number, ["stage", "survivor", *names]):
                    stages = batch.column("stage").dictionary_encode()
                    fitting = [name for name in stages.dictionary.to_pylist() if stage in (name, stage_alias(f"{name}:"))]
                    is_of = compute.is_in(batch.column("stage"), value_set=pa.array(fitting, pa.string()))
                    chosen = batch.filter(compute.and_(is_of, batch.column("survivor").is_valid()))
                    if chosen.num_rows:
                        yield chosen

    def _clusters(self, stage: str, source: str) -> _Clusters:
        survivors, hashes = np.zeros(0, f"S{KEY_BYTES}"), np.zeros(0, np.uint64)
        for batch in self._drops(stage, source, []):
            column = batch.column("survivor")
            both = np.concatenate([survivors, _byte_strings(column)])
            both_hashes = np.concatenate([hashes, keyed_hash(key_halves(column), _SEED)])
            survivors, first = np.unique(both, return_index=True)
            hashes = both_hashes[first]
            if len(survivors) > MOST_CLUSTERS:
                chosen = np.sort(np.argsort(hashes, kind="stable")[:MOST_CLUSTERS])
                survivors, hashes = survivors[chosen], hashes[chosen]
        dropped = np.zeros(len(survivors), np.int64)
        least, greatest = np.full(len(survivors), np.inf), np.full(len(survivors), -np.inf)
        for batch in self._drops(stage, source, ["value"]):
            wanted = _byte_strings(batch.column("survivor"))
            index = np.minimum(np.searchsorted(survivors, wanted), len(survivors) - 1)
            known = survivors[index] == wanted
            np.add.at(dropped, index[known], 1)
            values = numbers(batch.column("value").fill_null(np.nan))
            measured = known & ~np.isnan(values)
            np.minimum.at(least, index[measured], values[measured])
            np.maximum.at(greatest, index[measured], values[measured])
        return _Clusters(survivors=survivors, hashes=hashes, dropped=dropped, least=least, greatest=greatest)

    def _members(self, key: bytes, stage: str, count: int) -> list[tuple[bytes, float | None]]:
        """The first dropped documents of a cluster by keyed hash, with their similarity."""
        found: list[tuple[int, bytes, float | None]] = []
        for batch in self._drops(stage, "", ["key", "value"]):
            column = batch.column("survivor")
            rows = batch.filter(compute.equal(column, pa.scalar(key, column.type)))
            if rows.num_rows:
                hashes = keyed_hash(key_halves(rows.column("key")), _SEED).tolist()
                values = [finite(value) for value in rows.column("value").to_pylist()]
                found = sorted([*found, *zip(hashes, rows.column("key").to_pylist(), values)], key=lambda one: one[:2])[:count]
        return [(member, similarity) for _, member, similarity in found]


def _byte_strings(keys: pa.Array) -> np.ndarray:
    """Keys as (num_keys,) byte strings, which NumPy compares like memory."""
    return np.ascontiguousarray(key_matrix(keys)).view(f"S{KEY_BYTES}").reshape(-1)
