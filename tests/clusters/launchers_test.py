"""Launchers start three ranks on three simulated hosts."""

import os
import re

from cluster import ENDLESS, TESTS, ClusterTest, Launchers, programs, torchrun, unittest_main


class LaunchersTest(ClusterTest):
    """Three ranks, each on a host of its own."""

    HOSTS = {"count": 3, "has_head": True}
    # Without --kill-on-bad-exit, the other ranks of srun find out by themselves.
    KILLED = re.compile("rank 2 is lost|rank 2 with PID|RUNNING AT node3")

    @classmethod
    def start_servers(cls):
        cls.launchers = Launchers(cls.network, cls.addClassCleanup)

    def launch(self, name, folder=None, **changes):
        folder = folder or name.replace(" ", "_")
        return self.launchers.start(self, name, folder, self.program(**changes))

    def test_all_launchers_train_the_same_model(self):
        weights = {}
        for name in Launchers.NAMES:
            with self.subTest(name):
                self.end_well(*self.launch(name))
                weights[name] = self.weights(name.replace(" ", "_"))
                self.assertEqual(weights[name], weights["none"])
        page = (TESTS.parent / "docs" / "distributed.md").read_text()
        documented = re.findall(r"^\| ([^|]*?) \|[^|]*\| run(?:, [^|]*)? \|$", page, re.MULTILINE)
        names = {row: self.ROWS.get(row, row) for row in documented}
        known = set(Launchers.NAMES)
        self.assertLessEqual({name for name in names.values() if name}, known, "docs/distributed.md")
        self.assertLessEqual({name for name in known if " with " not in name}, set(names.values()), "docs/distributed.md")

    # Rows of the page with another name. The program itself is tested by distributed.launch_in_code.
    ROWS = {"Other programs with PMIx, such as PRRTE": "PMIx", "none, one host or several": "none",
            "the program itself": None}

    def test_after_a_rank_was_killed_each_launcher_resumes(self):
        for name in ("Open MPI", "MPICH", "Slurm", "torchrun"):
            with self.subTest(name):
                folder = name.replace(" ", "_")
                states = {**ENDLESS, "save_every_updates": 10, "resume_from": "latest",
                          "accelerator__distributed__timeout": "10s"}
                processes = self.launch(name, **states)
                self.wait_until(lambda: self.last_update(folder) >= 25, *processes)
                self.network["node3"].run("pkill", "-KILL", "-x", "fashion_mnist")
                for process in processes[1:]:  # other agents of torchrun wait for the first
                    self.end(process, seconds=90)
                ended = self.end(*processes, seconds=90)
                self.assertNotIn(0, [one.status for one in ended])
                self.assertRegex("".join(one.output + one.error for one in ended), self.KILLED)
                last = self.last_update(folder) + 20
                ended = self.end_well(*self.launch(name, **{**states, "max_updates": last}))
                self.assertRegex("".join(one.output for one in ended), "Resumed training state")
                self.end_well(*self.launch("none", f"whole_{folder}", **{**ENDLESS, "max_updates": last}))
                self.assertEqual(self.weights(folder), self.weights(f"whole_{folder}"))

    def test_the_first_error_is_that_of_the_rank_that_failed(self):
        """The others report only afterwards that they miss it, whatever the launcher prints."""
        empty = self.path / "empty"
        empty.mkdir()
        self.network["node3"].run("mount", "--bind", empty, self.data)
        self.addCleanup(self.network["node3"].run, "umount", self.data)
        for name in ("Open MPI", "MPICH", "Slurm"):  # torchrun writes one output per host
            with self.subTest(name):
                (ended,) = self.end(*self.launch(name, accelerator__distributed__timeout="10s"), seconds=90)
                self.assertNotEqual(ended.status, 0)
                errors = re.findall(r"(?m)^fashion_mnist.*error: .*$", ended.error)
                self.assertTrue(errors, ended)
                self.assertRegex(errors[0], r"^fashion_mnist \(rank 2\): error: .*" + re.escape(str(self.data)))

    def test_a_wrong_option_is_an_error_of_all_ranks(self):
        for name in ("Open MPI", "MPICH", "Slurm"):
            with self.subTest(name):
                (ended,) = self.end(*self.launch(name, lr=-1), seconds=90)
                self.assertNotEqual(ended.status, 0)
                self.assertRegex(ended.error, r"(?m)^fashion_mnist \(rank [0-2]\): error: --optimizer: the optimizer's lr is -1")

    def test_rank_0_may_be_late(self):
        """Ranks on its own host and on others wait for it."""
        for name, host, launcher in (
                ("openmpi", "node1", self.launchers.mpirun("--map-by", "ppr:2:node:oversubscribe", num_ranks=4)),
                ("srun", "head", self.launchers.srun("--mpi=pmix", "--ntasks=4", "--nodes=2")),
                ("hydra", "node1", self.launchers.hydra("-ppn", "2", num_ranks=4))):
            for seconds in (0, 0, 5):
                with self.subTest(name, seconds=seconds):
                    late = ["sh", "-c", f'if [ "${{PMIX_RANK:-$PMI_RANK}}" = 0 ]; then sleep {seconds}; fi; exec "$@"', "sh"]
                    self.end_well(self.start_on(host, [*launcher, *late, *self.program(limit_train=256)], name))

    def test_a_program_may_also_use_mpi(self):
        for name, host, launcher in (("openmpi", "node1", self.launchers.mpirun()),
                                     ("srun", "head", self.launchers.srun("--mpi=pmix"))):
            for order in ("before", "after"):
                with self.subTest(name, order=order):
                    program = [os.environ["LINKBOY_WITH_MPI"], order]
                    (ended,) = self.end_well(self.start_on(host, [*launcher, *program], name))
                    self.assertIn("sum of the ranks: 3", ended.output)

    def test_names_of_hosts_are_not_needed(self):
        files = {file: file.read_text() for file in self.folder.glob("hosts.*")}
        for file, text in files.items():
            self.addCleanup(file.write_text, text)
            file.write_text("".join(line for line in text.splitlines(True) if "node" not in line))
        self.end_well(*self.launch("Slurm with PMIx"))
        (ended, ) = self.end(*self.launch("Slurm", accelerator__distributed__timeout="3s"))
        self.assertRegex(ended.error, "rank 0 did not answer at node1")  # by its name

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
            process = self.start_on("node1", [*launcher, *self.program()], f"threads_{threads}", **variables)
            (ended,) = self.end_well(process)
            self.assertEqual(ended.output.count(f"WARNING: each of the {num_ranks} processes on this host may use"), int(warns))


class ElasticTest(ClusterTest):
    """torchrun with one or two hosts. Each has one rank."""

    HOSTS = {"count": 2}

    def agent(self, host, folder, variables=(), **changes):
        options = {**ENDLESS, "save_every_updates": 10, "resume_from": "latest",
                   "accelerator__distributed__timeout": "10s", **changes}
        return self.start_on(host, [*torchrun(self), "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3",
                                    "--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:29500", "--rdzv-id", "job",
                                    "--rdzv-conf", "last_call_timeout=3", *self.program(**options)], folder, **dict(variables))

    def test_a_killed_rank_restarts_and_resumes(self):
        agents = [self.agent(host, "killed", max_updates=2500) for host in ("node1", "node2")]
        for num_killed, host in enumerate(("node2", "node1"), start=1):
            reached = self.last_update("killed")
            self.wait_until(lambda: self.last_update("killed") >= reached + 30, *agents)
            self.network[host].run("pkill", "-KILL", "-x", "fashion_mnist")
            self.wait_until(lambda: self.num_resumed(agents) == num_killed, *agents)
            self.wait_until(lambda: self.last_update("killed") > reached + 40, *agents)
        self.end_well(*agents)
        self.assertEqual(self.updates("killed"), list(range(1, 2501)))

    def num_resumed(self, agents):
        return sum(programs.output_of(agent)[0].count("Resumed training state") for agent in agents)

    def check_world_size(self, size):
        variables = self.network["node1"].run("sh", "-c", "cat /proc/$(pgrep -x fashion_mnist)/environ").split("\0")
        self.assertIn(f"WORLD_SIZE={size}", variables)

    def test_hosts_can_join_and_leave(self):
        def agent(host):
            # Otherwise the agents of PyTorch 2.11 do not tell new hosts the address of the ranks' store.
            variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            return self.agent(host, "changing", variables, max_updates=20000)

        agents = [agent("node1")]
        # A state after an odd number of updates does not end at an update of two ranks.
        self.wait_until(lambda: self.last_update("changing") >= 31, *agents)
        agents.append(agent("node2"))
        for num_hosts in (2, 1):
            self.wait_until(lambda: self.num_resumed(agents) == 3 - num_hosts, agents[0])
            self.check_world_size(num_hosts)
            reached = self.last_update("changing")
            self.wait_until(lambda: self.last_update("changing") >= reached + 31, agents[0])
            if num_hosts == 2:
                self.network["node2"].run("pkill", "-TERM", "-f", "torch.distributed.run")
                self.end(agents[1])
        self.end_well(agents[0])


if __name__ == "__main__":
    unittest_main.main()
