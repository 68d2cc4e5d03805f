"""The harness that every test with several processes stands on."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from ranks import RankFailure, run_ranks


def summed(number):
    dist.init_process_group("gloo")
    value = torch.tensor(float(number + dist.get_rank()))
    dist.all_reduce(value)
    return float(value), int(os.environ["RANK"]), torch.full((2,), float(os.environ["RANK"]))


def failing():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError("a bug in rank one")
    dist.barrier()


def dying():
    if os.environ["RANK"] == "0":
        os._exit(7)
    time.sleep(900)


def hanging():
    time.sleep(900)


def test_every_rank_gives_its_result():
    results = run_ranks(summed, 2, 10)
    assert [(total, rank) for total, rank, _ in results] == [(21.0, 0), (21.0, 1)]
    assert results[1][2].tolist() == [1.0, 1.0]


def test_an_error_in_one_rank_is_shown_and_the_other_does_not_hang():
    started = time.monotonic()
    with pytest.raises(RankFailure, match="a bug in rank one") as caught:
        run_ranks(failing, 2)
    assert "ValueError" in caught.value.errors[1] and time.monotonic() - started < 500


def test_a_dead_rank_is_told_by_its_exit_code():
    with pytest.raises(RankFailure, match="exit code 7"):
        run_ranks(dying, 2)


@pytest.mark.slow
def test_a_hanging_rank_shows_where_it_hangs():
    with pytest.raises(RankFailure, match="hanging"):
        run_ranks(hanging, 1, timeout=60)
