"""Finds a free TCP port for the ranks of a test. As a program, prints it.

The port is below the range from which the kernel assigns ports by itself. Any connection could be
assigned a port of that range between the check that it is free and the moment when the ranks listen.
"""

import pathlib
import random
import socket

FIRST = 10000


def free_port():
    limit = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(FIRST, max(limit, FIRST + 1000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


if __name__ == "__main__":
    print(free_port())
