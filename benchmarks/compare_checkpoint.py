#!/usr/bin/env python3
"""Compares linkboy's checkpoints with Python's torch.save and torch.load, in turns within one run.

    compare_checkpoint.py PATH/TO/linkboy_checkpoint_io [--megabytes 100 1024] [--rounds 5] [--folder DIR]

Run it with the Python of the LibTorch that linkboy was built with. A write of linkboy returns when the
bytes are on the disk, and the old file stays complete until then. torch.save guarantees neither, so it
is timed both alone and with code that adds these guarantees. The two sides alternate in going first, and
read the same file. With --folder /dev/shm, no disk is involved, and only the work of the two programs is
measured.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch


class Linkboy:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def __call__(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def quit(self):
        self.process.communicate("quit\n")


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def settle(megabytes):
    """Writes all pending data to the disk, and touches memory that the machine may have to provide again."""
    os.sync()
    torch.ones(2 * megabytes << 18)


def save_safely(state, path):
    """Saves with linkboy's guarantee: the old file stays until the new one is on the disk."""
    aside = path.with_suffix(".new")
    with open(aside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def touch(state):
    return sum(float(tensor[::1024].sum()) for tensor in state.values())


def memory_of_a_save(program, megabytes, path):
    linkboy = Linkboy(program)
    linkboy("make", megabytes)
    written = linkboy("write", path)["bytes"]
    linkboy.quit()
    return written


def memory_of_an_asynchronous_save(program, megabytes, path):
    linkboy = Linkboy(program)
    linkboy("make", megabytes)
    stall = linkboy("stall", path)["bytes"]
    waited = linkboy("wait")["bytes"]
    linkboy.quit()
    return max(stall, waited)


def compare(linkboy, megabytes, rounds, folder):
    ours, theirs = folder / "linkboy.pt", folder / "python.pt"
    linkboy("make", megabytes)
    state = {f"tensor{i}": torch.rand(megabytes * (1 << 20) // 4 // 64) for i in range(64)}
    results = {}

    def add(name, value):
        results.setdefault(name, []).append(value)

    def ask(name, *words):
        settle(megabytes)
        add(name, linkboy(*words)["seconds"])

    def time_python(name, work):
        settle(megabytes)
        touch(state)
        add(name, timed(work))

    pairs = [
        (lambda: ask("write", "write", ours),
         lambda: time_python("torch.save aside, fsync, rename", lambda: save_safely(state, theirs))),
        (lambda: ask("read", "read", theirs, 0, 1),
         lambda: time_python("torch.load", lambda: touch(torch.load(theirs, weights_only=True)))),
        (lambda: ask("read mmap", "read", theirs, 1, 0),
         lambda: time_python("torch.load mmap",
                             lambda: touch(torch.load(theirs, weights_only=True, mmap=True)))),
    ]
    for round in range(rounds + 1):
        if round == 1:
            results.clear()  # the first round is a warm-up
        for pair in pairs:
            for turn in pair[::1 if round % 2 else -1]:
                turn()
        ask("read mmap, checked", "read", theirs, 1, 1)
        time_python("torch.save", lambda: torch.save(state, theirs))
        ask("stall", "stall", ours)
        linkboy("wait")
    median = {name: statistics.median(values) for name, values in results.items()}
    size = megabytes * (1 << 20)
    program = linkboy.process.args[0]
    ratios = {
        "write: torch.save / linkboy": median["torch.save"] / median["write"],
        "write: torch.save aside, fsync, rename / linkboy": median["torch.save aside, fsync, rename"] / median["write"],
        "read: torch.load / linkboy": median["torch.load"] / median["read"],
        "read mmap: torch.load / linkboy": median["torch.load mmap"] / median["read mmap"],
        "stall of an asynchronous save / synchronous save": median["stall"] / median["write"],
        "memory above the state, synchronous / state": memory_of_a_save(program, megabytes, ours) / size,
        "memory above the state, asynchronous / state":
            memory_of_an_asynchronous_save(program, megabytes, ours) / size,
    }
    print(f"{megabytes} MiB, medians of {rounds} rounds, torch {torch.__version__}")
    for name, value in {**median, **ratios}.items():
        print(f"  {name}: {value:.4g}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path)
    options = parser.parse_args()
    linkboy = Linkboy(options.program)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for megabytes in options.megabytes:
            compare(linkboy, megabytes, options.rounds, pathlib.Path(folder))
    linkboy.quit()


if __name__ == "__main__":
    main()
