"""A run as segments of constant weights, and how many samples of each source every segment holds.

    phases of the recipe  ─▶  segments, cut where a source reaches its cap  ─▶  whole numbers of samples at each border

**Borders.** The exact share of a source after some segments is a fraction; it is kept in units of 2^-40 samples, which add up
to the samples exactly. Think of the i-th sample of a source as a job: it may be drawn in the segments in which the source's
share goes from i - 1 to i, and has to be drawn by the time its share is i. A job whose share is begun and finished in one
segment is drawn there; the others, at most one for each source and border, are matched with segments so that every segment is
filled. Spreading each sample as the fractions say would do all of that, and where a fractional matching does, a whole one
exists. So at every border **each source is within one sample of its share** (and the 2^-40 for each border that the units round
away), whatever the weights do, and a source of weight 0 is never drawn from. Earliest-deadline-first finds nearly all of the
matching, augmenting paths the rest.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from datapipe.loader.order.recipe import Recipe

UNIT = 1 << 40
"""Parts of a sample in which shares are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Samples `start` to `stop` (None: without end) drawn by `weights`, above 0 each, by number of the source."""

    start: int
    stop: int | None
    weights: Mapping[int, int]


def plan_segments(
    recipe: Recipe, sources: Sequence[str], start: int, places: Sequence[int], caps: Mapping[int, int]
) -> tuple[list[Segment], int | None]:
    """The segments from sample `start` on, and the sample at which every source is exhausted, if that comes.

    Args:
        places: by source, samples it had before `start`.
        caps: by source, for those that are taken out when they had so many; the others take their place, by their weights.
    """
    segments: list[Segment] = []
    end = recipe.num_samples
    shares = [place * UNIT for place in places]
    at, gone = start, set[int]()
    for stop, by_name in _phases(recipe, sources):
        while stop is None or at < stop:
            weights = {source: weight for source, weight in by_name.items() if source not in gone}
            if not weights:
                return _whole(segments, at, by_name), at
            if end is not None and at >= end:  # what comes later is never drawn
                return _whole(segments, at, weights), None
            until, exhausted = _next_exhausted(shares, weights, caps, at, stop)
            gone |= exhausted
            if until == at:
                continue
            segments.append(Segment(start=at, stop=until, weights=weights))
            if until is None:
                return segments, None
            _advance(shares, weights, until - at)
            at = until
    raise AssertionError("the last phase has no end")


def settle(segments: Sequence[Segment], places: Sequence[int]) -> list[list[int]]:
    """Samples of each source before each segment, and after the last finite one: whole numbers, within one of the shares."""
    finite = [segment for segment in segments if segment.stop is not None]
    shares = [[place * UNIT for place in places]]
    for segment in finite:
        shares.append(list(shares[-1]))
        _advance(shares[-1], segment.weights, _length(segment))
    drawn = [[0] * len(places) for _ in finite]
    jobs: list[Job] = []
    for source in range(len(places)):
        jobs += _jobs(source, [border[source] for border in shares], drawn)
    room = [_length(segment) - sum(row) for segment, row in zip(finite, drawn)]
    for job, number in zip(jobs, match_jobs(jobs, room)):
        if number is not None:
            drawn[number][job.source] += 1
    counts = [list(places)]
    for row in drawn:
        counts.append([before + more for before, more in zip(counts[-1], row)])
    return counts


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One sample that may be drawn in any of several segments.

    Attributes:
        source: whose.
        window: the numbers of the segments, rising.
        due: whether it has to be drawn in one of them: all but the last, unfinished sample of a source.
    """

    source: int
    window: tuple[int, ...]
    due: bool


def _jobs(source: int, shares: Sequence[int], drawn: list[list[int]]) -> list[Job]:
    """The samples that may be drawn in more than one segment, or need not be; the others are counted in `drawn`.

    Args:
        shares: of the source before each segment and after the last, rising.
    """
    found: list[Job] = []
    window: list[int] = []
    for number, (before, after) in enumerate(zip(shares, shares[1:])):
        if after == before:
            continue
        begun = -(-before // UNIT)  # samples whose share is begun before this segment
        if before % UNIT:
            window.append(number)
            if after >= begun * UNIT:
                found.append(Job(source=source, window=tuple(window), due=True))
        drawn[number][source] += max(0, after // UNIT - begun)
        if after % UNIT and after > begun * UNIT:
            window = [number]
    if shares[-1] % UNIT:
        found.append(Job(source=source, window=tuple(window), due=False))
    return found


def match_jobs(jobs: Sequence[Job], room: Sequence[int]) -> list[int | None]:
    """The segment of each job, None for some that are not due, so that every segment has exactly `room` of them."""
    place: list[int | None] = _earliest_deadline_first(jobs, room)
    members: list[set[int]] = [set() for _ in room]
    for job, number in enumerate(place):
        if number is not None:
            members[number].add(job)
    left, full = sum(room) - sum(map(len, members)), set[int]()
    # What has a segment keeps one while others are moved, so jobs that are due come first.
    for job in sorted(range(len(jobs)), key=lambda job: not jobs[job].due):
        if left > 0 and place[job] is None:
            left -= _augment(job, jobs, room, members, place, full)
    assert all(place[job] is not None for job, one in enumerate(jobs) if one.due)
    assert all(len(found) == wanted for found, wanted in zip(members, room))
    return place


def _earliest_deadline_first(jobs: Sequence[Job], room: Sequence[int]) -> list[int | None]:
    """Segments for most of the jobs that are due, by going through the segments once."""
    place: list[int | None] = [None] * len(jobs)
    starting: list[list[int]] = [[] for _ in room]
    for job, one in enumerate(jobs):
        if one.due:
            starting[one.window[0]].append(job)
    waiting: list[tuple[int, int]] = []
    for number in range(len(room)):
        left = room[number]
        for job in starting[number]:
            heapq.heappush(waiting, (jobs[job].window[-1], job))
        paused: list[tuple[int, int]] = []
        while left > 0 and waiting:
            one = heapq.heappop(waiting)
            if number in jobs[one[1]].window:
                place[one[1]] = number
                left -= 1
            elif one[0] > number:
                paused.append(one)
        for one in paused:
            heapq.heappush(waiting, one)
    return place


def _augment(
    job: int,
    jobs: Sequence[Job],
    room: Sequence[int],
    members: list[set[int]],
    place: list[int | None],
    full: set[int],
) -> bool:
    """Finds `job` a segment, moving others to further ones of their windows if need be; whether there was a way.

    Args:
        full: segments from which no way led to one with room, and none ever will: they are not looked at again.
    """
    reached: dict[int, tuple[int, int | None]] = {number: (job, None) for number in jobs[job].window if number not in full}
    queue = deque(reached)
    while queue:
        number = queue.popleft()
        if len(members[number]) < room[number]:
            _shift(number, reached, members, place)
            return True
        for member in sorted(members[number]):
            for other in jobs[member].window:
                if other not in reached and other not in full:
                    reached[other] = (member, number)
                    queue.append(other)
    full.update(reached)
    return False


def _shift(
    number: int | None, reached: Mapping[int, tuple[int, int | None]], members: list[set[int]], place: list[int | None]
) -> None:
    """Moves each job of the path that was found one segment on, last one first."""
    while number is not None:
        job, before = reached[number]
        members[number].add(job)
        place[job] = number
        if before is not None:
            members[before].remove(job)
        number = before


def _length(segment: Segment) -> int:
    assert segment.stop is not None
    return segment.stop - segment.start


def _phases(recipe: Recipe, sources: Sequence[str]) -> list[tuple[int | None, dict[int, int]]]:
    """The sample at which each ends, and the weights above 0. A border at token t falls on the sample nearest to t / S."""
    numbers = {name: number for number, name in enumerate(sources)}
    found: list[tuple[int | None, dict[int, int]]] = []
    length = recipe.sequence_length
    for phase in recipe.phases:
        weights = {numbers[name]: weight for name, weight in sorted(phase.weights.items()) if weight > 0}
        if phase.until_tokens is None or phase is recipe.phases[-1]:
            return [*found, (None, weights)]
        found.append(((2 * phase.until_tokens + length) // (2 * length), weights))
    return found


def _advance(shares: list[int], weights: Mapping[int, int], num_samples: int) -> None:
    """Adds to `shares` what `num_samples` samples give each source; what rounding leaves goes to the first ones."""
    total = sum(weights.values())
    left = num_samples * UNIT
    for source, weight in weights.items():
        part = num_samples * UNIT * weight // total
        shares[source] += part
        left -= part
    uneven = [source for source, weight in weights.items() if num_samples * UNIT * weight % total]
    for source in uneven[:left]:
        shares[source] += 1


def _next_exhausted(
    shares: Sequence[int], weights: Mapping[int, int], caps: Mapping[int, int], at: int, stop: int | None
) -> tuple[int | None, set[int]]:
    """The last sample up to `stop` until which no source passes its cap, and the sources that could not take another there.

    They are told here and not by their shares at that sample, of which rounding may leave a little that no sample uses up.
    """
    total = sum(weights.values())
    ends = {
        source: at + max(0, (caps[source] * UNIT - shares[source]) * total // (weight * UNIT))
        for source, weight in weights.items()
        if source in caps
    }
    first = min(ends.values(), default=None)
    if first is None or (stop is not None and first >= stop):
        return stop, set()
    return first, {source for source, end in ends.items() if end == first}


def _whole(segments: list[Segment], at: int, weights: Mapping[int, int]) -> list[Segment]:
    """The segments, with an endless one behind them that nobody draws from, so that every sample has one."""
    return [*segments, Segment(start=at, stop=None, weights=weights)]
