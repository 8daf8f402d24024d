#!/usr/bin/env python3
"""Compares the time from the launch of four ranks to their first update: linkboy's fashion_mnist under each launcher,
and the same program of Python under torchrun, in turns within one run.

    compare_launchers.py [--rounds N] [--output FILE.json] [--program FASHION_MNIST]

Needs root and the packages of scripts/setup --clusters: the ranks run on a simulated host with a Slurm of its own. Run it
with the Python of scripts/setup, which provides torchrun. The first round is not counted.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))
import hosts  # noqa: E402
import slurm  # noqa: E402
from fashion_mnist_data import write_data  # noqa: E402

NUM_RANKS = 4
TARGET = 0.3
PYTHON = "Python, torchrun"
ALONE = "torchrun alone"  # ranks that only write a file


def wait_for(file, process):
    """Waits until the first update is written to the file."""
    while not (file.exists() and "update" in file.read_text()):
        if process.poll() not in (None, 0):
            sys.exit(process.stdout.read())
        time.sleep(0.002)


class Launch:
    def __init__(self, host, command, cluster, folder):
        self.host, self.command, self.cluster, self.folder = host, command, cluster, folder

    def seconds(self):
        """The time from the launch until the first update."""
        file = self.folder / "report"
        file.unlink(missing_ok=True)
        start = time.monotonic()
        process = subprocess.Popen(self.cluster[self.host].command(self.command, self.folder), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        wait_for(file, process)
        seconds = time.monotonic() - start
        process.communicate()
        return seconds


def launches(cluster, slurm_environment, folder, program):
    data = folder / "data"
    data.mkdir()
    write_data(data, num_train=2560, num_test=500)
    linkboy = [program, "--data", data, "--model", "mlp", "--batch-size", "32", "--optimizer", "sgd", "--lr", "0.1",
               "--max-updates", "1", "--limit-eval", "50", "--device", "cpu", "--progress", "none", "--report", "report",
               "--report-updates", "--scheduler", "none"]
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", str(NUM_RANKS)]
    commands = {PYTHON: ("node1", [*torchrun, HERE / "peers" / "fashion_mnist_ddp.py", data, "report"]),
                ALONE: ("node1", [*torchrun, "--no-python", "sh", "-c", "echo update >report"]),
                "linkboy, torchrun": ("node1", [*torchrun, "--no-python", *linkboy]),
                "linkboy, Open MPI": ("node1", ["mpirun.openmpi", "--oversubscribe", "-np", str(NUM_RANKS), *linkboy]),
                "linkboy, MPICH": ("node1", ["mpiexec.hydra", "-n", str(NUM_RANKS), *linkboy]),
                "linkboy, Slurm": ("head", ["env", *slurm_environment, "srun", f"--ntasks={NUM_RANKS}", *linkboy])}
    return {name: Launch(host, command, cluster, folder) for name, (host, command) in commands.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=pathlib.Path, help="JSON file for the seconds of all rounds")
    parser.add_argument("--program", type=pathlib.Path,
                        default=HERE.parent / "build/release/examples/programs/fashion_mnist/fashion_mnist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, hosts.Network(pathlib.Path(name), 1, has_head=True) as cluster:
        with slurm.Slurm(cluster, cpus=NUM_RANKS) as manager:
            all_launches = launches(cluster, manager.environment, pathlib.Path(name), options.program.resolve())
            values = {each: [] for each in all_launches}
            for number in range(options.rounds + 1):
                for each, launch in all_launches.items():
                    seconds = launch.seconds()
                    if number > 0:
                        values[each].append(seconds)
    print(f"seconds from the launch of {NUM_RANKS} ranks to their first update, {options.rounds} rounds")
    for each, seconds in values.items():
        ratios = [mine / python for mine, python in zip(seconds, values[PYTHON])]
        verdict = "" if each in (PYTHON, ALONE) else f"target <= {TARGET}: {'met' if statistics.median(ratios) <= TARGET else 'MISSED'}"
        print(f"  {each:20} {statistics.median(seconds):7.2f} s   ratio {statistics.median(ratios):.3f} "
              f"({min(ratios):.3f}..{max(ratios):.3f})   {verdict}")
    if options.output:
        options.output.write_text(json.dumps(values))


if __name__ == "__main__":
    main()
