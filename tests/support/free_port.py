"""A TCP port for a test's ranks; as a program, prints one.

It lies below the ports that the kernel hands out by itself: one of those could be taken by any
connection between the moment it is found free and the moment the ranks listen.
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
