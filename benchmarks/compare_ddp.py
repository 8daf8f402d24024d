#!/usr/bin/env python3
"""Compares linkboy's training on two ranks with Python's DistributedDataParallel and FSDP2, in turns within one run.

    compare_ddp.py [--rounds N] [--quick] [--output FILE.json] [--programs DIR]

There are two ranks of one thread each, over Gloo. The ranks of both sides are processes that wait for
their turn. In every round, each side has each kind of turn once, and the order rotates. Ratios are
computed within a round, and their medians are printed. ddp.cpp and peers/ddp.py describe the turns. In
addition to the ratios, the script prints for each side:

  efficiency  steps per second of each rank in a run of both, divided by those of one process alone
              while the other core is idle
  hidden      1 - (step of both ranks together - step of both ranks at the same time without
              communication) / (all-reduces alone): the fraction of the communication that overlaps
              with the rest of the step
"""

import argparse
import concurrent.futures
import json
import pathlib
import shlex
import socket
import statistics
import sys

from compare_peers import HERE, LEAST_ROUNDS, Side, by_turns, describe_machine

NUM_RANKS = 2
WARM_UP_TURNS = 2
TARGET = 1.15
# Of steps with sharded parameters: against FSDP2, and against linkboy's own DDP.
SHARDED_TARGETS = {"mlp": (3.0, None), "wide_mlp": (1.5, 0.7)}
# Title, and steps per turn.
WORKS = {"mlp": ("MLP 784-128-64-10", 300), "wide_mlp": ("MLP 784-1024-1024-10", 60)}
# Kinds of turns: the request, and the number of ranks that receive it.
KINDS = {"run": ("run", NUM_RANKS), "view": ("view", NUM_RANKS), "both_alone": ("alone", NUM_RANKS),
         "one_alone": ("alone", 1), "reduce": ("reduce", NUM_RANKS), "sharded": ("sharded", NUM_RANKS)}
SIDES = {"linkboy": KINDS, "python": {**KINDS, "indexed": ("indexed", NUM_RANKS)}}
NAMES = {"run": "DDP", "view": "DDP, gradient_as_bucket_view", "both_alone": "both ranks alone",
         "one_alone": "one process alone", "reduce": "all-reduces alone",
         "indexed": "DDP, batches by index_select", "sharded": "sharded parameters (zero_stage 3, FSDP2)"}


class Ranks:
    """All ranks of one side."""

    def __init__(self, command):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._ranks = []
        for rank in range(NUM_RANKS):
            environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": NUM_RANKS,
                           "LOCAL_WORLD_SIZE": NUM_RANKS, "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            words = [f"{name}={value}" for name, value in environment.items()]
            self._ranks.append(Side(["env", *words, *command], hello=False))
        self._pool = concurrent.futures.ThreadPoolExecutor(NUM_RANKS)
        self.hello = list(self._pool.map(Side.read, self._ranks))[0]

    def ask(self, word, num_ranks):
        """Returns the answer of the slowest rank."""
        answers = self._pool.map(lambda rank: rank.ask(word), self._ranks[:num_ranks])
        return max(answers, key=lambda answer: answer["seconds"])

    def quit(self):
        list(self._pool.map(Side.quit, self._ranks))


def measure(work, steps, rounds, programs):
    common = [work, "--steps", steps]
    commands = {"linkboy": [programs / "linkboy_ddp", *common],
                "python": [sys.executable, "-W", "ignore", HERE / "peers" / "ddp.py", *common]}
    ranks = {side: Ranks(command) for side, command in commands.items()}
    turns = [(side, kind) for side in SIDES for kind in SIDES[side]]
    # The losses after the same number of turns on all sides.
    losses = {}
    for side, kind in by_turns(turns, WARM_UP_TURNS):
        losses[side, kind] = ranks[side].ask(*SIDES[side][kind])["loss"]
    values = {turn: [] for turn in turns}
    for side, kind in by_turns(turns, rounds):
        answer = ranks[side].ask(*SIDES[side][kind])
        assert answer["steps"] == steps, answer
        values[side, kind].append(steps / answer["seconds"])
    for side in ranks.values():
        side.quit()
    versions = {side: ranks[side].hello["torch"] for side in ranks}
    return values, losses, versions


def ratios(numerators, denominators):
    return [a / b for a, b in zip(numerators, denominators)]


def hidden_shares(values, side):
    """Computes the medians first, because the difference of two numbers from one round is mostly noise."""
    seconds = {kind: 1 / statistics.median(values[side, kind]) for kind in KINDS}
    return 1 - (seconds["run"] - seconds["both_alone"]) / seconds["reduce"]


def print_ratio(name, each, target=None):
    median = statistics.median(each)
    verdict = f"target >= {target}: {'met' if median >= target else 'MISSED'}" if target else ""
    print(f"  {name:52} {median:6.3f}   {min(each):.3f}..{max(each):.3f}   {verdict}")


def report(work, title, steps, values, losses):
    rounds = len(values["linkboy", "run"])
    print(f"\n{work}: {title}, batch 64 per rank, {NUM_RANKS} ranks of 1 thread, {steps} steps per turn "
          f"({rounds} rounds)")
    for (side, kind), each in values.items():
        check = "" if kind == "reduce" else f"check value {losses[side, kind]:.4g}"
        print(f"  {side:8} {NAMES[kind]:34} {statistics.median(each):10.1f} steps/s   {check}")
    ours = values["linkboy", "run"]
    print_ratio("linkboy / Python's DDP", ratios(ours, values["python", "run"]), TARGET)
    print_ratio("linkboy / Python's DDP, batches by index_select",
                ratios(ours, values["python", "indexed"]))
    print_ratio("linkboy / Python's DDP, both with bucket views",
                ratios(values["linkboy", "view"], values["python", "view"]))
    sharded = values["linkboy", "sharded"]
    over_python, over_ddp = SHARDED_TARGETS[work]
    print_ratio("linkboy / Python's FSDP2", ratios(sharded, values["python", "sharded"]), over_python)
    print_ratio("linkboy: sharded / DDP", ratios(sharded, ours), over_ddp)
    for side in SIDES:
        print_ratio(f"{side}: efficiency of {NUM_RANKS} ranks",
                    ratios(values[side, "run"], values[side, "one_alone"]))
        print(f"  {side + ': fraction of communication hidden':52} {hidden_shares(values, side):6.3f}")
    # The loss without training is 2.3. The sides shuffle differently.
    checked = [losses[side, kind] for side, kind in losses if kind in ("run", "indexed", "sharded")]
    spread = max(checked) - min(checked)
    problem = None if spread <= 0.1 + 0.5 * min(checked) else f"the losses differ: {checked}"
    if problem:
        print(f"  PROBLEM: {problem}")
    sys.stdout.flush()
    return problem


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true",
                        help="run only 2 short rounds, to check that everything works")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file for the values of all rounds")
    parser.add_argument("--programs", type=pathlib.Path,
                        default=HERE.parent / "build" / "release" / "benchmarks")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def main():
    options = parse_options()
    machine = describe_machine()
    print("command: " + shlex.join(sys.argv))
    print("machine: " + ", ".join(f"{name} {value}" for name, value in machine.items()))
    if machine["load_before"] > 0.5:
        print("warning: the machine is not idle; the ratios below may be off")
    rounds = 2 if options.quick else options.rounds
    if rounds < LEAST_ROUNDS:
        print(f"warning: fewer than {LEAST_ROUNDS} rounds are not a measurement; they only show that it works")
    results, problems = {}, []
    for work in options.only:
        title, steps = WORKS[work]
        steps = max(4, steps // 10) if options.quick else steps
        values, losses, versions = measure(work, steps, rounds, options.programs)
        problems.append(report(work, title, steps, values, losses))
        results[work] = {"versions": versions, "steps": steps,
                         "steps_a_second": {" ".join(turn): each for turn, each in values.items()}}
    if options.output:
        options.output.write_text(json.dumps({"machine": machine, "works": results}, indent=1) + "\n")
    sys.exit(any(problems))


if __name__ == "__main__":
    main()
