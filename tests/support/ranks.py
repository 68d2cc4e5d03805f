"""A function in several processes at once, as torchrun would start them, in a third of a second:
`run_ranks(function, world, *arguments)`.

A fork server that has imported torch, Lightning and Transformers forks the ranks; the store that they meet at
lives in the test's own process, so no port can be taken meanwhile. The function is a module-level one of the
test file, is called with the arguments in every rank and may find its rank in the environment (RANK,
WORLD_SIZE, ...) or in torch.distributed. What it returns comes back, one result per rank.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path

PRELOAD = [
    "torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.checkpoint",
    "torch._dynamo", "pytorch_lightning",
    "transformers.models.llama.modeling_llama", "transformers.models.gpt2.modeling_gpt2", "timm",
    "fsdl_dev.train.trainer",
]  # fmt: skip
SHARED = "TEST_FORK_SERVER"  # where the fork server of all workers of pytest-xdist listens
GRACE = 3.0  # seconds that the other ranks get to speak after the first has failed


def share_fork_server() -> None:
    "Start one fork server for all workers: what it imports takes ten seconds of a processor."
    forkserver.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()
    os.environ[SHARED] = forkserver._forkserver._forkserver_address


def fork_context():
    "What processes are started by: the fork server of all workers, or one of our own where no other is named."
    server = forkserver._forkserver
    if SHARED not in os.environ:
        forkserver.set_forkserver_preload(PRELOAD)
    elif server._forkserver_address is None:
        server._forkserver_address = os.environ[SHARED]
        server._forkserver_alive_fd = os.open(os.devnull, os.O_WRONLY)
        server.ensure_running = resource_tracker.ensure_running
    return multiprocessing.get_context("forkserver")


class RankFailure(AssertionError):
    "A rank raised, died or hung; errors holds what each said."

    def __init__(self, what: str, errors: dict[int, str]):
        super().__init__(
            "\n".join([what, *(f"--- rank {rank} ---\n{text}" for rank, text in sorted(errors.items()))])
        )
        self.errors = errors


def run_ranks(
    function: Callable,  # at the top of a test file
    world: int,  # processes
    *arguments: object,  # anything that can be pickled
    timeout: float = 600,  # seconds for all of it
    environment: dict[str, str] | None = None,  # beside what the test has
    per_node: int | None = None,  # ranks of one (pretended) node; None is all
) -> list:  # what each rank returned
    "Call a function in several processes that form one process group."
    import torch.distributed as dist

    context = fork_context()
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout)
    )
    shared = dict(os.environ) | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(per_node or world),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "test",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false", **(environment or {}),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        pipes, ranks = [], []
        for rank in range(world):
            near, far = context.Pipe(duplex=False)
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % (per_node or world)),
                "GROUP_RANK": str(rank // (per_node or world)),
            }
            process = context.Process(
                target=_rank,
                args=(far, function, arguments, shared | place, f"{folder}/{rank}.txt", timeout),
                daemon=True,
            )
            with without_main():
                process.start()
            far.close()
            pipes.append(near)
            ranks.append(process)
        try:
            return _collect(pipes, ranks, Path(folder), timeout)
        finally:
            for process in ranks:
                process.join(60)  # the last barrier; a failed group was ended already
                if process.is_alive():
                    process.kill()
                    process.join(10)


def _collect(pipes: list[Connection], ranks: list, folder: Path, timeout: float) -> list:
    "Wait for every rank's word; a failed one ends the others."
    deadline, open_pipes = time.monotonic() + timeout, dict(zip(pipes, range(len(pipes))))
    results: dict[int, object] = {}
    errors: dict[int, str] = {}
    while open_pipes:
        ready = wait(list(open_pipes), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = open_pipes.pop(pipe)
            try:
                good, payload = pipe.recv()
                (results if good else errors)[rank] = pickle.loads(payload) if good else payload
            except EOFError:
                ranks[rank].join(5)
                errors[rank] = f"died with exit code {ranks[rank].exitcode}\n{_tail(folder, rank)}"
            if errors:
                deadline = min(deadline, time.monotonic() + GRACE)
    for rank in open_pipes.values():
        errors[rank] = f"said nothing\n{_tail(folder, rank)}"
    if errors:
        for process in ranks:
            process.kill()
        raise RankFailure(f"{len(errors)} of {len(ranks)} ranks failed", errors)
    return [results[rank] for rank in range(len(ranks))]


def _tail(folder: Path, rank: int, characters: int = 4000) -> str:
    "The end of what a rank printed."
    path = folder / f"{rank}.txt"
    return path.read_text(errors="replace")[-characters:] if path.exists() else "(printed nothing)"


def _rank(
    pipe: Connection,
    function: Callable,
    arguments: tuple,
    environment: dict[str, str],
    output: str,
    timeout: float,
) -> None:
    "One rank: its environment, its output in a file, the call, the word back."
    os.environ.clear()
    os.environ.update(environment)
    file = open(output, "w", buffering=1)
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file
    faulthandler.dump_traceback_later(0.7 * timeout, file=file)  # where it hung; a rank may have started late
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        result = pickle.dumps(function(*arguments))
    except BaseException as problem:  # noqa: BLE001  SystemExit as well: the test wants to read it
        file.flush()
        pipe.send(
            (
                False,
                (
                    f"{type(problem).__name__}:"
                    f" {problem}\n{traceback.format_exc()}\n{Path(output).read_text()[-4000:]}"
                ),
            )
        )
        pipe.close()
        os._exit(1)
    pipe.send((True, result))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    pipe.close()
    file.flush()
    os._exit(0)


@contextlib.contextmanager
def without_main():
    "The ranks need not import the program that started them (pytest, or a benchmark)."
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name, None) for name in ("__spec__", "__file__")}
    imported = main.__name__ == "__main__" and "pytest" in (sys.argv[0] if sys.argv else "")
    if imported:
        main.__spec__ = None
        if hasattr(main, "__file__"):
            del main.__file__
    try:
        yield
    finally:
        if imported:
            main.__spec__ = kept["__spec__"]
            if kept["__file__"] is not None:
                main.__file__ = kept["__file__"]
