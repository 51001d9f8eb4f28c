"""A run as segments of constant weights, and the samples of each source in every segment.

    phases of the recipe  ─▶  segments, cut where a source reaches its cap  ─▶  whole numbers of samples at each border

**Borders.** The exact share of a source after some segments is a fraction, kept in units of 2^-40 samples that add up to the
samples exactly. The i-th sample of a source is a job: it may be drawn in the segments in which the source's share goes from
i - 1 to i, and it is due when the share reaches i. A job whose share begins and ends in one segment is drawn there. The other
jobs, at most one for each source and border, are matched with segments so that every segment is full. The fractional shares
are a fractional matching of these jobs, and a bipartite graph with a fractional matching has a whole one. So at every border
**each source is within one sample of its share** (plus 2^-40 for each border, from rounding to units), for any weights, and a
source of weight 0 is never drawn from. Earliest-deadline-first finds nearly all of the matching, augmenting paths the rest.

**Caps of cells.** Thousands of cells would make thousands of segments. Where cells have caps, a segment ends where an eighth of
them have reached theirs, in the order in which they do. Each of these is drawn evenly up to the end of the segment.
"""

import heapq
from collections import deque
from collections.abc import Mapping, Sequence

from datapipe.dataclass import dataclass
from datapipe.loader.order.recipe import Recipe

UNIT = 1 << 40  # Units of a sample in which shares are counted
GROUPS_OF_CELLS = 8  # in which cells reach their caps: each makes a segment, and segments take time when a loader is opened
MOST_SAMPLES = 1 << 62
"""A segment that would end beyond this sample, at the cap of a source of next to no weight, has no end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Samples `start` to `stop` (None: no end) of a mixture, drawn by `weights`: source number -> weight above 0."""

    start: int
    stop: int | None
    weights: Mapping[int, int]


def plan_segments(
    recipe: Recipe, sources: Sequence[str], start: int, caps: Mapping[int, int]
) -> tuple[list[Segment], int | None]:
    """The segments of a mixture, and the sample at which every source is exhausted (None if that
    never happens). A group of rows counts as a sample, from the first one of the mixture. `caps`:
    the most samples of a source, by number; past its cap, the other sources share its samples."""
    segments: list[Segment] = []
    first_token, length = start * recipe.sequence_length, recipe.group_rows * recipe.sequence_length
    end = None if recipe.total_tokens is None else (recipe.total_tokens - first_token) // length
    shares = [0] * len(sources)
    sample, exhausted = 0, set[int]()
    at_a_time = -(-len(caps) // GROUPS_OF_CELLS) if any("/" in sources[source] for source in caps) else 0
    for stop, phase_weights in _phases(recipe, sources, first_token, length):
        while stop is None or sample < stop:
            weights = {source: weight for source, weight in phase_weights.items() if source not in exhausted}
            if not weights:
                return _with_endless(segments, sample, phase_weights), sample
            if end is not None and sample >= end:  # later samples are never drawn
                return _with_endless(segments, sample, weights), None
            if at_a_time:
                last = min((each for each in (stop, end) if each is not None), default=None)
                until, newly_exhausted, weights = _next_group(shares, weights, caps, sample, last, at_a_time)
            else:
                until, newly_exhausted = _next_exhausted(shares, weights, caps, sample, stop)
            if until is not None and until >= MOST_SAMPLES:
                until = None
            exhausted |= newly_exhausted
            if until == sample:
                continue
            segments.append(Segment(start=sample, stop=until, weights=weights))
            if until is None:
                return segments, None
            _advance(shares, weights, until - sample)
            sample = until
    raise AssertionError("the last phase has no end")


def border_counts(segments: Sequence[Segment], num_sources: int) -> list[list[int]]:
    """Samples of each source before each segment and after the last finite one:
    (num_finite_segments + 1, num_sources) whole numbers, within one of the shares."""
    finite = [segment for segment in segments if segment.stop is not None]
    shares = [[0] * num_sources]
    for segment in finite:
        shares.append(list(shares[-1]))
        _advance(shares[-1], segment.weights, _length(segment))
    in_segment = [[0] * num_sources for _ in finite]  # (num_finite_segments, num_sources)
    jobs: list[Job] = []
    for source in range(num_sources):
        jobs += _jobs(source, [border[source] for border in shares], in_segment)
    room = [_length(segment) - sum(row) for segment, row in zip(finite, in_segment)]
    for job, number in zip(jobs, match_jobs(jobs, room)):
        if number is not None:
            in_segment[number][job.source] += 1
    counts = [[0] * num_sources]
    for row in in_segment:
        counts.append([before + more for before, more in zip(counts[-1], row)])
    return counts


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A sample that may be drawn in any of several segments."""

    source: int
    window: tuple[int, ...]
    due: bool  # whether it must be drawn in one of them. The last, unfinished sample of a source is not due.


def _jobs(source: int, shares: Sequence[int], in_segment: list[list[int]]) -> list[Job]:
    """The samples of a source that may be drawn in several segments, or that are not due, by its ascending shares before each
    segment and after the last. Counts all others in `in_segment`, (num_segments, num_sources)."""
    jobs: list[Job] = []
    window: list[int] = []
    for number, (before, after) in enumerate(zip(shares, shares[1:])):
        if after == before:
            continue
        begun = -(-before // UNIT)  # samples whose share is begun before this segment
        if before % UNIT:
            window.append(number)
            if after >= begun * UNIT:
                jobs.append(Job(source=source, window=tuple(window), due=True))
        in_segment[number][source] += max(0, after // UNIT - begun)
        if after % UNIT and after > begun * UNIT:
            window = [number]
    if shares[-1] % UNIT:
        jobs.append(Job(source=source, window=tuple(window), due=False))
    return jobs


def match_jobs(jobs: Sequence[Job], room: Sequence[int]) -> list[int | None]:
    """The segment of each job, so that every segment has exactly `room` jobs. None for jobs that are not due and not drawn."""
    segment_of: list[int | None] = _earliest_deadline_first(jobs, room)
    members: list[set[int]] = [set() for _ in room]
    for number, segment in enumerate(segment_of):
        if segment is not None:
            members[segment].add(number)
    remaining, full = sum(room) - sum(map(len, members)), set[int]()
    # a job with a segment keeps one while others are moved, so jobs that are due come first
    for number in sorted(range(len(jobs)), key=lambda number: not jobs[number].due):
        if remaining > 0 and segment_of[number] is None:
            remaining -= _augment(number, jobs, room, members, segment_of, full)
    assert all(segment is not None for job, segment in zip(jobs, segment_of) if job.due)
    assert all(len(assigned) == capacity for assigned, capacity in zip(members, room))
    return segment_of


def _earliest_deadline_first(jobs: Sequence[Job], room: Sequence[int]) -> list[int | None]:
    segment_of: list[int | None] = [None] * len(jobs)
    starting: list[list[int]] = [[] for _ in room]
    for number, job in enumerate(jobs):
        if job.due:
            starting[job.window[0]].append(number)
    waiting: list[tuple[int, int]] = []  # (last segment of the window, number of the job)
    for segment in range(len(room)):
        remaining = room[segment]
        for number in starting[segment]:
            heapq.heappush(waiting, (jobs[number].window[-1], number))
        paused: list[tuple[int, int]] = []
        while remaining > 0 and waiting:
            deadline, number = heapq.heappop(waiting)
            if segment in jobs[number].window:
                segment_of[number] = segment
                remaining -= 1
            elif deadline > segment:
                paused.append((deadline, number))
        for entry in paused:
            heapq.heappush(waiting, entry)
    return segment_of


def _augment(
    job: int,
    jobs: Sequence[Job],
    room: Sequence[int],
    members: list[set[int]],
    segment_of: list[int | None],
    # segments from which no path leads to one with room. They stay so and are not searched again.
    full: set[int],
) -> bool:
    """Finds a segment for `job` along an augmenting path: other jobs may move within their windows. False if there is none."""
    reached: dict[int, tuple[int, int | None]] = {number: (job, None) for number in jobs[job].window if number not in full}
    queue = deque(reached)
    while queue:
        number: int | None = queue.popleft()
        if len(members[number]) < room[number]:
            while number is not None:
                moved, before = reached[number]
                members[number].add(moved)
                segment_of[moved] = number
                if before is not None:
                    members[before].remove(moved)
                number = before
            return True
        for member in sorted(members[number]) if len(reached) + len(full) < len(room) else ():
            for other in jobs[member].window:
                if other not in reached and other not in full:
                    reached[other] = (member, number)
                    queue.append(other)
            if len(reached) + len(full) == len(room):
                break
    full.update(reached)
    return False


def _length(segment: Segment) -> int:
    assert segment.stop is not None
    return segment.stop - segment.start


def _phases(recipe: Recipe, sources: Sequence[str], first_token: int, length: int) -> list[tuple[int | None, dict[int, int]]]:
    """(stop sample, weights above 0) of each phase. One that ends after t tokens stops at the sample nearest to t / length."""
    numbers = {name: number for number, name in enumerate(sources)}
    phases: list[tuple[int | None, dict[int, int]]] = []
    for phase in recipe.phases:
        weights = {numbers[name]: weight for name, weight in sorted(phase.weights.items()) if weight > 0}
        if phase.until_tokens is None or phase is recipe.phases[-1]:
            return [*phases, (None, weights)]
        phases.append(((2 * (phase.until_tokens - first_token) + length) // (2 * length), weights))
    return phases


def _advance(shares: list[int], weights: Mapping[int, int], num_samples: int) -> None:
    """Adds the shares of `num_samples` samples to `shares`; units lost to rounding go to the first sources."""
    total = sum(weights.values())
    remaining = num_samples * UNIT
    for source, weight in weights.items():
        part = num_samples * UNIT * weight // total
        shares[source] += part
        remaining -= part
    uneven = [source for source, weight in weights.items() if num_samples * UNIT * weight % total]
    for source in uneven[:remaining]:
        shares[source] += 1


def _next_exhausted(
    shares: Sequence[int], weights: Mapping[int, int], caps: Mapping[int, int], start: int, stop: int | None
) -> tuple[int | None, set[int]]:
    """The last sample up to `stop` before any source passes its cap, and the sources that are exhausted there. Shares do not
    show which these are: after rounding, a share may stay a few units below its cap."""
    total = sum(weights.values())
    ends = {
        source: start + max(0, (caps[source] * UNIT - shares[source]) * total // (weight * UNIT))
        for source, weight in weights.items()
        if source in caps
    }
    first = min(ends.values(), default=None)
    if first is None or (stop is not None and first >= stop):
        return stop, set()
    return first, {source for source, end in ends.items() if end == first}


def _next_group(
    shares: Sequence[int], weights: Mapping[int, int], caps: Mapping[int, int], start: int, stop: int | None, count: int
) -> tuple[int | None, set[int], Mapping[int, int]]:
    """The sample up to `stop` at which the next `count` sources have reached their caps, these sources, and the units that each
    source has until then; without such a source, its weight."""
    rooms = {source: max(0, caps[source] * UNIT - shares[source]) for source in weights if source in caps}
    levels = {source: (room << 64) // weights[source] for source, room in rooms.items()}
    group, taken, left, reached = set[int](), 0, sum(weights.values()), 0
    is_cut = False
    for source in sorted(rooms, key=levels.__getitem__):
        after = left - weights[source]
        at = taken + rooms[source] + (levels[source] * after >> 64)
        is_cut = stop is not None and at > (stop - start) * UNIT
        if is_cut or (len(group) >= count and at // UNIT > reached // UNIT):
            break
        group.add(source)
        taken, left, reached = taken + rooms[source], after, max(reached, at)
    if not group:
        return stop, group, weights
    until = stop if is_cut and stop is not None else start + reached // UNIT
    units = {source: rooms[source] for source in group}
    excess = taken - (until - start) * UNIT
    for source in sorted(group, key=lambda source: (-units[source], source)) if excess > 0 else ():
        cut = min(excess, units[source])
        units[source], excess = units[source] - cut, excess - cut
    rest = (until - start) * UNIT - sum(units.values())
    units |= {source: rest * weight // left for source, weight in weights.items() if source not in group}
    if lost := (until - start) * UNIT - sum(units.values()):
        # all that is lost to rounding is less than a millionth of the largest room
        most = max(units.keys() - group, key=lambda source: (rooms.get(source, MOST_SAMPLES * UNIT) - units[source], -source))
        units[most] += lost
    return until, group, {source: units[source] for source in weights if units[source]}


def _with_endless(segments: list[Segment], start: int, weights: Mapping[int, int]) -> list[Segment]:
    """The segments and an endless one from `start` on, so that every sample lies in a segment. Nothing is drawn from it."""
    return [*segments, Segment(start=start, stop=None, weights=weights)]
