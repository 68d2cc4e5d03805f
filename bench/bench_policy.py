"""What the rules of a team cost a launch: reading and judging 200 rules, the two gates without a policy, and the
whole of `fsdl check` with and without one.

python bench/bench_policy.py [--rules 200] [--rounds 50]

The rules are of all kinds: bounds, sets of names and digests, patterns, tags, each with a condition. Each number
is a median of CPU time, in one process.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from fsdl_dev.core.job import Job, Resources
from fsdl_dev.core.settings import find_project
from fsdl_dev.engines.target import get_target
from fsdl_dev.launcher.launch import Launch, NotAsked
from fsdl_dev.launcher.rules import ask_policy, ask_quota
from fsdl_dev.policy.evaluate import judge
from fsdl_dev.policy.facts import facts_of_job
from fsdl_dev.policy.settings import read_policy, read_table

KINDS = (
    {"field": "gpus", "comparison": "at most", "value": 64},
    {"field": "hours", "comparison": "at most", "value": "7d"},
    {"field": "target", "comparison": "one of", "value": ["lab", "local", "cloud"]},
    {"field": "image", "comparison": "none of", "value": [f"sha256:{number:064x}" for number in range(20)]},
    {"field": "tags.task", "comparison": "matches", "value": "[a-z]+"},
    {"field": "tags.owner", "comparison": "given"},
)
CONDITIONS = ({}, {"kind": ["cell", "notebook", "script"]}, {"gpus": ">= 2", "target": "lab"})


def table_of(count: int) -> dict:
    """A policy of so many rules."""
    rules = [
        {**KINDS[number % len(KINDS)], "name": f"rule {number}", "reason": "a reason", "owner": "ada"}
        | {"when": {**CONDITIONS[number % len(CONDITIONS)], "nodes": f"<= {1 + number}"}}
        for number in range(count)
    ]
    return {"policy": {"owner": "ada", "reason": "a reason", "rules": rules}}


def median(function: Callable[[], object], rounds: int) -> float:
    """Milliseconds of CPU time: a machine that is shared changes no figure."""
    took = []
    for _ in range(rounds):
        began = time.process_time()
        function()
        took.append(1000 * (time.process_time() - began))
    return statistics.median(took)


def not_asked(launch: Launch) -> None:
    """Both gates, of a project without rules."""
    for ask in (lambda: ask_policy(launch, ()), lambda: ask_quota(launch)):
        try:
            ask()
        except NotAsked:
            continue


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=50)
    asked = parser.parse_args()
    config = table_of(asked.rules)
    policy = read_policy(config)
    resources = Resources(gpus=4, nodes=2, time="12h")
    tags = {"task": "digits", "owner": "ada"}
    job = Job("script", "train", script="train.py", resources=resources, tags=tags)
    facts = facts_of_job(job, {"image": f"registry/x@sha256:{7:064x}"}, target="lab", engine="slurm")
    broken = [check for check in judge(policy, facts) if check.failed]
    print(f"{len(policy.rules)} rules; {len(broken)} of them broken by this launch")
    print(f"judged:          {median(lambda: judge(policy, facts), asked.rounds):8.3f} ms")
    print(f"read again:      {median(lambda: read_policy(config), asked.rounds):8.3f} ms")

    def anew() -> None:
        read_table.cache_clear()
        judge(read_policy(config), facts)

    print(f"read and judged: {median(anew, asked.rounds):8.3f} ms")
    project = find_project()
    without = Launch([job], project)
    without.target = get_target("test", project)
    print(f"gates, no rules: {median(lambda: not_asked(without), asked.rounds):8.3f} ms")


if __name__ == "__main__":
    main()
