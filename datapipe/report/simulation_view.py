"""`datapipe plan --at`: what a run would be at another size."""

from collections.abc import Iterator

from datapipe.quantities import counted, rough_duration, size
from datapipe.report.layout import NumberTable
from datapipe.steps.simulation import Limit, Simulation

_SMALL_BYTES = 4_000_000  # of input, which takes a core a second or so


def simulation_table(simulation: Simulation) -> NumberTable:
    """A row for each kind of work."""
    table = NumberTable("by kind of work", ["work", "tasks", "core-hours", "written"])
    for kind, tasks in simulation.tasks.items():
        hours = simulation.core_seconds[kind] / 3600
        table.add_row(
            kind, f"{tasks:,}", f"{hours:,.1f}" if hours >= 0.1 else f"{hours:.2g}", size(simulation.bytes_written[kind])
        )
    return table


def simulation_lines(simulation: Simulation) -> Iterator[str]:
    """The time and what limits it; what the run needs and costs; and what these figures go by."""
    seconds, computing = simulation.hours * 3600, sum(simulation.core_seconds.values())
    made = f" and make {_count(simulation.tokens)} tokens" if simulation.tokens else ""
    yield (
        f"at {size(simulation.text_bytes)} of input, {_count(simulation.documents)} documents: about {rough_duration(seconds)} "
        f"on {counted(simulation.cores, 'core')}, which compute for {computing / 3600:,.1f} core-hours{made}"
    )
    if simulation.limits:
        yield f"cores wait: {'; '.join(map(_limit, simulation.limits))}"
    requests = ", ".join(f"{_count(count)} {name}" for name, count in simulation.requests.items())
    yield f"requests, where the output is on an object store: {requests}"
    yield (
        f"bytes: {size(simulation.bytes_read)} read; {size(simulation.peak_work_bytes)} under work/ at most; "
        f"{size(simulation.output_bytes)} in the output"
    )
    yield f"driver: {size(simulation.peak_driver_bytes)} of memory, {rough_duration(simulation.driver_seconds)} for its tasks"
    dollars = simulation.dollars
    yield (
        f"cost: ${dollars['compute']:,.2f} for the cores, ${dollars['requests']:,.2f} for requests, and "
        f"${dollars['storage_month']:,.2f} a month to store the output"
    )
    if simulation.is_measured:
        small = ". Times of so small a run are mostly those of starting: run a larger sample" * (
            simulation.basis_bytes < _SMALL_BYTES
        )
        yield f"by what the last run of this output measured, which read {size(simulation.basis_bytes)} of input{small}"
    else:
        yield (
            "by estimates: no finished run of these steps is in this output. Run a sample of it first, with --limit 10000 and "
            "--output of another folder, and plan with that --output"
        )


def _count(number: int) -> str:
    """A number in short: "25.0 trillion"."""
    for word, unit in (("trillion", 10**12), ("billion", 10**9), ("million", 10**6)):
        if number >= unit:
            return f"{number / unit:,.1f} {word}"
    return f"{number:,}"


def _limit(limit: Limit) -> str:
    why = "for the driver" if limit.is_driver else f"it has {counted(limit.tasks, 'task')}"
    return f"{rough_duration(limit.seconds)} in {limit.step}, {why}"
