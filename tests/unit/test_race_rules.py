"""A launch to several targets: of all that were asked, exactly one begins.

The rules of the launcher and of the workers act on a simulated world, with real claims on the disk. Everything in
it is late; messages get lost; runs are killed and queued again; the launcher is killed between any two of its acts, and
comes back after seconds, after minutes, or never.
"""

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsdl_dev.core.rundir import RunDir, write_json
from fsdl_dev.engines.race import BEGAN, ENDED, READY, WAITS, play_round
from fsdl_dev.worker.job.turn import CLAIMS, GO_FILE, Race, Turn, claim, newest_claim, read_claim

HOLD = 120.0  # seconds for which a place is held
HORIZON = 40_000.0  # seconds that are played


class Killed(Exception):
    "The launcher is killed here."


@dataclass
class SimulatedRun:
    "A run on its target, and its worker."

    run: RunDir
    shared: bool
    state: str = WAITS  # what is true
    seen: str = WAITS  # what the launcher has heard
    told: float = -1.0  # moment of the newest news of it
    turn: Turn | None = None
    life: int = 0  # a look of an earlier life is void
    withdrawn: bool = False  # it gave its place back


@dataclass
class World:
    "Targets that are late, and a launcher that is killed."

    folder: Path
    chance: random.Random
    race: Race
    now: float = 0.0
    events: list = field(default_factory=list)
    count: int = 0
    runs: dict[str, SimulatedRun] = field(default_factory=dict)
    began: list[str] = field(default_factory=list)  # whoever started code of the user
    alive: bool = True
    mortal: float = 0.0  # chance to be killed at each act
    gone_for_good: bool = False

    # ---- time

    def at(self, seconds: float, do) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + seconds, self.count, do))

    def late(self) -> float:
        "Seconds that a message takes."
        return self.chance.choice((0.0, self.chance.expovariate(1.0), self.chance.expovariate(0.02)))

    def play(self) -> None:
        while self.events and self.events[0][0] < HORIZON:
            self.now, _, do = heapq.heappop(self.events)
            do()

    # ---- targets and workers

    def news(self, one: SimulatedRun) -> None:
        "What is true becomes known to the launcher later; news never go back."
        state, moment = one.state, self.now

        def arrive() -> None:
            if moment >= one.told:
                one.seen, one.told = state, moment

        self.at(self.late(), arrive)

    def allocated(self, one: SimulatedRun) -> None:
        if one.state != WAITS:
            return
        one.state, one.turn, one.life = READY, Turn(one.run, self.race, self.now), one.life + 1
        self.news(one)
        self.look_on(one, one.life)
        if self.chance.random() < 0.15:  # its node dies, or it is preempted
            self.at(self.chance.uniform(0, 1.5 * HOLD), lambda life=one.life: self.dies(one, life))

    def look_on(self, one: SimulatedRun, life: int) -> None:
        if one.state != READY or one.life != life:
            return
        answer = one.turn.look(self.now)
        if answer is None:
            self.at(self.chance.uniform(0.1, 2.0), lambda: self.look_on(one, life))
            return
        # a moment passes between the look and what follows from it
        self.at(self.chance.uniform(0, 3.0), lambda: self.decides(one, life, answer))

    def decides(self, one: SimulatedRun, life: int, answer: str) -> None:
        if one.state != READY or one.life != life:
            return
        one.state, one.withdrawn = (ENDED, True) if answer else (BEGAN, False)
        if not answer:
            self.began.append(one.run.id)
        self.news(one)

    def dies(self, one: SimulatedRun, life: int) -> None:
        if one.state != READY or one.life != life:
            return
        if self.chance.random() < 0.6:  # its engine queues it again
            one.state, one.life = WAITS, one.life + 1
            self.at(self.chance.expovariate(1 / 500), lambda: self.allocated(one))
        else:
            one.state, one.life = ENDED, one.life + 1
        self.news(one)

    # ---- the launcher

    def act(self) -> None:
        "Between any two acts the launcher may be killed."
        if self.chance.random() < self.mortal:
            raise Killed

    def rounds(self) -> None:
        if self.gone_for_good:
            return
        try:
            if play_round(self.race, self) and not any(
                one.seen in (WAITS, READY) for one in self.runs.values()
            ):
                return
        except Killed:
            if self.chance.random() < self.forever:
                self.gone_for_good = True
                return
            self.at(self.chance.choice((1.0, 30.0, 400.0, 5000.0)) * self.chance.random(), self.rounds)
            return
        self.at(self.chance.uniform(0.5, 4.0), self.rounds)

    forever = 0.0

    def look(self) -> Mapping[str, str]:
        self.act()
        return {name: one.seen for name, one in self.runs.items()}

    @property
    def claims(self) -> Path:
        return self.folder / self.race.keeper / CLAIMS

    def newest(self) -> tuple[int, str]:
        self.act()
        return newest_claim(self.claims)

    def claim(self, number: int, holder: str) -> str:
        self.act()
        name = claim(self.claims, number, holder)
        self.act()
        return name

    def go(self, run_id: str) -> None:
        self.act()
        one = self.runs[run_id]
        if self.chance.random() < 0.3:  # lost
            return
        self.at(self.late(), lambda: write_json(one.run.path / GO_FILE, {"run": run_id}))
        self.act()

    def withdraw(self, run_id: str, why: str) -> None:
        self.act()
        one = self.runs[run_id]

        def arrive() -> None:
            if one.state in (WAITS, READY):
                one.state, one.life = ENDED, one.life + 1
                self.news(one)

        if self.chance.random() > 0.3:
            self.at(self.late(), arrive)

    def wanted(self) -> bool:
        return any(one.withdrawn for one in self.runs.values())

    def again(self, run_id: str | None) -> str:
        self.act()
        if run_id is None:
            return f"again-{self.chance.getrandbits(32)}"
        if run_id not in self.began:  # submitting the same run twice starts it once
            self.began.append(run_id)
        return run_id


def make_world(folder: Path, seed: int, mortal: float, forever: float) -> World:
    "Two to four targets; the first is the keeper."
    chance = random.Random(seed)
    many = chance.randint(2, 4)
    names = tuple(f"run{number}" for number in range(many))
    shared = (True, *(chance.random() < 0.25 for _ in names[1:]))
    race = Race(names, tuple(f"target{number}" for number in range(many)), shared, HOLD)
    world = World(folder, chance, race, mortal=mortal)
    world.forever = forever
    for name, shares in zip(names, shared):
        run = RunDir(folder / name)
        run.path.mkdir(parents=True)
        one = world.runs[name] = SimulatedRun(run, shares)
        # often nearly at the same moment
        world.at(chance.choice((50.0, 50.0, 3000.0)) * chance.random(), lambda one=one: world.allocated(one))
    world.at(chance.random() * 5, world.rounds)
    return world


@pytest.mark.parametrize("part", range(4))
def test_1000_random_timings_never_two_never_none(tmp_path, part):
    "The launcher is killed at any moment, and comes back: exactly one begins, and no one is left in a queue."
    for seed in range(250 * part, 250 * part + 250):
        world = make_world(tmp_path / str(seed), seed, mortal=(0.0, 0.02, 0.1, 0.3)[seed % 4], forever=0.0)
        world.play()
        assert len(world.began) <= 1, (seed, world.began)
        all_failed = all(one.state == ENDED and not one.withdrawn for one in world.runs.values())
        assert len(world.began) == 1 or all_failed, (seed, {n: o.state for n, o in world.runs.items()})
        assert not any(one.state in (WAITS, READY) for one in world.runs.values()), seed


def test_1000_launchers_that_never_come_back(tmp_path):
    """Never two. None only where the keeper failed, or where the launcher died after it had claimed the turn for a run
    elsewhere and before that run had heard: then the claims say for whom.
    """
    unheard = 0
    for seed in range(1000):
        world = make_world(tmp_path / str(seed), 10_000 + seed, mortal=0.15, forever=0.7)
        world.play()
        assert len(world.began) <= 1, (seed, world.began)
        if world.began:
            continue
        number, _ = newest_claim(world.claims)
        claims = [read_claim(world.claims, one) for one in range(1, number + 1)]
        keeper = world.runs[world.race.keeper]
        keeper_failed = keeper.state == ENDED and not keeper.withdrawn
        elsewhere = any(name in world.runs and not world.race.shares(name) for name in claims)
        unheard += elsewhere
        assert elsewhere or keeper_failed, (seed, claims, {n: o.state for n, o in world.runs.items()})
    print(f"{unheard} of 1000 died between a claim and its go")
    assert unheard < 100, unheard
