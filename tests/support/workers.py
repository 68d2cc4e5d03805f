"""How the tests are spread over several workers (pytest-xdist), and what each tier of them means.

Half of the suite waits (for hosts, clusters, time limits), the other half computes: every second worker takes
the files that wait first, the others those that compute, so that both kinds are always under way. The tests of
a file stay in one worker, where they share servers; the tests of the files in APART share nothing and go one by
one, and the files on the Slurm cluster that `make test` takes from go to one worker, which starts it once.
"""

import json
import os
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest

from fsdl_dev.engines.contract import EngineContract

# of the tests, in this process: each worker reads what the first has compiled
sys.dont_write_bytecode = False

# What each test costs, in seconds on two idle cores; `make costs` measures it. `make test` leaves a test that costs
# more than LIMIT to `make test-rest`, unless its tier is smoke; the shares of CI cost the same.
COSTS: dict[str, float] = json.loads(Path(__file__).with_name("costs.json").read_text(encoding="utf-8"))
LIMIT = 4.0
WAITS = (
    "ray", "slurm*", "worker_engine", "failures", "kubernetes", "sky", "ssh*", "gang", "containers", "contract",
    "own_queue", "random_kills", "train_ddp",
    "far_environment", "start_script", "shipping", "storage", "mirror", "cli", "local", "gpu_tests",
    "ended_elsewhere", "card_*", "discovery", "bad_luck",
    "limits*", "lab_launch", "magics", "docs_site", "quickstart", "nbdev3_launch", "targets_command",
)  # fmt: skip
# these notebooks train or plan: they come before the others, so that no long one is left alone at the end
LONG_NOTEBOOKS = ("tutorials", "train", "planner", "parallel", "checks", "models")
APART = ("notebooks", "parallel*", "memory_plan", "pipeline", "context", "guards", "checkpoints", "exact_resume",
    "interval", "giants", "plan", "random_kills", "local", "templates", "first_launch", "card_browser", "card_folds",
    "lab_mark", "failures", "train_ddp", "visible_cells")  # fmt: skip
SLURM = ("slurm", "worker_engine")


def file_of(nodeid: str) -> str:
    """tests/test_slurm.py::TestContract::test_x -> slurm"""
    return PurePosixPath(nodeid.split("::")[0]).stem.removeprefix("test_")


def among(nodeid: str, patterns: tuple[str, ...]) -> bool:
    """Whether a test's file is one of these."""
    return any(fnmatch(file_of(nodeid), pattern) for pattern in patterns)


def scope_of(nodeid: str) -> str:
    """What stays together in one worker."""
    return "slurm" if file_of(nodeid) in SLURM else nodeid if among(nodeid, APART) else nodeid.split("::")[0]


def _name(item) -> str:
    """tests/engines/test_slurm.py::test_x -> test_slurm.py::test_x"""
    return _file_name(item.nodeid)


def _file_name(nodeid: str) -> str:
    file, _, rest = nodeid.partition("::")
    return f"{PurePosixPath(file).name}::{rest}"


def in_tier(item, tier: str) -> bool:
    """Whether a test belongs to a tier: `@pytest.mark.tier("long", "vit-*")` stands at the test and names the
    parameters for which it does, or at a class the tests.
    """
    texts = {item.originalname, item.callspec.id if hasattr(item, "callspec") else ""}
    of_class = (
        vars(item.cls).get("pytestmark", ()) if item.cls else ()
    )  # its own, not those of the class above
    for mark in (mark for mark in (*item.own_markers, *of_class) if mark.name == "tier"):
        name, *patterns = mark.args
        if name == tier and (not patterns or any(fnmatch(text, one) for text in texts for one in patterns)):
            return True
    return False


def leaves_out(item) -> bool:
    """Whether a test runs with LONG=1 only: what costs most and has a cheaper neighbour for the same fault. Of an
    engine's contract the tests of the tiers smoke and contract run.
    """
    if in_tier(item, "long") or item.name == "test_crowd":
        return True
    is_contract = item.cls is not None and issubclass(item.cls, EngineContract)
    return is_contract and not in_tier(item, "smoke") and not in_tier(item, "contract")


def in_share(items: list, share: str) -> list:
    """The tests of one share, such as 2/6, of those that `make test-rest` runs, and all others. A scope stays
    whole; the dearest scope that is left goes to the share that costs least so far.
    """
    part, shares = map(int, share.split("/"))
    rest = [
        item for item in items if item.get_closest_marker("slow") and not item.get_closest_marker("smoke")
    ]
    rest = [item for item in rest if not leaves_out(item)]
    costs: Counter[str] = Counter()
    for item in rest:
        costs[scope_of(item.nodeid)] += COSTS.get(_name(item), 1)
    spent, mine = [0.0] * shares, set()
    for scope, cost in costs.most_common():
        cheapest = spent.index(min(spent))
        spent[cheapest] += cost
        if cheapest == part - 1:
            mine.add(scope)
    others = {id(item) for item in rest if scope_of(item.nodeid) not in mine}
    return [item for item in items if id(item) not in others]


def pytest_terminal_summary(terminalreporter):
    """With COSTS=1, note what each test cost; what did not run keeps its figure."""
    if not os.environ.get("COSTS"):
        return
    measured: Counter[str] = Counter()
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if getattr(report, "outcome", "") == "passed" and hasattr(report, "duration"):
            measured[_file_name(report.nodeid)] += report.duration
    costs = COSTS | {name: round(seconds, 1) for name, seconds in measured.items()}
    text = json.dumps(
        {name: costs[name] for name in sorted(costs) if costs[name] >= 2}, indent=0, ensure_ascii=False
    )
    Path(__file__).with_name("costs.json").write_text(f"{text}\n", encoding="utf-8")


def pytest_collection_modifyitems(items):
    """Mark the smoke tests; what takes long comes first and the notebooks last, so that nothing is left to run
    alone at the end.
    """
    place = {name: number for number, name in enumerate(WAITS)}
    for item in items:
        if "chromium" in item.fixturenames:
            item.add_marker("browser")
        if leaves_out(item):
            item.add_marker("long")
        elif in_tier(item, "smoke"):
            item.add_marker("smoke")
        elif COSTS.get(_name(item), 0) > LIMIT:
            item.add_marker("slow")

    def order(item) -> tuple:
        name = file_of(item.nodeid)
        number = next((place[pattern] for pattern in WAITS if fnmatch(name, pattern)), len(WAITS))
        apart = among(item.nodeid, APART)
        if name == "notebooks":
            number += not item.name.startswith(tuple(f"test_notebook[{folder}/" for folder in LONG_NOTEBOOKS))
        return name == "notebooks", number, not apart, apart and item.get_closest_marker("slow") is None

    items.sort(key=order)
    items[:] = in_share(items, os.environ.get("SHARE") or "1/1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Our own spread where `-n` asks for workers."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Spread(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

        def _assign_work_unit(self, node) -> None:
            prefers = self.nodes.index(node) % 2 == 0
            fitting = (scope for scope in self.workqueue if among(scope, WAITS) == prefers)
            self.workqueue.move_to_end(next(fitting, next(iter(self.workqueue))), last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return Spread(config, log)
