"""Runs examples/programs/fashion_mnist on the simulated hosts of a cluster with real launchers: Slurm, Open MPI, MPICH
and torchrun.

    python3 cluster_test.py PATH/TO/fashion_mnist [unittest arguments]

Tests that need a program or a right that this machine lacks are skipped.
"""

import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import hosts  # noqa: E402
import programs  # noqa: E402
import slurm  # noqa: E402
import ssh  # noqa: E402
import unittest_main  # noqa: E402
from fashion_mnist_data import write_data  # noqa: E402

PROGRAM = None
LAUNCHER_VARIABLES = re.compile("RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|OMPI_|PMI|SLURM_|MPI_|HYD")
NUM_RANKS = 3


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


def by_hand(test, rank, folder, **changes):
    """Starts a rank with torchrun's variables, on the host of its number."""
    return test.start_on(f"node{rank + 1}", test.program(**changes), folder, RANK=str(rank), WORLD_SIZE=str(NUM_RANKS),
                         LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="node1", MASTER_PORT="29411")


def torchrun(test):
    if importlib.util.find_spec("torch") is None:
        test.skipTest(f"{sys.executable} has no torch, so there is no torchrun")
    return [sys.executable, "-m", "torch.distributed.run", "--no-python"]


class LaunchersTest(ClusterTest):
    """Three ranks, each on a host of its own."""

    HOSTS = {"count": 3, "has_head": True}

    @classmethod
    def start_servers(cls):
        cls.ssh = ssh.Ssh(cls.network, cls.folder)
        cls.slurm = slurm.Slurm(cls.network)
        cls.addClassCleanup(cls.slurm.close)
        (cls.folder / "hostfile").write_text("".join(f"node{i + 1} slots=1\n" for i in range(NUM_RANKS)))

    def launch(self, launcher, folder, host="node1", **variables):
        return self.end_well(self.start_on(host, [*launcher, *self.program()], folder, **variables))

    def mpirun(self, *options):
        return ["mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", self.ssh.program, "--hostfile",
                self.folder / "hostfile", "-np", "3", "-x", "OMP_NUM_THREADS", *options]

    def hydra(self, *options):
        return ["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", self.ssh.program, "-hosts", "node1,node2,node3",
                "-n", "3", *options]

    def srun(self, *options):
        return ["env", *self.slurm.environment, "srun", "--ntasks=3", "--nodes=3", *options]

    def expected(self):
        """The weights of ranks without a launcher."""
        self.end_well(*[by_hand(self, rank, "by_hand") for rank in range(NUM_RANKS)])
        return self.weights("by_hand")

    def test_all_launchers_train_the_same_model(self):
        expected = self.expected()
        # Other programs with PMIx, such as PRRTE, do not set Open MPI's variables.
        pmix_alone = ["env", *[word for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
                               for word in ("-u", f"OMPI_COMM_WORLD_{name}")]]
        launchers = {"Open MPI": ("node1", self.mpirun()), "PMIx": ("node1", self.mpirun(*pmix_alone)),
                     "MPICH": ("node1", self.hydra()), "Slurm": ("head", self.srun()),
                     "Slurm with PMIx": ("head", self.srun("--mpi=pmix")),
                     "Slurm with PMI-2": ("head", self.srun("--mpi=pmi2"))}
        for name, (host, launcher) in launchers.items():
            with self.subTest(name):
                folder = name.replace(" ", "_")
                self.launch(launcher, folder, host)
                self.assertEqual(self.weights(folder), expected)

    def test_torchrun_trains_the_same_model(self):
        agents = [self.start_on(f"node{rank + 1}", [*torchrun(self), "--nnodes", "3", "--nproc-per-node", "1",
                                                    "--node-rank", str(rank), "--master-addr", "node1",
                                                    "--master-port", "29400", *self.program()], "torchrun")
                  for rank in range(NUM_RANKS)]
        self.end_well(*agents)
        self.assertEqual(self.weights("torchrun"), self.expected())

    def test_a_killed_rank_is_named_by_each_launcher(self):
        endless = self.program(epochs=100000, batch_size=8, report="report.jsonl", report_updates=True,
                               accelerator__distributed__timeout="10s")
        for name, host, launcher in (("mpirun", "node1", self.mpirun()), ("hydra", "node1", self.hydra()),
                                     ("srun", "head", self.srun("--kill-on-bad-exit=0"))):
            with self.subTest(name):
                process = self.start_on(host, [*launcher, *endless], name)
                self.wait_until(lambda: self.updates(name) and self.updates(name)[-1] >= 20, process)
                self.network["node3"].run("pkill", "-KILL", "-x", "fashion_mnist")
                (ended,) = self.end(process, seconds=90)
                self.assertNotEqual(ended.status, 0)
                # mpirun and mpiexec kill the other ranks, and say where one has ended.
                self.assertRegex(ended.output + ended.error, "rank 2 is lost|rank 2 with PID|RUNNING AT node3")

    def test_an_error_begins_with_the_program_and_its_rank(self):
        for name, host, launcher in (("mpirun", "node1", self.mpirun()), ("hydra", "node1", self.hydra()),
                                     ("srun", "head", self.srun())):
            with self.subTest(name):
                (ended,) = self.end(self.start_on(host, [*launcher, *self.program(lr=-1)], name), seconds=90)
                self.assertNotEqual(ended.status, 0)
                self.assertRegex(ended.error, r"(?m)^fashion_mnist \(rank [0-2]\): error: --optimizer: the optimizer's lr is -1")

    def test_jobs_of_mpich_on_one_host_do_not_meet(self):
        """Its variables do not identify the job."""
        jobs = [self.start_on("node1", ["mpiexec.hydra", "-n", "2", *self.program()], f"job{i}") for i in range(3)]
        self.end_well(*jobs)
        self.assertEqual(len({self.weights(f"job{i}") for i in range(3)}), 1)

    def test_ranks_that_share_all_cores_are_a_warning(self):
        for threads, warns in ((None, True), ("1", False)):
            variables = {"OMP_NUM_THREADS": threads} if threads else {}
            num_ranks = os.cpu_count() + 1
            launcher = ["mpiexec.hydra", "-n", str(num_ranks), "env", *(() if threads else ("-u", "OMP_NUM_THREADS"))]
            (ended,) = self.launch(launcher, f"threads_{threads}", **variables)
            self.assertEqual(ended.output.count(f"WARNING: each of the {num_ranks} processes on this host may use"), int(warns))


class SlurmTest(ClusterTest):
    """The scripts of docs/slurm.md."""

    HOSTS = {"count": 3, "has_head": True}
    ENDLESS = {"epochs": 100000, "batch_size": 8, "scheduler": "none", "report": "report.jsonl", "report_updates": True}
    SAVED = re.compile(r"stopped by signal \d+ \(([^)]*)\) after update (\d+)")

    @classmethod
    def start_servers(cls):
        cls.slurm = slurm.Slurm(cls.network)
        cls.addClassCleanup(cls.slurm.close)
        page = (TESTS.parent / "docs" / "slurm.md").read_text()
        cls.scripts = dict(re.findall(r"<!-- script: (\S+) -->\n```bash\n(.*?)```", page, re.DOTALL))

    def setUp(self):
        super().setUp()
        self.addCleanup(self.slurm.run, "scancel", "--user=root")

    def write_program(self, **changes):
        """Writes ./train, the program with these options."""
        words = " ".join(map(str, self.program(**changes)))
        (self.path / "train.new").write_text(f'#!/bin/bash\nexport OMP_NUM_THREADS=1\nexec {words} "$@"\n')
        (self.path / "train.new").chmod(0o755)
        (self.path / "train.new").rename(self.path / "train")

    def submit(self, name, *options):
        """Submits a script of the page and returns the number of its job. Its output goes to the file job.NUMBER."""
        (self.path / name).write_text(self.scripts[name])
        done = subprocess.run(
            self.slurm.command(["sbatch", "--parsable", "--output=job.%j", *options, name], self.path),
            capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def job(self, number):
        """The properties of a job: {"JobState": "COMPLETED", ...}."""
        return dict(word.split("=", 1) for word in self.slurm.run("scontrol", "--oneliner", "show", "job", number).split()
                    if "=" in word)

    def output(self, number):
        file = self.path / f"job.{number}"
        return file.read_text() if file.exists() else ""

    def wait_for(self, number, condition, seconds=90):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"{self.job(number)}\n{self.output(number)}\n{self.slurm.logs()}")
            time.sleep(0.1)

    def wait_for_state(self, number, *states, seconds=90):
        self.wait_for(number, lambda: self.job(number)["JobState"] in states, seconds)
        return self.job(number)

    def wait_for_updates(self, number, at_least):
        self.wait_for(number, lambda: self.updates() and self.updates()[-1] >= at_least)

    def saved_update(self, number, signal):
        """The update after which a signal has stopped the run."""
        self.wait_for(number, lambda: self.SAVED.search(self.output(number)))
        name, update = self.SAVED.search(self.output(number)).groups()
        self.assertEqual(name, signal)
        return int(update)

    def check_finished(self, number, update):
        """Checks that the job resumes after `update` and makes five more updates."""
        self.wait_for_state(number, "COMPLETED")
        output = self.output(number)
        self.assertRegex(output, rf"Resumed training state .* update {update}\)")
        self.assertEqual(self.updates(), list(range(1, update + 6)), output)

    def test_a_batch_script_starts_a_rank_on_each_node(self):
        self.write_program()
        number = self.submit("train.sbatch")
        self.wait_for_state(number, "COMPLETED")
        self.assertIn("test accuracy: ", self.output(number))
        ranks = [by_hand(self, rank, "by_hand") for rank in range(NUM_RANKS)]
        self.end_well(*ranks)
        self.assertEqual(self.weights(), self.weights("by_hand"))

    def test_nodes_can_have_different_numbers_of_tasks(self):
        self.write_program()
        expected = None
        for name, options in {"uneven": ["--nodes=2", "--ntasks=3", "./train"],
                              "heterogeneous": ["--mpi=pmix", "--ntasks=1", "./train", ":", "--ntasks=2",
                                                "./train"]}.items():
            with self.subTest(name):
                shutil.rmtree(self.path / "output", ignore_errors=True)
                srun = ["env", *self.slurm.environment, "srun", *options]
                self.end_well(self.start_on("head", srun))
                expected = expected or self.weights()
                self.assertEqual(self.weights(), expected)

    def test_scancel_saves_a_state_from_which_the_job_resumes(self):
        self.write_program(**self.ENDLESS)
        number = self.submit("requeue.sbatch", "--no-requeue")
        self.wait_for_updates(number, 20)
        self.slurm.run("scancel", number)
        update = self.saved_update(number, "Terminated")
        self.wait_for_state(number, "CANCELLED")
        self.write_program(**{**self.ENDLESS, "max_updates": update + 5})
        self.check_finished(self.submit("requeue.sbatch"), update)

    def check_requeued(self, number, signal):
        update = self.saved_update(number, signal)
        self.write_program(**{**self.ENDLESS, "max_updates": update + 5})
        self.wait_for(number, lambda: self.job(number).get("Restarts") == "1")
        self.check_finished(number, update)

    def test_a_requeued_job_resumes(self):
        self.write_program(**self.ENDLESS)
        number = self.submit("requeue.sbatch")
        self.wait_for_updates(number, 20)
        self.slurm.run("scontrol", "requeue", number)
        self.check_requeued(number, "Terminated")

    def test_a_job_near_its_time_limit_saves_and_requeues_itself(self):
        for name in ("requeue.sbatch", "batch_signal.sbatch"):
            with self.subTest(name):
                self.write_program(**self.ENDLESS)
                prefix = "B:" if name == "batch_signal.sbatch" else ""
                number = self.submit(name, "--time=1", f"--signal={prefix}USR1@50")
                self.wait_for_updates(number, 1)
                self.check_requeued(number, "User defined signal 1")
                shutil.rmtree(self.path / "output")
                (self.path / "report.jsonl").unlink()

    def test_the_tasks_of_an_array_do_not_meet(self):
        self.write_program()
        number = self.submit("array.sbatch", "--nodes=1", "--nodelist=node1")
        for task in range(3):
            self.wait_for(number, lambda: self.job(f"{number}_{task}")["JobState"] == "COMPLETED")
        weights = {(self.path / "output" / str(task) / "final.pt").read_bytes() for task in range(3)}
        self.assertEqual(len(weights), 3, "their seeds differ")


class HostsTest(ClusterTest):
    """Two hosts with two ranks each, started without a launcher."""

    HOSTS = {"count": 2}
    RANKS = 4
    ENDLESS = {"epochs": 100000, "batch_size": 8, "report": "report.jsonl", "report_updates": True}

    def start_ranks(self, folder, network=None, master=None, separate_disks=False, **changes):
        network = network or self.network
        per_host = self.RANKS // 2
        return [self.start_on(f"node{rank // per_host + 1}", self.program(**changes),
                              f"{folder}/node{rank // per_host + 1}" if separate_disks else folder, network,
                              RANK=str(rank), WORLD_SIZE=str(self.RANKS), LOCAL_RANK=str(rank % per_host),
                              LOCAL_WORLD_SIZE=str(per_host), MASTER_ADDR=master or network["node1"].addresses[0],
                              MASTER_PORT="29411")
                for rank in range(self.RANKS)]

    def expected(self):
        if not hasattr(HostsTest, "weights_of_undisturbed_run"):
            self.end_well(*self.start_ranks("undisturbed"))
            HostsTest.weights_of_undisturbed_run = self.weights("undisturbed")
        return HostsTest.weights_of_undisturbed_run

    def wait_for_update(self, number, folder, processes):
        self.wait_until(lambda: self.updates(folder) and self.updates(folder)[-1] >= number, *processes)

    def test_delays_and_losses_change_nothing(self):
        expected = self.expected()
        with self.network.disturbed("node2"):
            self.end_well(*self.start_ranks("disturbed"))
        self.assertEqual(self.weights("disturbed"), expected)

    def test_a_host_that_is_cut_off_for_20_s_continues(self):
        endless = {**self.ENDLESS, "max_updates": 600, "scheduler": "none"}
        self.end_well(*self.start_ranks("whole", **endless))
        processes = self.start_ranks("cut", **endless)
        self.wait_for_update(50, "cut", processes)
        self.network.cut("node2")
        time.sleep(20)
        self.network.reconnect("node2")
        self.end_well(*processes)
        self.assertEqual(self.weights("cut"), self.weights("whole"))

    def check_lost(self, processes):
        """The ranks of node1 must name a rank of node2."""
        for rank, ended in enumerate(self.end(*processes[:2], seconds=60)):
            self.assertEqual(ended.status, 1, ended)
            self.assertRegex(ended.error, rf"(?m)^fashion_mnist \(rank {rank}\): error: .*ranks? [23]\b[^.]* (is|are) lost")

    def test_a_host_that_is_cut_off_for_ever_is_named(self):
        processes = self.start_ranks("cut", accelerator__distributed__timeout="10s", **self.ENDLESS)
        self.wait_for_update(50, "cut", processes)
        self.network.cut("node2")
        self.addCleanup(self.network.reconnect, "node2")
        self.check_lost(processes)
        for ended in self.end(*processes[2:], seconds=60):
            self.assertEqual(ended.status, 1, ended)
            self.assertRegex(ended.error, "rank 0, or the process that hosts the ranks' store, is lost")

    def test_a_host_without_power_is_named(self):
        with hosts.Network(programs.temporary_folder(self.addCleanup), 2) as network:
            processes = self.start_ranks("off", network, accelerator__distributed__timeout="10s", **self.ENDLESS)
            self.wait_for_update(50, "off", processes)
            network["node2"].kill()
            self.check_lost(processes)

    def test_hosts_with_their_own_disks_resume(self):
        endless = {**self.ENDLESS, "scheduler": "none"}
        processes = self.start_ranks("first", separate_disks=True, save_every_updates=20, max_updates=40, **endless)
        self.end_well(*processes)
        self.assertFalse((self.path / "first" / "node2" / "output").exists(), "rank 0 writes")
        resumed = self.start_ranks("first", separate_disks=True, resume_from="latest", max_updates=60, **endless)
        self.end_well(*resumed)
        self.end_well(*self.start_ranks("whole", max_updates=60, **endless))
        self.assertEqual(self.weights("first/node1"), self.weights("whole"))

    def test_ipv6_is_enough(self):
        with hosts.Network(programs.temporary_folder(self.addCleanup), 2, versions=(6,)) as network:
            for folder, master in (("address", None), ("name", "node1")):
                self.end_well(*self.start_ranks(folder, network, master))
                self.assertEqual(self.weights(folder), self.expected())

    def test_small_shared_memory_is_enough(self):
        """/dev/shm of 64 MB, as in containers, of a page, and none."""
        for size in ("64m", "4k", None):
            with self.subTest(size), hosts.Network(programs.temporary_folder(self.addCleanup), 2) as network:
                for name in ("node1", "node2"):
                    if size:
                        network[name].run("mount", "-o", f"remount,size={size}", "/dev/shm")
                    else:
                        network[name].run("sh", "-c", "umount /dev/shm && mount -t tmpfs -o mode=000,size=4k none /dev/shm "
                                          "&& mount -o remount,ro /dev/shm")
                self.end_well(*self.start_ranks(f"size_{size}", network))
                self.assertEqual(self.weights(f"size_{size}"), self.expected())

    def test_jobs_of_two_users_on_one_host_do_not_meet(self):
        jobs = []
        for user in (2001, 2002):
            folder = self.path / str(user)
            folder.mkdir()
            os.chown(folder, user, user)
            # The capability lets the user read the libraries in the home of root.
            capability = "+dac_read_search"
            as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", f"--inh-caps={capability}",
                       f"--ambient-caps={capability}", "env", f"HOME={folder}"]
            jobs.append(self.start_on("node1", [*as_user, "mpirun.openmpi", "--oversubscribe", "-np", "2", *self.program()],
                                      str(user)))
        for parent in (self.path, self.folder, self.data):
            parent.chmod(0o755)
        self.end_well(*jobs)
        self.assertEqual(self.weights("2001"), self.weights("2002"))


class TwoNetworksTest(ClusterTest):
    """The first of two networks does not connect the hosts, although its interfaces are up."""

    HOSTS = {"count": 2, "num_networks": 2}

    @classmethod
    def start_servers(cls):
        for name in ("node1", "node2"):
            cls.network.switch.run("bridge", "link", "set", "dev", f"{name}.0", "isolated", "on")
        cls.ssh = ssh.Ssh(cls.network, cls.folder)

    def test_rank_0_is_found_through_the_other_network(self):
        addresses = [self.network[name].addresses[1] for name in ("node1", "node2")]
        by_hand = [self.start_on(f"node{rank + 1}", self.program(), "by_hand", RANK=str(rank), WORLD_SIZE="2",
                                 LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR=addresses[0], MASTER_PORT="29411")
                   for rank in range(2)]
        self.end_well(*by_hand)
        mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", self.ssh.program,
                  "--mca", "oob_tcp_if_include", "eth1", "-host", ",".join(addresses), "-np", "2"]
        self.end_well(self.start_on("node1", [*mpirun, *self.program()], "mpirun"))
        self.assertEqual(self.weights("mpirun"), self.weights("by_hand"))


class ElasticTest(ClusterTest):
    """torchrun with a changing number of hosts. Each has one rank."""

    HOSTS = {"count": 2}

    def agent(self, host, folder, **changes):
        options = {"epochs": 100000, "batch_size": 8, "scheduler": "none", "report": "report.jsonl",
                   "report_updates": True, "save_every_updates": 10, "resume_from": "latest",
                   "accelerator__distributed__timeout": "10s", **changes}
        return self.start_on(host, [*torchrun(self), "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3",
                                    "--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:29500", "--rdzv-id", "job",
                                    *self.program(**options)], folder)

    def count(self, folder):
        return max(self.updates(folder), default=0)

    def test_a_killed_rank_restarts_and_resumes(self):
        agents = [self.agent(host, "killed", max_updates=4000) for host in ("node1", "node2")]
        for host in ("node2", "node1"):
            reached = self.count("killed")
            self.wait_until(lambda: self.count("killed") >= reached + 30, *agents)
            self.network[host].run("pkill", "-KILL", "-x", "fashion_mnist")
            before = self.count("killed")
            self.wait_until(lambda: "Resumed training state" in programs.output_of(agents[0])[0]
                            or "Resumed training state" in programs.output_of(agents[1])[0], *agents)
            self.wait_until(lambda: self.count("killed") > before + 10, *agents)
        self.end_well(*agents)
        self.assertEqual(self.updates("killed"), list(range(1, 4001)))


if __name__ == "__main__":
    PROGRAM = programs.path_argument()
    unittest_main.main()
