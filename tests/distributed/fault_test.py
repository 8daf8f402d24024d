"""Runs examples/programs/fashion_mnist as several processes that are launched, killed, stopped or misconfigured.

    python3 fault_test.py PATH/TO/fashion_mnist [unittest arguments]

Uses real processes and Gloo. Tests that need torchrun, mpirun or network namespaces are skipped if these are
not available.
"""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import programs  # noqa: E402
import unittest_main  # noqa: E402
from fashion_mnist_data import write_data  # noqa: E402
from free_port import free_port  # noqa: E402

PROGRAM = None
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
TAG = "LINKBOY_FAULT_TEST"  # in the environment of all processes that a test starts
SLACK = 15  # extra seconds for a busy machine
LAUNCHER_VARIABLES = re.compile("RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|OMPI_|"
                                "PMIX_|SLURM_")


def command_of(options):
    return [PROGRAM, *programs.arguments_of(options)]


def processes_with(*variables):
    """Returns the processes with all of these variables ("RANK=1") in their environment. A zombie's is empty."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if all(variable.encode() in environment for variable in variables):
            found.append(int(folder.name))
    return found


def shared_memory_of(process):
    """Returns the shared memory files that a process has open. They are visible only in its /proc entry."""
    links = [os.readlink(file) for file in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()]
    return [link for link in links if link.startswith("/memfd:linkboy")]


def is_listening(port):
    """Whether a process listens on the port. Does not connect to it, which would disturb the process."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == "0A" and int(local.split(":")[1], 16) == port:
                return True
    return False


class FaultTest(programs.ProgramTest):
    ENDLESS = {"epochs": 100000, "report": "report.jsonl", "report_updates": True, "batch_size": 8}

    @classmethod
    def setUpClass(cls):
        cls.data = programs.temporary_folder(cls.addClassCleanup)
        write_data(cls.data, num_train=2560, num_test=500)

    def setUp(self):
        begin = time.monotonic()
        self.addCleanup(lambda: print(f"({time.monotonic() - begin:.1f} s)", file=sys.stderr,
                                      end=" "))
        super().setUp()
        self.tag = f"{TAG}={uuid.uuid4()}"
        self.addCleanup(self.check_that_no_process_remains)

    def check_that_no_process_remains(self):
        left = processes_with(self.tag)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(left, [], "some processes are still running")

    # ---- Starting and ending ---------------------------------------------------------------------

    def torchrun(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest(f"{sys.executable} has no torch, so there is no torchrun")
        return [sys.executable, "-m", "torch.distributed.run", "--no-python"]

    def two_ranks(self):
        return [*self.torchrun(), "--standalone", "--nproc-per-node", "2"]

    def options(self, **changes):
        """Uses SGD, because Adam would amplify differences in the last bits of tiny gradients."""
        return {"data": self.data, "model": "mlp", "limit_train": 2560, "limit_eval": 500,
                "epochs": 1, "batch_size": 32, "eval_batch_size": 50, "device": "cpu",
                "optimizer": "sgd", "lr": 0.1, "progress": "none", **changes}

    def start(self, command, folder=".", **variables):
        """Starts a command without the variables of a launcher, but with these."""
        environment = {k: v for k, v in os.environ.items() if not LAUNCHER_VARIABLES.match(k)}
        key, value = self.tag.split("=")
        environment.update({key: value, "OMP_NUM_THREADS": "1"}, **variables)
        return super().start(command, folder, env=environment)

    def start_rank(self, rank, size, port, options, folder=".", **variables):
        values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size,
                  "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **variables}
        texts = {name: str(value) for name, value in values.items() if value is not None}
        return self.start(command_of(options), folder, **texts)

    def start_ranks(self, size, folder=".", change=None, **changes):
        """Starts the ranks without a launcher. `change` maps a rank to the options that differ on it."""
        port = free_port()
        return [self.start_rank(rank, size, port,
                                self.options(**{**changes, **(change or {}).get(rank, {})}), folder)
                for rank in range(size)]

    def start_endless(self, size, timeout, folder="."):
        """Starts ranks that train until they are stopped, and waits for some updates."""
        processes = self.start_ranks(size, folder, distributed__timeout=f"{timeout}s", **self.ENDLESS)
        self.wait_for_update(150, processes, folder)
        return processes

    def end_well(self, processes):
        ended = self.end(*processes)
        self.assertEqual({(one.status, one.error) for one in ended}, {(0, "")}, ended)
        return ended

    def assert_error(self, ended, rank, *texts):
        self.assertEqual(ended.status, 1, ended)
        self.assertIn(f"fashion_mnist (rank {rank}): error: ", ended.error)
        self.assertEqual(ended.output, "")
        for text in texts:
            self.assertIn(text, ended.error)

    # ---- Output ----------------------------------------------------------------------------------

    def report(self, folder="."):
        """Ignores an unfinished last line, so it also works during a run."""
        file = self.path / folder / "report.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for_update(self, number, processes, folder="."):
        """Returns the number of updates of the run once it is at least `number`."""
        def updates_done():
            done = [event["update"] for event in self.report(folder) if "update" in event]
            return done[-1] if done and done[-1] >= number else None
        return self.wait_until(updates_done, *processes)

    def files(self, folder="."):
        where = self.path / folder
        return sorted(str(p.relative_to(where)) for p in where.rglob("*") if p.is_file())

    def weights(self, folder):
        return (self.path / folder / "output" / "final.pt").read_bytes()

    def check_victims(self, act, size, victims, timeout, named_after=None):
        """Calls `act` with one rank's process. The others must name this rank, by default after the timeout."""
        for victim in victims:
            with self.subTest(victim=victim):
                processes = self.start_endless(size, timeout, folder=f"victim{victim}")
                act(processes[victim])
                others = [rank for rank in range(size) if rank != victim]
                seconds = (timeout if named_after is None else named_after) + SLACK
                for rank, ended in zip(others, self.end(*[processes[rank] for rank in others], seconds=seconds)):
                    self.assert_error(ended, rank)
                    self.assertRegex(ended.error, rf"failed: rank {victim}\b[^.]* is lost")


def kill(process):
    process.kill()


def stop(process):
    process.send_signal(signal.SIGSTOP)


class LaunchTest(FaultTest):
    OPTIONS = {"report": "report.jsonl", "checkpoint": "final.pt"}

    def launch(self, launcher, name):
        process = self.start([*launcher, *command_of(self.options(**self.OPTIONS))], folder=name)
        ended = self.end(process)[0]
        self.assertEqual(ended.status, 0, ended.error)
        return ended.output

    def test_a_run_of_any_launcher_equals_a_run_in_one_process(self):
        outputs = {}
        with self.subTest("mpirun"):
            if not shutil.which("mpirun"):
                self.skipTest("there is no mpirun")
            outputs["mpirun"] = self.launch([*MPIRUN, "-np", "2"], "mpirun")
        outputs["torchrun"] = self.launch(self.two_ranks(), "torchrun")
        ended = self.end_well(self.start_ranks(2, folder="hand", **self.OPTIONS))
        self.assertEqual(ended[1].output, "")
        for name, output in outputs.items():
            with self.subTest(launcher=name):
                self.assertEqual(output, ended[0].output)
                self.assertEqual(self.files(name), ["output/final.pt", "report.jsonl"])
                self.assertEqual(self.weights(name), self.weights("hand"))

        whole = self.start(command_of(self.options(**self.OPTIONS, batch_size=64)), folder="one")
        self.assertEqual(self.end_well([whole])[0].output, ended[0].output)
        (several, end), (one, end_of_one) = self.report("hand"), self.report("one")
        self.assertEqual(several["updates"], one["updates"])
        for metric in ("train_loss_epoch", "eval_loss_epoch"):
            self.assertAlmostEqual(several[metric] / one[metric], 1.0, delta=1e-6)
        self.assertEqual((several["eval_accuracy"], end), (one["eval_accuracy"], end_of_one))

    def test_only_the_first_process_writes(self):
        processes = self.start_ranks(3, progress="plain", save_every_updates=10, save_init="init.pt",
                                     report="report.jsonl", max_updates=20)
        outputs = [one.output for one in self.end(*processes)]
        self.assertIn("Starting epoch 1", outputs[0])
        self.assertRegex(outputs[0].splitlines()[-1], r"^test accuracy: [01]\.\d{4}$")
        self.assertEqual(outputs[1:], ["", ""])
        states = [f"output/states/state-0000000{i}/training_state.pt" for i in (2, 3)]
        self.assertEqual(self.files(),
                         ["init.pt", "output/fashion_mnist.pt", "output/states/.lock", *states,
                          "report.jsonl"])

    def test_each_evaluation_sample_counts_once_even_if_a_rank_has_no_samples(self):
        accuracies = []
        for size in (1, 4):
            options = {"limit_eval": 103, "eval_batch_size": 40, "report": "report.jsonl", "lr": 0,
                       "scheduler": "none", "max_updates": 1}
            self.end_well(self.start_ranks(size, folder=str(size), **options))
            accuracies += [event.get("eval_accuracy", event.get("test_accuracy"))
                           for event in self.report(str(size))]
        self.assertEqual(accuracies, accuracies[:1] * 4)
        self.assertEqual(accuracies[0] * 103, round(accuracies[0] * 103))

    def test_training_works_with_every_distributed_option(self):
        for options in ({"compression": "fp16"}, {"compression": "bf16", "distributed__timeout": "60s"},
                        {"local_sgd_interval": 4, "backend": "gloo"}, {"zero_stage": 1}, {"zero_stage": 2},
                        {"zero_stage": 3, "parallel": "shard=2"},
                        {"find_unused_parameters": "true"},
                        {"callbacks": "convert-sync-batch-norm", "model": "cnn", "limit_train": 640}):
            with self.subTest(**options):
                folder = "-".join(f"{name}-{value}" for name, value in options.items())
                options = {"report": "report.jsonl", **options}
                for one in self.end(*self.start_ranks(2, folder=folder, **options)):
                    self.assertEqual(one.status, 0, one.error)  # LibTorch can print warnings
                self.assertGreater(self.report(folder)[-1]["test_accuracy"], 0.15)


class LostRankTest(FaultTest):
    def test_a_killed_rank_is_named_by_all_others(self):
        self.check_victims(kill, 3, victims=(1, 2, 0), timeout=10)

    def test_a_killed_rank_is_named_by_ranks_that_are_not_its_neighbours(self):
        # Rank 1 may notice the loss only after ranks 0 and 2 have ended because of it.
        self.check_victims(kill, 4, victims=(3,), timeout=10)

    # TCPStore's clients do not have a timeout for an answer of rank 0.
    def test_a_stopped_rank_is_named_after_the_timeout(self):
        self.check_victims(stop, 3, victims=(2, 0), timeout=3)


class SharedMemoryFaultTest(FaultTest):
    """Two ranks on one host that average gradients through shared memory."""

    def start_endless(self, *arguments, **options):
        processes = super().start_endless(*arguments, **options)
        for process in processes:  # for the gradients and the stop agreement
            self.assertEqual(len(shared_memory_of(process)), 2)
        return processes

    def test_a_killed_rank_is_named_immediately(self):
        self.check_victims(kill, 2, victims=(1, 0), timeout=60, named_after=0)

    def test_a_stopped_rank_is_named_after_the_timeout(self):
        self.check_victims(stop, 2, victims=(1, 0), timeout=3)

    def test_the_others_wait_for_a_rank_that_continues_within_the_timeout(self):
        processes = self.start_endless(2, timeout=30)
        stop(processes[1])
        time.sleep(3)  # longer than the 2 s after which a silent rank counts as lost
        processes[1].send_signal(signal.SIGCONT)
        done = self.wait_for_update(0, processes)
        self.wait_for_update(done + 50, processes)
        for process in processes:
            process.kill()


class DistributedParametersFaultTest(FaultTest):
    """Ranks that have only some rows of each parameter."""

    ENDLESS = {**FaultTest.ENDLESS, "zero_stage": 3, "zero_whole_below": 0}
    shares_memory = "0"

    def start_rank(self, *arguments, **variables):
        return super().start_rank(*arguments, LINKBOY_SHARED_MEMORY=self.shares_memory, **variables)

    def test_a_rank_that_is_killed_while_others_gather_is_named(self):
        self.check_victims(kill, 3, victims=(1, 0), timeout=60, named_after=0)

    def test_a_rank_that_is_killed_while_others_share_its_memory_is_named(self):
        self.shares_memory = "1"
        self.check_victims(kill, 2, victims=(1, 0), timeout=60, named_after=0)


class DifferentRankTest(FaultTest):
    def test_another_option_on_one_rank_is_an_error_on_all_ranks(self):
        for option, value, *texts in (
            ("model", "cnn", "0.weight: "),
            ("limit_train", 2559, "train_dataset.size() = 2559", "= 2560"),
            ("batch_size", 31, "per_device_batch_size = 31", "= 32"),
        ):
            with self.subTest(option):
                processes = self.start_ranks(3, option, change={1: {option: value}}, distributed__timeout="30s")
                for rank, ended in enumerate(self.end(*processes, seconds=20)):
                    self.assert_error(ended, rank, "the ranks differ in ", "rank 1 has ", *texts)
                self.assertEqual(self.files(option), [])

    def test_wrong_usage_names_the_rank(self):
        ended = self.end(*self.start_ranks(2, lr="much"), seconds=20)
        for rank, one in enumerate(ended):
            self.assertEqual((one.status, one.output), (2, ""))
            self.assertIn(f"fashion_mnist (rank {rank}): error: --optimizer: the optimizer sgd's lr is 'much'",
                          one.error)
            self.assertIn("See fashion_mnist --help.", one.error)


class StartTest(FaultTest):
    def start_waiting(self, rank, size, port, timeout):
        return self.start_rank(rank, size, port, self.options(distributed__timeout=f"{timeout}s"))

    def test_an_occupied_port_is_an_error_that_names_the_port(self):
        with socket.socket() as other:
            other.bind(("0.0.0.0", 0))
            other.listen()
            port = other.getsockname()[1]
            ended = self.end(self.start_waiting(0, 2, port, timeout=30), seconds=20)[0]
        self.assert_error(ended, 0, f"rank 0 cannot listen on port {port}",
                          "address already in use")

    def test_a_wrong_variable_is_an_error_of_all_ranks(self):
        for variable, text in (("GLOO_SOCKET_IFNAME", "this host has no such network interface"),
                               ("LINKBOY_SHARED_MEMORY", "it must be 0 or 1"),
                               ("LINKBOY_DEBUG_COLLECTIVES", "it must be 0 or 1")):
            with self.subTest(variable):
                port = free_port()
                ranks = [self.start_rank(rank, 2, port, self.options(), variable, **{variable: "wrong"})
                         for rank in range(2)]
                ended = self.end(*ranks, seconds=40)
                self.assertNotIn(0, [one.status for one in ended])  # the second may report the end of the first
                self.assertRegex("".join(one.error for one in ended), f'error: .*{variable} is "wrong".*{text}')

    # TCPStore's client does not have a timeout for an answer.
    def test_a_port_without_a_store_is_an_error(self):
        for listens in (True, False):
            with self.subTest(listens=listens), socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                if listens:
                    other.listen()
                port = other.getsockname()[1]
                ended = self.end(self.start_waiting(1, 2, port, timeout=2), seconds=2 + SLACK)[0]
                self.assert_error(ended, 1, f"rank 0 did not answer at 127.0.0.1:{port} in 2 s")

    def test_a_second_launch_with_the_same_port_neither_joins_nor_hides_a_loss(self):
        port = free_port()
        options = self.options(distributed__timeout="60s", **self.ENDLESS)
        first = [self.start_rank(rank, 2, port, options) for rank in range(2)]
        self.wait_for_update(20, first)
        ended = self.end(self.start_rank(1, 2, port, self.options(distributed__timeout="60s")),
                         seconds=SLACK)[0]
        self.assert_error(ended, 1, "another process is already rank 1 here")
        kill(first[1])
        ended = self.end(first[0], seconds=SLACK)[0]
        self.assert_error(ended, 0, "rank 1 is lost")

    # Rank 0 fails first, and its store ends with it.
    def test_a_rank_that_never_arrives_is_named_by_all(self):
        port = free_port()
        first = self.start_waiting(0, 3, port, timeout=2)
        self.wait_until(lambda: is_listening(port), first)
        ended = self.end(first, self.start_waiting(1, 3, port, timeout=2), seconds=2 + SLACK)
        for rank, one in enumerate(ended):
            self.assert_error(one, rank, "of 3 ranks, rank 2 did not arrive in 2 s")

    # Without the check, rank 0 would wait until the timeout for a rank that was not started.
    def test_contradictory_world_sizes_are_an_immediate_error(self):
        for sizes in ((3, 2), (2, 3)):
            for first in (0, 1):
                with self.subTest(sizes=sizes, first=first):
                    port = free_port()
                    processes = {first: self.start_waiting(first, sizes[first], port, timeout=60)}
                    if first == 0:
                        self.wait_until(lambda: is_listening(port), *processes.values())
                    else:
                        time.sleep(0.5)  # a refused connection leaves no trace
                    processes[1 - first] = self.start_waiting(1 - first, sizes[1 - first], port, timeout=60)
                    for rank, one in enumerate(self.end(processes[0], processes[1], seconds=SLACK)):
                        self.assert_error(one, rank, "WORLD_SIZE is ", f"{sizes[0]} on rank 0",
                                          f"{sizes[1]} on rank 1")

    def test_an_invalid_environment_is_an_immediate_error(self):
        for variables, text in (
            ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
            ({"MASTER_PORT": None}, "MASTER_PORT is not set"),
            ({"MASTER_PORT": "many"}, 'MASTER_PORT is "many"'),
            ({"RANK": 2}, 'RANK is "2"; it must be an integer from 0 to 1'),
            ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
        ):
            with self.subTest(**variables):
                process = self.start_rank(0, 2, free_port(), self.options(), **variables)
                self.assert_error(self.end(process, seconds=10)[0], variables.get("RANK", 0), text)


class ResumeTest(FaultTest):
    """A run that is stopped or killed and then resumed has the weights of an uninterrupted run."""

    RUN = {"epochs": 6, "batch_size": 16, "optimizer": "adamw", "lr": 1e-3, "checkpoint": "final.pt",
           "report": "report.jsonl", "report_updates": True, "distributed__timeout": "30s"}
    STATES = {"save_every_updates": 20, "resume_from": "latest"}
    _uninterrupted = None

    def check_weights(self, folder):
        if ResumeTest._uninterrupted is None:
            self.end_well(self.start_ranks(2, folder="uninterrupted", **self.RUN))
            ResumeTest._uninterrupted = self.weights("uninterrupted")
        self.assertEqual(self.weights(folder), self._uninterrupted)

    def start_under_torchrun(self, folder, *options):
        """Starts two ranks, and waits until they have saved four states."""
        run = command_of(self.options(**self.RUN, **self.STATES))
        process = self.start([*self.two_ranks(), *options, *run], folder=folder)
        self.wait_for_update(90, [process], folder)
        return process

    def process_of_rank(self, rank):
        (process,) = processes_with(self.tag, f"RANK={rank}")
        return process

    def check_that_it_continues(self, folder, num_updates):
        """Resumes without a launcher. Expects the run to continue after the given number of updates."""
        number = len(self.files(f"{folder}/output/states"))
        self.assertGreater(number, 0)
        ended = self.end_well(self.start_ranks(2, folder=folder, **self.RUN, **self.STATES))
        self.assertRegex(ended[0].output, "Resumed training state from output/states/state-[0-9]+ "
                         rf"\(epoch \d+, update {num_updates}\)")
        self.check_weights(folder)

    def stopped_after(self, output):
        found = re.search(r"stopped (?:on request|by signal \d+ \(\w+\)) after update (\d+)", output)
        self.assertIsNotNone(found, output)
        return int(found[1])

    def test_sigterm_to_one_rank_stops_all_at_the_same_update(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                folder = f"victim{victim}"
                processes = self.start_ranks(2, folder=folder, **self.RUN, **self.STATES)
                self.wait_for_update(90, processes, folder)
                processes[victim].send_signal(signal.SIGTERM)
                ended = self.end(*processes)
                self.assertEqual([one.status for one in ended], [128 + signal.SIGTERM] * 2, ended)
                self.assertEqual([one.error for one in ended], ["", ""])
                num_updates = self.stopped_after(ended[0].output)
                self.assertEqual(self.report(folder)[-2]["update"], num_updates)
                self.check_that_it_continues(folder, num_updates)

    def test_sigterm_to_torchrun_or_one_of_its_ranks_stops_all(self):
        for victim in ("torchrun", "rank1"):
            with self.subTest(victim=victim):
                process = self.start_under_torchrun(victim)
                os.kill(process.pid if victim == "torchrun" else self.process_of_rank(1), signal.SIGTERM)
                ended = self.end(process)[0]
                self.assertNotEqual(ended.status, 0)
                self.assertEqual(processes_with(self.tag), [])
                self.check_that_it_continues(victim, self.stopped_after(ended.output))

    def test_torchrun_restarts_a_killed_run_which_ends_with_the_same_weights(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                folder = f"victim{victim}"
                process = self.start_under_torchrun(folder, "--max-restarts", "1")
                os.kill(self.process_of_rank(victim), signal.SIGKILL)
                ended = self.end(process)[0]
                self.assertEqual(ended.status, 0, ended.error)
                resumed = re.search(r"Resumed training state from \S+ \(epoch \d+, update (\d+)\)",
                                    ended.output)
                self.assertIsNotNone(resumed, ended.output)
                self.assertGreaterEqual(int(resumed[1]), 80)
                self.check_weights(folder)


class TwoHostsTest(FaultTest):
    """Simulates hosts by network namespaces, each with its own addresses and /etc/hosts."""

    def setUp(self):
        super().setUp()
        self.hosts = [f"linkboy-{os.getpid()}-{i}" for i in range(2)]
        if not shutil.which("ip"):
            self.skipTest("there is no program ip")
        for host in self.hosts:
            self.addCleanup(subprocess.run, ["ip", "netns", "delete", host], capture_output=True)
            self.ip("netns", "add", host)
        cards = [f"lb{os.getpid() % 1000000}{end}" for end in "ab"]
        self.ip("link", "add", cards[0], "netns", self.hosts[0], "type", "veth",
                "peer", "name", cards[1], "netns", self.hosts[1])
        for i, (host, card) in enumerate(zip(self.hosts, cards)):
            self.ip("-n", host, "address", "add", f"10.77.0.{i + 1}/24", "dev", card)
            for link in (card, "lo"):
                self.ip("-n", host, "link", "set", link, "up")
            folder = pathlib.Path("/etc/netns") / host
            folder.mkdir(parents=True)
            self.addCleanup(shutil.rmtree, folder)
            names = "".join(f"10.77.0.{k + 1} host{k}\n" for k in range(2))
            (folder / "hosts").write_text("127.0.0.1 localhost\n" + names)

    def ip(self, *arguments):
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"not permitted: ip {' '.join(arguments)}: {done.stderr.strip()}")

    def test_torchrun_works_on_two_hosts_by_address_and_by_name(self):
        for address in ("10.77.0.1", "host0"):
            with self.subTest(address=address):
                processes = [
                    self.start(["ip", "netns", "exec", host, *self.torchrun(), "--nnodes", "2",
                                "--nproc-per-node", "1", "--node-rank", str(node),
                                "--master-addr", address, "--master-port", "29400",
                                *command_of(self.options(distributed__timeout="30s"))],
                               folder=f"{address}/{node}",
                               # Unlike real hosts, these have the same memory.
                               LINKBOY_SHARED_MEMORY="0")
                    for node, host in enumerate(self.hosts)]
                ended = self.end(*processes)
                self.assertEqual([one.status for one in ended], [0, 0], ended)
                self.assertIn("test accuracy: ", ended[0].output)
                self.assertEqual(ended[1].output, "")
                self.assertEqual(self.files(address), ["0/output/fashion_mnist.pt"])


if __name__ == "__main__":
    PROGRAM = programs.path_argument()
    unittest_main.main()
