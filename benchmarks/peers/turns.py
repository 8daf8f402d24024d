"""The code that the Python sides of compare_peers.py share. See workloads.cpp for the protocol."""

import argparse
import json
import os
import sys
import time
import traceback

import torch


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("work")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--not-fused", action="store_true")
    parser.add_argument("--log-loss", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--scan", action="store_true")
    parser.add_argument("--first-update", action="store_true")
    return parser.parse_args()


class Turns:
    """Waits for its turn on standard input and times it. Discards all other output."""

    def __init__(self, arguments):
        torch.set_num_threads(arguments.threads)
        self._replies = os.fdopen(os.dup(1), "w", buffering=1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        self._steps = arguments.steps
        self._first_update = arguments.first_update

    def say(self, **values):
        self._replies.write(json.dumps(values) + "\n")

    def ready(self):
        if not self._first_update:
            self.say(torch=torch.__version__)

    def begin(self):
        """Returns when the next turn begins. Raises SystemExit if there is no next turn."""
        if not self._first_update and sys.stdin.readline() != "run\n":
            sys.exit()
        self._start = time.perf_counter()

    def updated(self):
        if self._first_update:
            self.say(first_update=True)
            sys.exit()

    def end(self, loss):
        seconds = time.perf_counter() - self._start
        self.say(seconds=seconds, steps=self._steps, loss=loss(), peak_bytes=peak_bytes())


def peak_bytes():
    """Returns the peak resident memory of this process in bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024


def serve(work, arguments=None):
    """Calls work(arguments, turns), and reports an exception to the other side."""
    arguments = arguments or parse_arguments()
    turns = Turns(arguments)
    try:
        work(arguments, turns)
    except Exception:
        turns.say(error=traceback.format_exc())
