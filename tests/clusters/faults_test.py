"""Fault matrix: each launcher starts a rank on each of two or four hosts, a fault strikes at a random time, and the run
continues or resumes. It must end with the weights of an undisturbed run.

LINKBOY_HOST_FAULTS selects the cases: `all`, or the number of the first ones in a random order (default: 6). LINKBOY_SEED
is the seed of that order and of the times (default: 1). scripts/maintain/hosts runs all and prints a table.
"""

import itertools
import os
import random
import re
import time

from cluster import ENDLESS, ClusterTest, Launchers, hosts, programs, unittest_main

LAUNCHERS = ("none", "Open MPI", "MPICH", "Slurm", "torchrun")
SECONDS_CUT = 20
TIMEOUT = 40  # of collective calls; longer than a cut that must be survived
TIMEOUT_OF_LOSS = 10
OPTIONS = ({}, {"zero_stage": 1}, {"zero_stage": 2}, {"local_sgd_interval": 2}, {"compression": "bf16"},
           {"states__asynchronous": "true"})


class Fault:
    """What happens to the last host or its rank. Until when the others must have ended, or None if they continue."""

    def __init__(self, strike, ends):
        self.strike, self.ends = strike, ends


def cut(seconds):
    def strike(network, name):
        network.cut(name)
        if seconds:
            time.sleep(seconds)
            network.reconnect(name)
    return strike


def send(signal):
    return lambda network, name: network[name].run("pkill", f"-{signal}", "-x", "fashion_mnist")


def suspend(network, name):
    send("STOP")(network, name)
    time.sleep(5)
    send("CONT")(network, name)


def disturb(network, name):
    with network.disturbed(name):
        time.sleep(5)


FAULTS = {"delays and losses for 5 s": Fault(disturb, ends=False),
          f"cut off for {SECONDS_CUT} s": Fault(cut(SECONDS_CUT), ends=False),
          "suspended for 5 s": Fault(suspend, ends=False),
          "cut off for ever": Fault(cut(None), ends=True),
          "without power": Fault(lambda network, name: network[name].kill(), ends=True),
          "killed": Fault(send("KILL"), ends=True),
          "suspended for ever": Fault(send("STOP"), ends=True),
          "SIGTERM": Fault(send("TERM"), ends=True)}
# What a user reads. mpirun and mpiexec end all ranks, often before these have noticed the loss, and report it themselves.
LOST = r"ranks? ([\d, and]+) (?:is|are) lost|ranks? ([\d, and]+) did not arrive|did not answer"
STOPPED = r"stopped by signal 15"
BY_LAUNCHER = {"Open MPI": r"|rank \d with PID|lost communication|process(?:es)? returned|Connection to \w+ closed",
               "MPICH": r"|RUNNING AT \w+|host: node\d|Connection to \w+ closed"}


def cases():
    every = list(itertools.product(LAUNCHERS, FAULTS, (2, 4), ("start", "training")))
    chosen = os.environ.get("LINKBOY_HOST_FAULTS", "6")
    seed = int(os.environ.get("LINKBOY_SEED", "1"))
    random.Random(seed).shuffle(every)
    return [(*case, random.Random(f"{seed} {case}"))
            for case in (every if chosen == "all" else every[:int(chosen)])]


class FaultsTest(ClusterTest):
    """Each case has new hosts."""

    HOSTS = {"count": 0}

    def start_hosts(self, num_hosts):
        network = hosts.Network(programs.temporary_folder(self.addCleanup), num_hosts, has_head=True)
        self.addCleanup(network.close)
        self.network = network
        return network, Launchers(network, self.addCleanup)

    def wait_for_end(self, network, names, seconds, text):
        """Waits until no rank is left on the hosts."""
        deadline = time.monotonic() + seconds
        for name in names:
            while network[name].is_running("fashion_mnist"):
                self.assertLess(time.monotonic(), deadline, f"a rank on {name} still runs: {text()}")
                time.sleep(0.1)

    def run_case(self, launcher, fault, num_hosts, phase, draw):
        network, launchers = self.start_hosts(num_hosts)
        last = f"node{num_hosts}"
        options = dict(draw.choice(OPTIONS))
        timeout = TIMEOUT_OF_LOSS if FAULTS[fault].ends else TIMEOUT
        options = {**ENDLESS, **options, "save_every_updates": 10, "resume_from": "latest",
                   "accelerator__distributed__timeout": f"{timeout}s"}
        processes = launchers.start(self, launcher, "run", self.program(**options))
        # What the others say, as far as the launcher does not mix it with what the last rank says.
        survivors = processes[:-1] or processes
        text = lambda: "".join(part for one in survivors for part in programs.output_of(one))  # noqa: E731
        if phase == "start":
            self.wait_until(lambda: network[last].is_running("fashion_mnist"), *processes[:1])
        else:
            self.wait_until(lambda: self.last_update("run") >= 15, *processes[:1])
        time.sleep(draw.uniform(0, 1))
        FAULTS[fault].strike(network, last)
        others = [name for name in launchers.nodes if name != last]
        if FAULTS[fault].ends:
            self.wait_for_end(network, others, 2 * TIMEOUT_OF_LOSS + 20, text)
            words = LOST + BY_LAUNCHER.get(launcher, "")
            if fault == "SIGTERM":  # at the start it may come before the program handles it
                words = STOPPED if phase == "training" else f"{STOPPED}|{words}"
            said = re.search(words, text())
            self.assertTrue(said, text())
            if named := "".join(filter(None, said.groups())):
                self.assertIn(str(num_hosts - 1), re.findall(r"\d+", named), text())
            said = said[0]
        else:
            said = "continues"
            before = self.last_update("run")
            self.wait_until(lambda: self.last_update("run") >= before + 15, *processes[:1])
            network["node1"].run("pkill", "-TERM", "-x", "fashion_mnist")
            self.wait_for_end(network, launchers.nodes, 30, text)
        for process in processes:  # a stopped nsenter would keep its host alive
            process.kill()
            process.wait()
        network.close()
        # The hosts are there again.
        _, launchers = self.start_hosts(num_hosts)
        reached = self.last_update("run") + 20
        options["max_updates"] = reached
        ended = self.end_well(*launchers.start(self, launcher, "run", self.program(**options)))
        if phase == "training":
            self.assertIn("Resumed training state", "".join(one.output for one in ended), text())
        options = {name: value for name, value in options.items()
                   if name not in ("resume_from", "save_every_updates", "states__asynchronous")}
        self.end_well(*launchers.start(self, "none", "whole", self.program(**options)))
        self.assertEqual(self.weights("run"), self.weights("whole"), text())
        self.network.close()
        return said

    def test_a_run_survives_each_fault_or_resumes_after_it(self):
        results = {}
        for launcher, fault, num_hosts, phase, draw in cases():
            self.path = programs.temporary_folder(self.addCleanup)
            case = f"{launcher}, {num_hosts} hosts, {phase}: {fault}"
            begin = time.monotonic()
            results[case] = "failed"
            with self.subTest(case):
                results[case] = self.run_case(launcher, fault, num_hosts, phase, draw)
            print(f"{case}: {results[case]} in {time.monotonic() - begin:.0f} s", flush=True)
            self.doCleanups()


if __name__ == "__main__":
    unittest_main.main()
