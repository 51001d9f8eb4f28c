"""What an output may hold before a run publishes into it. Each check raises UserError, with the way out."""

import json
from collections.abc import Mapping
from shlex import quote

from datapipe.config.mixture import Mixture
from datapipe.engine.history import was_whole
from datapipe.errors import UserError
from datapipe.quantities import counted
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardTable
from datapipe.storage.root import Root


def check_is_folder(root: Root) -> None:
    if root.local is not None and root.local.exists() and not root.local.is_dir():
        raise UserError(f"output {root.url} is a file. Expected a folder, or a path where one can be made.")


def check_same_mixture(root: Root, before: Snapshot, mixture: Mixture) -> None:
    """Refuses an output that holds the snapshot of another mixture: of another name, or without a common source."""
    way_out = (
        f"Give this mixture another output (--output), or say --replace: its snapshot becomes the newest in {root.url}, and "
        f'Loader({json.dumps(root.url, ensure_ascii=False)}, snapshot="{before.fingerprint[:12]}") still loads the other.'
    )
    if before.name != mixture.name:
        raise UserError(
            f"{root.url} holds a snapshot of the mixture '{before.name}', and this one is '{mixture.name}'. {way_out}"
        )
    if not before.sources.keys() & mixture.all_sources.keys():
        there, here = _names(before.sources), _names(mixture.all_sources)
        raise UserError(
            f"{root.url} holds a snapshot of the sources {there}, and this mixture has none of them, but {here}. {way_out}"
        )


def _names(sources: Mapping[str, object]) -> str:
    return ", ".join(sorted(sources))


def check_not_whole(root: Root) -> None:
    """Refuses an output that holds the snapshot of a whole run, which that of a limited run would replace."""
    if was_whole(root):
        raise UserError(
            f"{root.url} holds the snapshot of a whole run, and a run with --limit would publish a newer one. Give the limited "
            f"run another output: --output {quote(root.url + '-look')}"
        )


def check_one_part(root: Root, before: Snapshot) -> None:
    """Refuses an output to which files were added by and by, which a run of all files would pack anew."""
    parts = ShardTable.of(before.shards).parts
    if len(parts) and max(parts):
        raise UserError(
            f"{root.url} holds a snapshot to which files were added in {counted(int(max(parts)), 'part')}, and this run would "
            f"pack all rows anew, in another order. To add what is new, run `datapipe run MIXTURE --follow SECONDS`; to pack "
            f"all anew, so that rows are shuffled across parts, `datapipe run MIXTURE --repack`."
        )
