"""`datapipe status`, `snapshots` and `clean`: how far a run is, and what an output has published."""

import json
import sys
from typing import Annotated

import typer

from datapipe.cli.options import Json, OutputFolder, end_by_signals, print_json, show
from datapipe.credentials import masked
from datapipe.errors import UserError

_EVERY_S = 2.0


def status(
    output: OutputFolder,
    seconds: Annotated[
        float | None, typer.Argument(min=0.1, metavar="[SECONDS]", help="With --watch: seconds between two reads. Default: 2.")
    ] = None,
    watches: Annotated[bool, typer.Option("--watch", help="Repeat until the run ends.")] = False,
    as_json: Json = False,
) -> None:
    """Show how far a run is, from another terminal or machine.

    It shows the process that holds the output, the steps, the work of each worker, the last failure, and the time left. The
    exit status is 3 for a run that was killed, stopped or failed. With --watch it is that of the run, unless it was killed.

    \b
    datapipe status runs/trial --watch 10
    """
    from datapipe.engine.watching.screen import status_lines, watch
    from datapipe.engine.watching.status import read_status
    from datapipe.report.layout import Screen
    from datapipe.storage.root import Root

    if seconds is not None and not watches:
        raise UserError(f"{seconds:g}: expected --watch before the seconds between two reads, or OUTPUT alone")
    if watches:
        if as_json:
            raise UserError("--watch --json: expected one of them. `datapipe run --log-json FILE` writes each event of a run")
        end_by_signals()
        root = Root(output)
        try:
            raise typer.Exit(watch(lambda: read_status(root), masked(output), seconds or _EVERY_S, Screen()))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    state = read_status(Root(output))
    if as_json:
        print_json(state)
    else:
        for line in status_lines(state, masked(output)):
            show(masked(line))
    if state["state"] not in ("running", "finished"):
        raise typer.Exit(3)


def snapshots(
    output: OutputFolder,
    pin: Annotated[
        str | None, typer.Option("--pin", metavar="DIGITS", help="Keep this snapshot, whatever `datapipe clean` deletes.")
    ] = None,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="With --pin: the reason.")] = None,
    unpin: Annotated[str | None, typer.Option("--unpin", metavar="DIGITS", help="Remove the pin of this snapshot.")] = None,
) -> None:
    """List the snapshots of an output and their changes, or pin one.

    Each line has the time of publication, the tokens or documents, and the size. "its own" is the size of the shards that
    no other snapshot has, unless that is all. `datapipe clean` never deletes a pinned snapshot. DIGITS are the first digits
    of its fingerprint.

    \b
    datapipe snapshots runs/trial --pin 3f2a81 --why "run 7"
    """
    import time

    from datapipe.report.layout import print_text, wide_console
    from datapipe.report.snapshot_list import print_snapshots
    from datapipe.shards.snapshots import pin_snapshot, publications, unpin_snapshot
    from datapipe.storage.root import Root

    if pin is not None and unpin is not None:
        raise UserError("--pin --unpin: expected one of them")
    if why is not None and pin is None:
        raise UserError(f"--why {why}: expected --pin DIGITS beside it")
    root = Root(output)
    if pin is not None:
        pin_snapshot(root, pin, why or "", time.time())
    if unpin is not None:
        unpin_snapshot(root, unpin)
    every = publications(root)
    console = wide_console()
    print_snapshots(root, every, console)
    with_tokens = [each.fingerprint[:12] for each in every if each.snapshot.has_tokens]
    place = json.dumps(masked(output), ensure_ascii=False)
    opens = f' `Loader({place}, snapshot="{with_tokens[0]}")` opens another.' if len(with_tokens) > 1 else ""
    print_text(f"\nThe last one is the newest.{opens}", console)


def clean(
    output: OutputFolder,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="Number of the newest snapshots to keep.")] = 1,
    work: Annotated[
        bool, typer.Option("--work", help="Also delete the files under work/ that only `inspect` and later runs need.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be deleted, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --work: delete without asking.")] = False,
) -> None:
    """Delete what the newest snapshots do not need.

    It deletes older snapshots, their shards, and the files of their tasks under work/. Open loaders of the others continue.
    Tasks of the last run stay, so that a stopped run resumes, and so do pinned snapshots. With --work it leaves under work/
    what a run with `execution.keep_work: none` leaves; it first lists what is then no longer possible, and asks.
    """
    from datapipe.quantities import counted, size
    from datapipe.report.snapshot_list import NAME_DIGITS, cleaning_lines, pin_line
    from datapipe.snapshots.clean import clean, plan_cleaning
    from datapipe.storage.lock import exclusive
    from datapipe.storage.root import Root

    root = Root(output)
    end_by_signals()
    if yes and not work:
        raise UserError("--yes: expected --work beside it; without --work nothing is asked")
    planned = plan_cleaning(root, keep, work=work)
    if planned.keeps_tasks:
        show(f"{masked(output)}: the last run has not ended, or was killed, so every committed task stays until one ends here")
    kept = counted(len(planned.kept), "snapshot")
    for each in planned.pins:
        show(masked(f"keeps {each.fingerprint[:NAME_DIGITS]}: {pin_line(each)}"))
    if planned.is_empty:
        show(f"{masked(output)}: nothing to delete; it needs everything for its {kept}")
        return
    if not dry_run:
        with exclusive(root):  # else it would list what it deletes, and then fail beside a run
            pass
    asks = bool(planned.unread or planned.index) and not yes and not dry_run
    show(f"{masked(output)}: {'would delete' if dry_run or asks else 'deleting'}")
    for line in cleaning_lines(planned):
        show(f"  {line}")
    if dry_run:
        show(f"keeps {kept}. Without --dry-run this deletes files of {size(planned.num_bytes)}")
        return
    if asks:
        _confirm(f"Delete files of {size(planned.num_bytes)}?")
    deleted = clean(root, keep, work=work)
    show(f"deleted files of {size(deleted.num_bytes)}; {kept} kept")


def _confirm(question: str) -> None:
    """Asks on a terminal. Raises UserError where nothing can answer, or the answer is no."""
    if not sys.stdin.isatty():
        raise UserError("nothing was deleted, since stdin is no terminal where this could ask. Expected --yes, or --dry-run")
    if not typer.confirm(question):
        raise UserError("nothing was deleted")
