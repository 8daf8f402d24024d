#!/usr/bin/env python3
"""Compares linkboy's checkpoints with Python's torch.save and torch.load, by turns in one run.

    compare_checkpoint.py PATH/TO/linkboy_checkpoint_io [--megabytes 100 1024] [--rounds 5] [--folder DIR]

Run it with the Python of the LibTorch that linkboy was built with. linkboy ends a write when the bytes
are on the disk and the old file is still whole until then; torch.save alone promises neither, so that
it is timed alone and with the same promise. Memory includes what malloc keeps of earlier reads.
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


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def save_safely(state, path):
    """With linkboy's promise: the old file stays until the new one is on the disk."""
    aside = path.with_suffix(".new")
    with open(aside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def touch(state):
    return sum(float(tensor[::1024].sum()) for tensor in state.values())


def compare(linkboy, megabytes, rounds, folder):
    ours, theirs = folder / "linkboy.pt", folder / "python.pt"
    linkboy("make", megabytes)
    state = {f"tensor{i}": torch.rand(megabytes * (1 << 20) // 4 // 64) for i in range(64)}
    results = {}

    def add(name, value):
        results.setdefault(name, []).append(value)

    for round in range(rounds + 1):
        keep = add if round > 0 else lambda *_: None  # the first round warms up
        os.sync()
        written = linkboy("write", ours)
        keep("write", written["seconds"])
        keep("write memory", written["bytes"])
        os.sync()
        touch(state)
        keep("torch.save", timed(lambda: torch.save(state, theirs)))
        os.sync()
        touch(state)
        keep("torch.save aside, fsync, rename", timed(lambda: save_safely(state, theirs)))
        os.sync()
        stall = linkboy("stall", ours)
        keep("stall", stall["seconds"])
        waited = linkboy("wait")
        keep("async memory", max(stall["bytes"], waited["bytes"]))
        keep("read", linkboy("read", ours, 0, 1)["seconds"])
        keep("torch.load", timed(lambda: touch(torch.load(theirs, weights_only=True))))
        keep("read mmap, checked", linkboy("read", ours, 1, 1)["seconds"])
        keep("read mmap", linkboy("read", ours, 1, 0)["seconds"])
        keep("torch.load mmap", timed(lambda: touch(torch.load(theirs, weights_only=True,
                                                               mmap=True))))
    median = {name: statistics.median(values) for name, values in results.items()}
    size = megabytes * (1 << 20)
    ratios = {
        "write: torch.save / linkboy": median["torch.save"] / median["write"],
        "write: torch.save aside, fsync, rename / linkboy": median["torch.save aside, fsync, rename"] / median["write"],
        "read: torch.load / linkboy": median["torch.load"] / median["read"],
        "read mmap: torch.load / linkboy": median["torch.load mmap"] / median["read mmap"],
        "stall of an asynchronous save / synchronous save": median["stall"] / median["write"],
        "memory above the state, synchronous / state": median["write memory"] / size,
        "memory above the state, asynchronous / state": median["async memory"] / size,
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
    linkboy.process.communicate("quit\n")


if __name__ == "__main__":
    main()
