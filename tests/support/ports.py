"""Ports for the servers of tests."""

import contextlib
import random
import socket


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Different ports that nobody listens on now, below those that the kernel gives away by itself and above
    those of Ray's workers: a server may bind them seconds later.
    """
    found, chance = set(), random.SystemRandom()  # tests seed the other one
    while len(found) < count:
        port = chance.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind((address, port))
            found.add(port)
    return list(found)


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    return free_ports(1, address)[0]
