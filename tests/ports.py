"""Ports for the servers of tests."""

import socket


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Different ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((address, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    return free_ports(1, address)[0]
