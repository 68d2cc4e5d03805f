"""A search that stops what falls behind, beside one that stops nothing: steps and best accuracy on the digits.

python bench/bench_sweep.py [--trials 64] [--seeds 5] [--slots 8] [--runs]

A trial trains a small network on scikit-learn's digits in numpy for 27 steps (epochs). Random search is the peer. The
trials are followed by the code of a sweep (its study, its rungs), `--slots` of them at once, each a step in turn, in
this process. With --runs each trial is a run of its own, launched on this machine by a real controller. Its steps take
0.3 s then: a trial that lasts a second has ended before anything can stop it.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from side_by_side import make_project

TRAIN = '''
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
from sklearn.datasets import load_digits

STEPS = 27
images, labels = load_digits(return_X_y=True)
images = (images / 16 - 0.305) / 0.376
order = np.random.default_rng(0).permutation(len(labels))
train, val = order[360:], order[:360]


def training(lr, width, decay):
    """The accuracy after each step."""
    draw = np.random.default_rng(1)
    weights = [draw.normal(0, 64**-0.5, (64, width)), draw.normal(0, width**-0.5, (width, 10))]
    for step in range(STEPS):
        for batch in np.array_split(draw.permutation(train), 20):
            hidden = np.maximum(images[batch] @ weights[0], 0)
            scores = hidden @ weights[1]
            share = np.exp(scores - scores.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            share[np.arange(len(batch)), labels[batch]] -= 1
            share /= len(batch)
            back = (share @ weights[1].T) * (hidden > 0)
            for weight, change in zip(weights, (images[batch].T @ back, hidden.T @ share)):
                weight -= lr * (change + decay * weight)
        yield float(((np.maximum(images[val] @ weights[0], 0) @ weights[1]).argmax(1) == labels[val]).mean())


if __name__ == "__main__":
    import fsdl_dev

    given = {word.lstrip("-"): float(value) for word, value in zip(sys.argv[1::2], sys.argv[2::2])}
    for step, accuracy in enumerate(training(given["lr"], int(given["width"]), given["decay"])):
        fsdl_dev.log(step, total=STEPS, acc=accuracy)
        time.sleep(0.3)
'''
SPACE = {"lr": "1e-4..10:log", "width": "8..128:8", "decay": "1e-6..1e-1:log"}


def with_runs(root: Path, options: dict) -> tuple[int, float]:
    """A sweep of real runs: steps that its trials trained, and its best accuracy."""
    import fsdl_dev

    run = fsdl_dev.launch("train.py", folder=root, each=SPACE, say=None, on="test", **options)
    run.wait(progress=False)
    if run.state != "succeeded":
        raise SystemExit(f"{run.words}: {run.state}\n{run.logs()}")
    return sum(trial["step"] for trial in run.refresh().trials.values()), run.result["acc"]


def in_process(root: Path, options: dict, seed: int) -> tuple[int, float]:
    """The same trials in this process, a step of each in turn."""
    from fsdl_dev.sweep.search import load_optuna, make_pruner, make_search, next_trial, open_study

    names: dict = {"__name__": "train"}
    exec(TRAIN, names)  # noqa: S102
    search, pruned = make_search(SPACE, options), load_optuna().trial.TrialState.PRUNED
    study = open_study(root / f"{search.stop}{seed}.journal", search, 1000 * seed)
    study.pruner = make_pruner(search, names["STEPS"])
    live: list[tuple] = []
    steps, best, asked = 0, 0.0, 0
    while live or asked < search.trials:
        while len(live) < search.slots and asked < search.trials:
            trial, asked = next_trial(study, search), asked + 1
            live.append((trial, enumerate(names["training"](**trial.params), 1)))
        for one in list(live):
            trial, following = one
            step, accuracy = next(following)
            steps += 1
            trial.report(accuracy, step)
            if step == names["STEPS"]:
                study.tell(trial, accuracy)
                best = max(best, accuracy)
            elif trial.should_prune():
                study.tell(trial, state=pruned)
            else:
                continue
            live.remove(one)
    return steps, best


def main() -> None:
    """Run both searches for each seed and print what they took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("trials", 64), ("seeds", 5), ("slots", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--runs", action="store_true")
    asked = parser.parse_args()
    found: dict[str, list] = {"random": [], "asha": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FSDL_STATE": f"{folder}/state", "FSDL_SLOTS": str(asked.slots + 1)}
        root = Path(folder) / "digits"
        make_project(root, '[project]\nname = "digits"\nversion = "0"\n', train=TRAIN)
        for seed in range(asked.seeds):
            for name, stop in (("random", None), ("asha", "asha")):
                options = {"trials": asked.trials, "search": "random", "stop": stop, "best": "max:acc"}
                options["slots"] = asked.slots
                found[name].append(
                    with_runs(root, options) if asked.runs else in_process(root, options, seed)
                )
                steps, best = found[name][-1]
                print(f"seed {seed}  {name:6}  {steps:5} steps  best {best:.4f}", flush=True)
    steps = {name: sum(one[0] for one in each) for name, each in found.items()}
    best = {name: [one[1] for one in each] for name, each in found.items()}
    spread = statistics.stdev(best["random"]) if asked.seeds > 1 else 0.0
    gap = statistics.mean(best["asha"]) - statistics.mean(best["random"])
    print(f"steps, asha / random: {steps['asha'] / steps['random']:.2f}")
    print(f"mean best, asha - random: {gap:+.4f} (spread of random over the seeds {spread:.4f})")


if __name__ == "__main__":
    sys.exit(main())
