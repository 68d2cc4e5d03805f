"""How the tests are spread over several workers (pytest-xdist), and which tests of slow files `make test` runs
all the same.

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

# One end-to-end test or more for each engine (each strategy has its own in test_parallel_trainer.py and
# test_pipeline.py) and each way to fail.
LAUNCH, GANG, CANCEL = (
    "test_launch_and_non_ascii_and_fetch",
    "test_gang_of_two_nodes",
    "test_logs_while_running_then_cancel",
)
SMOKE = (
    "test_contract.py::TestThisMachine::*",
    *(f"test_slurm.py::TestContract::{name}" for name in (LAUNCH, GANG, "test_requeue_keeps_the_run")),
    f"test_ray.py::TestContract::{LAUNCH}",
    *(
        f"test_ssh_contract.py::{name}"
        for name in (f"TestOneHost::{LAUNCH}", "TestOneHost::test_killed_worker")
    ),
    *(
        f"test_kubernetes.py::TestKubernetesContract::{name}"
        for name in (LAUNCH, "test_requeue_keeps_the_run")
    ),
    *(f"test_sky.py::TestSkyContract::{name}" for name in (LAUNCH, CANCEL)),
    "test_gang.py::test_two_machines_train_together[[]env-True[]]",
    "test_gang.py::test_a_failure_elsewhere_is_the_runs_failure",
    "test_ssh_target.py::test_several_processes",
    "test_failures.py::test_a_killed_rank_costs_seconds_and_the_training_goes_on[[]1[]]",
    "test_worker_engine.py::test_scancel_is_a_cancel[[]True-1[]]",
)
# The whole contract of an engine runs on the one inside the tests' process and on the queue of the tutorial. On
# the other engines SMOKE and these run; LONG=1 runs all.
CONTRACT = (
    f"test_slurm.py::TestContractBySsh::{LAUNCH}",
    *(f"test_{engine}*::test_killed_worker" for engine in ("slurm", "ssh", "kubernetes", "sky")),
    f"test_ssh_contract.py::TestTwoHosts::{GANG}",
    f"test_kubernetes.py::TestKubernetesContract::{GANG}",
)
# What each test costs, in seconds on two idle cores; `make costs` measures it. `make test` leaves a test that costs
# more than LIMIT to `make test-rest`, unless it stands in SMOKE; the shares of CI cost the same.
COSTS: dict[str, float] = json.loads(Path(__file__).with_name("costs.json").read_text(encoding="utf-8"))
LIMIT = 6.0
WHOLE_CONTRACT = ("test_contract.py", "test_own_queue.py")
# What costs most and has a cheaper neighbour for the same fault; LONG=1 runs them.
NEIGHBOURED = (
    "test_gpu_command.py::test_all_rows_run_on_a_cpu",
    "test_failures.py::test_a_restart_goes_on_from_a_checkpoint_in_a_bucket",
    "test_failures.py::test_a_lone_process_is_started_again_*",
    "test_failures.py::test_a_hang_is_noticed_explained_and_started_again[[]skips*",
    "test_failures.py::test_a_hang_is_noticed_explained_and_started_again[[]stopped*",
    "test_random_kills.py::test_stopped_at_the_ends_of_two_epochs",
    "test_worker_engine.py::test_lightning_does_not_take_another_jobs_checkpoint[[]plain]",
    "test_worker_engine.py::test_preempted_twice_and_goes_on[[]2-*",
    "test_worker_engine.py::test_a_node_that_dies_costs_a_life[[]1]",
    "test_memory_plan.py::test_what_an_optimiser_keeps_and_makes[[]unequal]",
    "test_worker_engine.py::test_more_time_is_noticed",
    "test_checkpoints.py::test_every_layout_reads_what_another_wrote",
    "test_memory_plan.py::test_ranks_hold_what_was_planned[[]vit-*",
    "test_memory_plan.py::test_ranks_hold_what_was_planned[[]gpt2-*",
    "test_memory_plan.py::test_ranks_hold_what_was_planned[[]llama-zero2-2]",
    "test_memory_plan.py::test_ranks_hold_what_was_planned[[]llama-fsdp recompute-2]",
    "test_exact_resume.py::test_one_process[[]any DataLoader with workers-file]",
    "test_kubernetes.py::test_a_lost_machine_starts_the_whole_gang_anew[[]stand-in-job-*",
    "test_kubernetes.py::test_five_hundred_runs_are_three_questions",
    "test_ray.py::test_a_gang_that_waits_holds_nothing",
    "test_ray.py::test_cancel_leaves_time_to_save*",
    "test_ray.py::test_dead_driver_ends_the_run",
    "test_ray.py::test_jobs_api",
    "test_ray.py::test_lost_node_and_another_life",
    "test_ray.py::test_lost_node_is_named_and_the_rest_ended[[]1]",
    "test_ray.py::test_many_runs_cost_one_request",
    "test_ray.py::test_queue_reasons_outlast_rays_own_patience",
    "test_ray.py::test_starved_direct_job_is_submitted_again",
    "test_ray.py::test_token_authentication",
    "test_context.py::test_slices_of_sequences_train_as_whole_ones_do[[]fsdp=2 cp=2-4-llama]",
    "test_context.py::test_slices_of_sequences_train_as_whole_ones_do[[]cp=2 tp=2-4-gpt2]",
    "test_exact_resume.py::test_one_process[[]ours with workers-file]",
    "test_notebooks.py::test_notebook[[]tutorials/05_*",
    "test_pipeline.py::test_three_axes_on_eight_processes*",
    "test_ray.py::*submitted_once",
    "test_exact_resume.py::test_one_process[[]any DataLoader with workers-*",
    "test_failures.py::test_the_same_hang_twice_is_not_started_a_third_time",
    "test_fixtures.py::test_nbdev3_project_is_exported_by_its_own_nbdev",
    "test_memory_plan.py::test_ranks_hold_what_was_planned[[]llama-fsdp=2 tp=2-4]",
    "test_memory_plan.py::test_what_an_optimiser_keeps_and_makes[[]equal]",
    "test_magics.py::test_trackers_cancel_and_resume",
    "test_notebooks.py::test_notebook[[]*slow cells]",
    "test_notebooks.py::test_notebook[[]tutorials/06_*",
    "test_notebooks.py::test_notebook[[]tutorials/1[78]_*",
    "test_trackers.py::test_a_run_without_an_account_can_be_copied_and_uploaded",
    "test_trackers.py::test_a_server_that_dies_in_the_middle_has_all_rows_in_the_end",
    "test_trackers.py::test_wandb_has_each_row_once_after_its_server_died",
    "test_train_ddp.py::test_two_processes_have_the_losses_of_one",
    "test_plan.py::test_a_plan_in_a_terminal",
    "test_run_load.py::test_a_model_that_was_trained_behind_an_sshd",
    "test_slurm_faults.py::test_the_time_limit_of_its_allocation",
    "test_speed.py::test_the_slow_one_of_two_ranks_is_named_with_its_node[[]fsdp=2]",
    "test_exact_resume.py::test_one_process[[]torchdata-file]",
    "test_ssh_target.py::test_a_while_without_the_machine[[]cable pulled]",
    "test_agreement.py::test_every_drift_is_refused*[[]optimizer step[]]",
    "test_failures.py::test_a_lost_node_or_rank_costs_the_steps_since_the_last_checkpoint[[]rank]",
    "test_gang.py::test_two_gangs_take_turns",
    "test_gang.py::test_a_machine_that_is_taken_away_starts_the_run_again[[]9]",
    "test_kubernetes.py::test_a_lost_machine_starts_the_whole_gang_anew[[]stand-in-jobset-follower]",
    "test_random_kills.py::test_random_kills_change_nothing",
    "test_sweep.py::test_resume_a_sweep[[]False]",
    "test_train_ddp.py::test_sigterm_saves_and_a_resume_continues*",
    "test_train_ddp.py::test_an_error_in_one_of_two_processes_does_not_hang",
    "test_sky.py::test_the_real_catalogue_gives_prices",
    "test_plan.py::test_four_billion_parameters_are_planned_in_a_gigabyte",
    *(
        f"test_exact_resume.py::test_one_process[[]{name}[]]"
        for name in (
            "own generators-file",
            "no length-file",
            "an average of the weights-file",
            "ours-folder",
            "all at once-*",
        )
    ),
    *(
        f"test_exact_resume.py::test_the_next_epoch[[]{name}[]]"
        for name in ("double*", "torchdata", "loaders*")
    ),
    *(
        f"test_exact_resume.py::test_every_hook_and_limit[[]{name}[]]"
        for name in (
            "max_epochs-file",
            "max_steps, *",
            "max_time-file",
            "no validation-file",
            "max_steps-folder",
        )
    ),
    *(
        f"test_exact_resume.py::test_a_signal_around_a_validation[[]{name}[]]"
        for name in ("an average*", "validation every*", "saves at*")
    ),
    *(
        f"test_exact_resume.py::test_two_processes[[]{name}[]]"
        for name in (
            "ddp, any DataLoader-*",
            "ddp, accumulation*",
            "ddp, max_*",
            "fsdp, any*",
            "zero1-folder",
        )
    ),
    *(
        f"test_memory_plan.py::test_{name}"
        for name in (
            "one_process_holds_what_was_planned[[]llama-recompute-*",
            "one_process_holds_what_was_planned[[]gpt2-recompute-*",
            "one_process_holds_what_was_planned[[]resnet-*",
            "ranks_in_mixed_precision_hold_what_was_planned[[]fsdp recompute[]]",
            "a_large_vocabulary_is_gathered_and_reduced_in_one_piece[[]wordy llama-zero2-*",
            "a_large_vocabulary_is_gathered_and_reduced_in_one_piece[[]wordy gpt2-*",
            "a_fused_step_makes_nothing[[]resnet-zero1-2[]]",
            "a_fused_step_makes_nothing[[]llama-fsdp-2[]]",
            "stages_hold_what_was_planned[[]pp=2 interleaved*",
            "stages_hold_what_was_planned[[]pp=2 microbatches=4 recompute*",
        )
    ),
    "test_parallel.py::test_a_layout_trains_as_one_process_does_and_holds_what_theory_says[[]*tp=2-4[]]",
    "test_parallel.py::test_a_model_without_memory_begins_alike_on_every_layout[[]llama-fsdp=2 tp=2-4[]]",
    "test_parallel_trainer.py::test_the_same_cell_trains_the_same[[]gpt2-fsdp=2 tp=2-4[]]",
    "test_parallel_trainer.py::test_the_same_cell_trains_the_same[[]vit-ddp=2 tp=2-4[]]",
    "test_parallel_trainer.py::test_one_file_resumes_under_its_strategy_and_in_one_process[[]fsdp=2 tp=2-4[]]",
    "test_pipeline.py::test_llama_in_four_processes[[]pp=2 fsdp=2 *",
    "test_pipeline.py::test_other_models_in_four_processes[[]pp=2 fsdp=2-vision[]]",
    "test_kubernetes.py::test_time_is_over_and_the_run_goes_on[[]stand-in-jobset[]]",
    "test_ssh_target.py::test_killed_during_submission[[]0.15[]]",
    "test_ssh_target.py::test_killed_during_submission[[]0.7[]]",
    "test_ssh_target.py::test_killed_during_submission[[]1.[37][]]",
    "test_failures.py::test_a_lost_node_or_rank_costs_the_steps_since_the_last_checkpoint[[]node[]]",
    "test_worker_engine.py::test_scancel_is_a_cancel[[]*-2[]]",
)
WAITS = (
    "ray", "slurm*", "worker_engine", "failures", "kubernetes", "sky", "ssh*", "gang", "containers", "contract",
    "own_queue", "random_kills", "train_ddp",
    "far_environment", "start_script", "shipping", "storage", "mirror", "cli", "local", "gpu_tests",
    "ended_elsewhere", "card_*", "discovery", "bad_luck",
    "lab_launch", "magics", "docs_site", "quickstart", "nbdev3_launch", "targets_command",
)  # fmt: skip
# these notebooks train or plan: they come before the others, so that no long one is left alone at the end
LONG_NOTEBOOKS = ("tutorials", "train", "planner", "parallel", "checks", "models")
APART = ("notebooks", "parallel*", "memory_plan", "pipeline", "context", "guards", "checkpoints", "exact_resume",
    "interval", "giants", "plan", "random_kills", "local",
         "failures", "train_ddp")  # fmt: skip
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
    """tests/test_slurm.py::test_x -> test_slurm.py::test_x"""
    return item.nodeid.split("/", 1)[-1]


def among_smoke(item) -> bool:
    """Whether `make test` runs it although it is slow."""
    return any(fnmatch(_name(item), pattern) for pattern in SMOKE)


def leaves_out(item) -> bool:
    """Whether a test runs with LONG=1 only."""
    name = _name(item)
    if name.endswith("::test_crowd") or "two_hundred" in name or any(fnmatch(name, p) for p in NEIGHBOURED):
        return True
    whole = name.startswith(WHOLE_CONTRACT) or not (item.cls and issubclass(item.cls, EngineContract))
    return not whole and not among_smoke(item) and not any(fnmatch(name, pattern) for pattern in CONTRACT)


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
            measured[report.nodeid.split("/", 1)[-1]] += report.duration
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
        if leaves_out(item):
            item.add_marker("long")
        elif among_smoke(item):
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
