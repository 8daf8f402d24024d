"""Runs examples/programs/fashion_mnist on the simulated hosts of a cluster.

The scripts of this folder are called with the path of the program, and then with arguments of unittest. Tests that need
a program or a right that this machine lacks are skipped.
"""

import hashlib
import importlib.util
import json
import os
import pathlib
import re
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import hosts  # noqa: E402
import programs  # noqa: E402
import slurm  # noqa: E402
import ssh  # noqa: E402
import unittest_main  # noqa: E402
from fashion_mnist_data import write_data  # noqa: E402

PROGRAM = programs.path_argument()
LAUNCHER_VARIABLES = re.compile("RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|OMPI_|PMI|SLURM_|MPI_|HYD")
# Options of a run that only a fault ends, and that reports each update.
ENDLESS = {"epochs": 100000, "batch_size": 8, "scheduler": "none", "report": "report.jsonl", "report_updates": True}


def scripts_of(page):
    """The marked blocks of a page of docs/, by their names."""
    text = (TESTS.parent / "docs" / page).read_text()
    return dict(re.findall(r"<!-- script: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL))


class ClusterTest(programs.ProgramTest):
    """A class has one network for all of its tests."""

    HOSTS = {"count": 3}

    @classmethod
    def setUpClass(cls):
        cls.folder = programs.temporary_folder(cls.addClassCleanup)
        cls.data = cls.folder / "data"
        cls.data.mkdir()
        write_data(cls.data, num_train=2560, num_test=500)
        try:
            cls.network = hosts.Network(cls.folder, **cls.HOSTS)
            cls.addClassCleanup(cls.network.close)
            cls.start_servers()
        except hosts.NotPermitted as error:
            raise programs.unittest.SkipTest(str(error))

    @classmethod
    def start_servers(cls):
        """Starts what the launcher needs."""

    def program(self, **changes):
        options = {"data": self.data, "model": "mlp", "limit_train": 2560, "limit_eval": 500, "epochs": 1,
                   "batch_size": 32, "eval_batch_size": 50, "device": "cpu", "optimizer": "sgd", "lr": 0.1,
                   "progress": "none", "checkpoint": "final.pt", "accelerator__distributed__timeout": "60s", **changes}
        return [PROGRAM, *programs.arguments_of(options)]

    def start_on(self, host, command, folder=".", network=None, **variables):
        """Starts a command on a host, without the variables of a launcher, but with these."""
        (self.path / folder).mkdir(parents=True, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if not LAUNCHER_VARIABLES.match(k)}
        environment.update({"OMP_NUM_THREADS": "1"}, **variables)
        return self.start((network or self.network)[host].command(command, self.path / folder), folder, env=environment)

    def end_well(self, *processes, seconds=120):
        ended = self.end(*processes, seconds=seconds)
        self.assertEqual({one.status for one in ended}, {0}, ended)
        return ended

    def weights(self, folder="."):
        return hashlib.sha256((self.path / folder / "output" / "final.pt").read_bytes()).hexdigest()

    def updates(self, folder="."):
        """The updates in the report, of all runs that wrote to it."""
        file = self.path / folder / "report.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [event["update"] for event in map(json.loads, lines) if "update" in event]

    def last_update(self, folder="."):
        return max(self.updates(folder), default=0)


class Launchers:
    """Starts one rank on each of the hosts node1, node2, ... with each launcher."""

    NAMES = ("none", "Open MPI", "PMIx", "MPICH", "Slurm", "Slurm with PMIx", "Slurm with PMI-2", "torchrun")

    def __init__(self, network, add_cleanup):
        self.folder = programs.temporary_folder(add_cleanup)
        self.nodes = [name for name in network.hosts if name.startswith("node")]
        self.ssh = ssh.Ssh(network, self.folder)
        self.slurm = slurm.Slurm(network)
        add_cleanup(self.slurm.close)
        (self.folder / "hostfile").write_text("".join(f"{name} slots=1\n" for name in self.nodes))

    def mpirun(self, *options, num_ranks=None):
        return ["mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", self.ssh.program, "--hostfile",
                self.folder / "hostfile", "-np", str(num_ranks or len(self.nodes)), "-x", "OMP_NUM_THREADS", *options]

    def hydra(self, *options, num_ranks=None):
        return ["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", self.ssh.program, "-hosts", ",".join(self.nodes),
                "-n", str(num_ranks or len(self.nodes)), *options]

    def srun(self, *options):
        return ["env", *self.slurm.environment, "srun", f"--ntasks={len(self.nodes)}", f"--nodes={len(self.nodes)}", *options]

    def start(self, test, name, folder, program):
        """Returns the launcher's processes, which are the ranks if there is no launcher."""
        if name == "none":
            return [by_hand(test, rank, folder, program, len(self.nodes)) for rank in range(len(self.nodes))]
        if name == "torchrun":
            return [test.start_on(node, [*torchrun(test), "--nnodes", str(len(self.nodes)), "--nproc-per-node", "1",
                                         "--node-rank", str(number), "--master-addr", "node1", "--master-port", "29400",
                                         *program], folder)
                    for number, node in enumerate(self.nodes)]
        # Other programs with PMIx, such as PRRTE, do not set Open MPI's variables.
        pmix_alone = ["env", *[word for variable in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
                               for word in ("-u", f"OMPI_COMM_WORLD_{variable}")]]
        host, command = {"Open MPI": ("node1", self.mpirun()), "PMIx": ("node1", self.mpirun(*pmix_alone)),
                         "MPICH": ("node1", self.hydra()), "Slurm": ("head", self.srun()),
                         "Slurm with PMIx": ("head", self.srun("--mpi=pmix")),
                         "Slurm with PMI-2": ("head", self.srun("--mpi=pmi2"))}[name]
        return [test.start_on(host, [*command, *program], folder)]


def by_hand(test, rank, folder, program=None, num_ranks=3):
    """Starts a rank with torchrun's variables, on the host of its number."""
    return test.start_on(f"node{rank + 1}", program or test.program(), folder, RANK=str(rank), WORLD_SIZE=str(num_ranks),
                         LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="node1", MASTER_PORT="29411")


def torchrun(test):
    if importlib.util.find_spec("torch") is None:
        test.skipTest(f"{sys.executable} has no torch, so there is no torchrun")
    return [sys.executable, "-m", "torch.distributed.run", "--no-python"]
