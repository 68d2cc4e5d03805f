"""How often the range of waits holds, beside the estimate of the scheduler itself, on a simulated cluster.

python bench/bench_waits.py [--jobs 20000] [--seeds 21 22 23] [--gpus 512] [--load 0.9] [--every 5]

The trace: arrivals are a Poisson process whose rate rises and falls with the hour (four times more at 14 h than at
night) and is less than half at weekends; GPUs are powers of two, log-normal, at most 128; durations are log-normal
with a median of 90 minutes, at most 72 hours; one job in eight ends early; a time limit is the duration times a
log-normal factor of at least one, rounded up to one of nine usual limits. The cluster: first come, first served, with
EASY backfill by the time limits.

The first half of a trace is history only. In the second half every so many jobs ask, at their submission, with what
accounting knows then: `engines/wait.py` for a range, and the scheduler for a moment, by a plan of all that runs and
waits in which each job takes its whole limit. A third question is asked an hour later of those that still wait.
The constants of the range were chosen on the seeds 1 to 15; those from 21 on were not looked at.
"""

import argparse
import heapq
import math
import statistics
from bisect import bisect_right

import numpy as np

from fsdl_dev.engines.queued import PastJob
from fsdl_dev.engines.wait import QueueHistory, likely_wait

LIMITS = np.array([0.5, 1, 2, 4, 8, 12, 24, 48, 72]) * 3600
SEEN = 6000  # jobs of the past that are asked of accounting


def make_trace(jobs: int, seed: int, gpus: int, load: float):
    "When jobs are submitted, their GPUs, durations and limits."
    draw = np.random.default_rng(seed)
    sizes = 2 ** np.round(np.maximum(0, draw.normal(1.6, 1.7, jobs)))
    sizes = np.minimum(min(128, gpus), sizes).astype(int)
    durations = np.clip(np.exp(draw.normal(math.log(5400), 1.5, jobs)), 60, 72 * 3600)
    early = draw.random(jobs) < 0.125
    wanted = durations * np.exp(np.abs(draw.normal(0, 0.9, jobs)))
    limits = LIMITS[np.minimum(np.searchsorted(LIMITS, wanted), len(LIMITS) - 1)]
    durations = np.minimum(durations, limits)
    durations[early] *= draw.random(early.sum()) * 0.2
    durations = np.maximum(durations, 20)
    rate, most = load * gpus / float(np.mean(sizes * durations)), 2.6
    moment, submitted = 0.0, []
    while len(submitted) < jobs:
        moment += draw.exponential(1 / (most * rate))
        hour, day = moment / 3600 % 24, int(moment // 86400) % 7
        weight = (0.35 + 1.5 * math.exp(-(((hour - 14) / 4.5) ** 2))) * (0.5 if day >= 5 else 1.15)
        if draw.random() < weight / (0.95 * most):
            submitted.append(moment)
    return np.array(submitted), sizes, durations, limits


class Cluster:
    "First come, first served, with EASY backfill. A job's number is its place in the trace."

    def __init__(self, trace, gpus: int):
        self.submitted, self.sizes, self.durations, self.limits = trace
        self.free, self.queue, self.ends, self.running = gpus, [], {}, []
        self.started = np.full(len(self.submitted), math.inf)

    def begin(self, job: int, now: float) -> None:
        self.free -= self.sizes[job]
        self.started[job], self.ends[job] = now, now + self.limits[job]
        heapq.heappush(self.running, (now + self.durations[job], job))

    def schedule(self, now: float) -> None:
        while self.queue and self.sizes[self.queue[0]] <= self.free:
            self.begin(self.queue.pop(0), now)
        if not self.queue:
            return
        needed, free, shadow, spare = self.sizes[self.queue[0]], self.free, math.inf, 0
        for end, job in sorted((max(end, now + 1), job) for job, end in self.ends.items()):
            free += self.sizes[job]
            if free >= needed:
                shadow, spare = end, free - needed
                break
        at = 1
        while at < len(self.queue) and self.free:
            job = self.queue[at]
            over = now + self.limits[job] > shadow
            if self.sizes[job] > self.free or (over and self.sizes[job] > spare):
                at += 1
                continue
            spare -= self.sizes[job] if over else 0
            self.begin(self.queue.pop(at), now)

    def own_estimate(self, now: float) -> float:
        "When the newest job of the queue starts by a plan in which each job takes its whole limit."
        steps, free = [(now, self.free)], self.free
        for end, job in sorted((max(end, now + 1), job) for job, end in self.ends.items()):
            free += self.sizes[job]
            steps.append((end, free))
        for job in self.queue:
            start = self._earliest(steps, self.sizes[job], self.limits[job])
            steps = self._without(steps, start, start + self.limits[job], self.sizes[job])
        return start

    @staticmethod
    def _earliest(steps, size, seconds) -> float:
        start = None
        for at, (moment, free) in enumerate(steps):
            if free < size:
                start = None
                continue
            start = moment if start is None else start
            if at + 1 == len(steps) or steps[at + 1][0] >= start + seconds:
                return start
        return math.inf

    @staticmethod
    def _without(steps, start, end, size):
        moments = [moment for moment, _ in steps]
        for moment in (start, end):
            if moment not in moments:
                at = bisect_right(moments, moment)
                steps.insert(at, (moment, steps[at - 1][1]))
                moments.insert(at, moment)
        return [(moment, free - size if start <= moment < end else free) for moment, free in steps]

    def run(self, asked: set[int]) -> dict[int, float]:  # job -> the scheduler's own estimate
        "Play the trace."
        job, estimates, count = 0, {}, len(self.submitted)
        while job < count or self.running:
            arrives = self.submitted[job] if job < count else math.inf
            if arrives <= (self.running[0][0] if self.running else math.inf):
                self.queue.append(job)
                if job in asked:
                    estimates[job] = self.own_estimate(arrives)
                job, now = job + 1, arrives
            else:
                now, ended = heapq.heappop(self.running)
                self.free += self.sizes[ended]
                del self.ends[ended]
            self.schedule(now)
        return estimates


def known_at(past: list[PastJob], job: int, now: float) -> QueueHistory:
    "What accounting knows at a moment of the jobs that were submitted before one."
    return QueueHistory(
        [
            PastJob(
                one.submitted,
                one.started if one.started is not None and one.started <= now else None,
                one.ended if one.ended is not None and one.ended <= now else None,
                one.gpus,
                one.limit,
            )
            for one in past[max(0, job - SEEN) : job]
        ]
    )


def share(held: list[bool]) -> str:
    return f"{sum(held) / len(held):6.1%} of {len(held):5d}" if held else "none"


def measure(seed: int, options: argparse.Namespace) -> dict[str, float]:
    "One trace: what holds."
    trace = make_trace(options.jobs, seed, options.gpus, options.load)
    submitted, sizes, durations, limits = trace
    cluster, asked = Cluster(trace, options.gpus), set(range(options.jobs // 2, options.jobs, options.every))
    own = cluster.run(asked)
    started = cluster.started
    waits = started - submitted
    columns = (submitted, started, started + durations, sizes, limits)
    past = [
        PastJob(float(begin), float(start), float(end), int(gpus), float(limit))
        for begin, start, end, gpus, limit in zip(*columns)
    ]
    rows, later = [], []
    for job in sorted(asked):
        now, wait = float(submitted[job]), float(waits[job])
        what = int(sizes[job]), float(limits[job]), now
        found = likely_wait(known_at(past, job, now), *what)
        if found:
            held = bool(found.low - 1 <= wait <= found.high + 1)
            rows.append((wait, held, found.high - found.low, found.middle, own[job] - now))
        if wait > 3600:
            found = likely_wait(known_at(past, job, now + 3600), *what, now=now + 3600)
            later += [bool(found.low - 1 <= wait <= found.high + 1)] if found else []
    long = [row for row in rows if row[0] > 3600]
    off = lambda rows, at: statistics.median(abs(row[at] - row[0]) for row in rows) / 3600  # noqa: E731
    near = lambda row: bool(abs(row[4] - row[0]) <= max(900.0, 0.25 * row[0]))  # noqa: E731
    print(
        f"seed {seed}: {options.jobs} jobs in {submitted[-1] / 86400:.0f} days, {options.gpus} GPUs, "
        f"{np.mean(waits > 3600):.0%} wait over an hour, the longest {waits.max() / 3600:.0f} h\n"
        f"  inside the range, all                       {share([row[1] for row in rows])}\n"
        f"  inside the range, waits over an hour        {share([row[1] for row in long])}\n"
        f"  the same, asked when they had waited 1 h    {share(later)}\n"
        f"  scheduler within 25 % or 15 min, all        {share([near(row) for row in rows])}\n"
        f"  scheduler within 25 % or 15 min, over 1 h   {share([near(row) for row in long])}\n"
        f"  median error over 1 h: scheduler {off(long, 4):.1f} h, middle of the range {off(long, 3):.1f} h; "
        f"median width of the range {statistics.median(row[2] for row in long) / 3600:.1f} h, "
        f"of the waits {statistics.median(row[0] for row in long) / 3600:.1f} h",
        flush=True,
    )
    return {
        "all": statistics.mean(row[1] for row in rows),
        "over an hour": statistics.mean(row[1] for row in long),
        "after an hour": statistics.mean(later),
        "scheduler, over an hour": statistics.mean(near(row) for row in long),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23])
    parser.add_argument("--gpus", type=int, default=512)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--every", type=int, default=5, help="ask for every so many jobs of the second half")
    options = parser.parse_args()
    found = [measure(seed, options) for seed in options.seeds]
    for name in found[0]:
        values = [one[name] for one in found]
        print(f"{name}: {min(values):.3f} to {max(values):.3f}, mean {statistics.mean(values):.3f}")


if __name__ == "__main__":
    main()
