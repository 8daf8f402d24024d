"""Runs the scripts of docs/slurm.md on a Slurm with three nodes."""

import re
import shutil
import subprocess
import time

from cluster import ENDLESS, ClusterTest, by_hand, scripts_of, slurm, unittest_main


class SlurmTest(ClusterTest):
    """The scripts of docs/slurm.md."""

    HOSTS = {"count": 3, "has_head": True}
    SAVED = re.compile(r"stopped by signal \d+ \(([^)]*)\) after update (\d+)")

    @classmethod
    def start_servers(cls):
        cls.slurm = slurm.Slurm(cls.network)
        cls.addClassCleanup(cls.slurm.close)
        cls.scripts = scripts_of("slurm.md")

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
        ranks = [by_hand(self, rank, "by_hand") for rank in range(3)]
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
        self.write_program(**ENDLESS)
        number = self.submit("requeue.sbatch", "--no-requeue")
        self.wait_for_updates(number, 20)
        self.slurm.run("scancel", number)
        update = self.saved_update(number, "Terminated")
        self.wait_for_state(number, "CANCELLED")
        self.write_program(**{**ENDLESS, "max_updates": update + 5})
        self.check_finished(self.submit("requeue.sbatch"), update)

    def check_requeued(self, number, signal):
        update = self.saved_update(number, signal)
        self.write_program(**{**ENDLESS, "max_updates": update + 5})
        self.wait_for(number, lambda: self.job(number).get("Restarts") == "1")
        self.check_finished(number, update)

    def test_a_requeued_job_resumes(self):
        self.write_program(**ENDLESS)
        number = self.submit("requeue.sbatch")
        self.wait_for_updates(number, 20)
        self.slurm.run("scontrol", "requeue", number)
        self.check_requeued(number, "Terminated")

    def test_a_job_near_its_time_limit_saves_and_requeues_itself(self):
        for name in ("requeue.sbatch", "batch_signal.sbatch"):
            with self.subTest(name):
                self.write_program(**ENDLESS)
                prefix = "B:" if name == "batch_signal.sbatch" else ""
                number = self.submit(name, "--time=1", f"--signal={prefix}USR1@50")
                self.wait_for_updates(number, 1)
                self.check_requeued(number, "User defined signal 1")
                shutil.rmtree(self.path / "output")
                (self.path / "report.jsonl").unlink()

    def test_the_tasks_of_an_array_do_not_meet(self):
        self.write_program()
        number = self.submit("array.sbatch", "--nodes=1", "--nodelist=node1")
        times = []
        for task in range(3):
            self.wait_for(number, lambda: self.job(f"{number}_{task}")["JobState"] == "COMPLETED")
            job = self.job(f"{number}_{task}")
            times.append((job["StartTime"], job["EndTime"]))
        times.sort()
        self.assertLess(times[1][0], times[0][1], "two tasks run at the same time")
        weights = {(self.path / "output" / str(task) / "final.pt").read_bytes() for task in range(3)}
        self.assertEqual(len(weights), 3, "their seeds differ")


if __name__ == "__main__":
    unittest_main.main()
