"""Runs examples/programs/fashion_mnist like a user: options, files, exit statuses, signals.

    python3 fashion_mnist_test.py PATH/TO/fashion_mnist [unittest arguments]

Needs only Python's standard library; the images are artificial.
"""

import csv
import gzip
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import unittest_main  # noqa: E402

PROGRAM = None
# Number of runs that are killed at random times until they complete; LINKBOY_KILL_ROUNDS changes it.
KILL_ROUNDS = int(os.environ.get("LINKBOY_KILL_ROUNDS", "2"))
KILL_SEED = int(os.environ.get("LINKBOY_KILL_SEED", "0"))
NUM_TRAIN = 700
NUM_TEST = 220
DEBIAN_DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")


def idx(sizes, data):
    return struct.pack(f">I{len(sizes)}I", 0x0800 + len(sizes), *sizes) + data


def write_data(folder, num_train=NUM_TRAIN, num_test=NUM_TEST):
    """Writes images whose class is the position of a bright band. Only the training files are gzipped."""
    draw = random.Random(0)
    for prefix, count in (("train", num_train), ("t10k", num_test)):
        labels = bytes(draw.randrange(10) for _ in range(count))
        images = bytearray()
        for label in labels:
            image = bytearray(byte // 4 for byte in draw.randbytes(28 * 28))
            image[56 * label : 56 * (label + 1)] = bytes([255]) * 56
            images += image
        for name, content in (
            ("images-idx3-ubyte", idx([count, 28, 28], bytes(images))),
            ("labels-idx1-ubyte", idx([count], labels)),
        ):
            if prefix == "train":
                (folder / f"{prefix}-{name}.gz").write_bytes(gzip.compress(content, 1))
            else:
                (folder / f"{prefix}-{name}").write_bytes(content)


# A run that is stopped and resumed.
SETTINGS = {"model": "cnn", "limit_train": 300, "limit_eval": 50, "epochs": 3,
            "gradient_accumulation_steps": 2, "batch_size": 20, "workers": 2,
            "checkpoint": "final.pt", "eval_batch_size": 50}


METRICS = ["accuracy:num_classes=10", "f-beta:num_classes=10,as=f1", "cohen-kappa:num_classes=10,as=kappa"]


def trackers(folder=""):
    """Returns the names of all trackers, for --trackers."""
    return ["tensorboard:directory=" + folder + "tb", "mlflow:directory=" + folder + "ml",
            "csv:path=" + folder + "run.csv", "json-lines:path=" + folder + "run.jsonl",
            "html-report:path=" + folder + "run.html"]


class ProgramTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data_folder = tempfile.TemporaryDirectory()
        cls.data = pathlib.Path(cls.data_folder.name)
        write_data(cls.data)

    @classmethod
    def tearDownClass(cls):
        cls.data_folder.cleanup()

    def final_bytes(self, output="output"):
        return (self.path / output / "final.pt").read_bytes()

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def command(self, options):
        """Returns the command of a tiny run. In the names of `options`, '__' represents '.'. True sets a switch,
        a list repeats the option, and None omits it."""
        merged = {
            "data": self.data,
            "model": "mlp",
            "limit_train": 640,
            "limit_eval": 200,
            "epochs": 2,
            "device": "cpu",
            "num_threads": 1,
            "progress": "none",
        }
        merged.update(options)
        command = [PROGRAM]
        for name, value in merged.items():
            if value is None:
                continue
            for one in value if isinstance(value, list) else [value]:
                command.append("--" + name.replace("__", "."))
                if one is not True:
                    command.append(str(one))
        return command

    def run_program(self, status=0, **options):
        """Runs in the test's folder; returns the output, or the error if it failed."""
        done = subprocess.run(
            self.command(options), cwd=self.path, capture_output=True, text=True, timeout=120
        )
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        if status == 0:
            self.assertEqual(done.stderr, "")
            return done.stdout
        self.assertTrue(done.stderr.startswith("fashion_mnist: error: "), done.stderr)
        self.assertEqual(done.stderr.endswith("See fashion_mnist --help.\n"), status == 2)
        return done.stderr

    def reported(self, **options):
        """Returns the events of a successful run."""
        self.run_program(report="report.jsonl", **options)
        return self.read_report()

    def read_report(self):
        lines = (self.path / "report.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def states(self, output="output"):
        return sorted((self.path / output / "states").glob("state-*"))

    def all_bytes(self):
        return {name: (self.path / name).read_bytes() for name in self.files()}

    def files(self):
        return sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file())


def of_kind(events, kind):
    return [event for event in events if event["event"] == kind]


def losses(events):
    return [event["loss"] for event in of_kind(events, "update")]


class SuccessTest(ProgramTest):
    def test_prints_the_checkpoint_and_the_accuracy(self):
        lines = self.run_program(model="cnn", epochs=3).splitlines()
        self.assertEqual(lines[0], "checkpoint: output/fashion_mnist.pt")
        self.assertRegex(lines[1], r"^test loss: \d\.\d{4}$")
        self.assertRegex(lines[2], r"^test accuracy: [01]\.\d{4}$")
        self.assertGreater(float(lines[2].split()[-1]), 0.5)
        self.assertEqual(self.files(), ["output/fashion_mnist.pt"])

    def test_shows_plain_progress(self):
        done = subprocess.run(
            self.command({"progress": "automatic"}), cwd=self.path, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Starting epoch 2", done.stdout)
        self.assertIn("eval_accuracy: ", done.stdout)
        self.assertNotIn("\r", done.stdout + done.stderr)

    def test_help_lists_groups_and_defaults(self):
        done = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0)
        for text in ("Training:", "--train.num_epochs N (=5)", "adamw:lr=0.003", "--report-updates",
                     "--model.name VALUE (=cnn)", "Also --epochs."):
            self.assertIn(text, done.stdout)

    def test_reports_epochs_and_the_end(self):
        events = self.reported(checkpoint="my.pt", seed=3)
        self.assertEqual([event["event"] for event in events], ["epoch", "epoch", "end"])
        for number, epoch in enumerate(events[:2], start=1):
            self.assertEqual(
                list(epoch),
                "event epoch updates train_loss_epoch eval_loss_epoch eval_accuracy lr "
                "samples_per_second".split(),
            )
            self.assertEqual((epoch["epoch"], epoch["updates"]), (number, 5 * number))
            self.assertGreater(epoch["samples_per_second"], 0)
            self.assertEqual(len(epoch["lr"]), 1)
        self.assertLess(events[1]["train_loss_epoch"], events[0]["train_loss_epoch"])
        self.assertEqual(list(events[2]), ["event", "reason", "test_accuracy"])
        self.assertEqual(events[2]["reason"], "finished")
        self.assertEqual(events[2]["test_accuracy"], events[1]["eval_accuracy"])
        self.assertEqual(self.files(), ["output/my.pt", "report.jsonl"])

    def test_reports_updates(self):
        events = self.reported(report_updates=True, scheduler="none", lr=0.01, limit_train=600,
                               gradient_clip_norm="inf")
        updates = of_kind(events, "update")
        self.assertEqual([update["update"] for update in updates], list(range(1, 11)))
        self.assertEqual(events[5]["event"], "epoch")
        for update in updates:
            self.assertEqual(list(update), ["event", "update", "loss", "lr", "grad_norm"])
            self.assertEqual(update["lr"], [0.01])
            self.assertGreater(update["grad_norm"], 0)
            # With one batch per update, the loss is that of the batch, a 32-bit number.
            self.assertEqual(struct.unpack("f", struct.pack("f", update["loss"]))[0], update["loss"])
        weights = [128, 128, 128, 128, 88]
        mean = sum(w * loss for w, loss in zip(weights, losses(events))) / sum(weights)
        self.assertAlmostEqual(mean, events[5]["train_loss_epoch"], places=12)

    def test_warms_up_along_the_cosine(self):
        events = self.reported(report_updates=True, lr=0.01,
                               warmup_updates="0.4 * num_updates_per_epoch")
        rates = [update["lr"][0] for update in of_kind(events, "update")]
        self.assertEqual(rates[0], 1e-6)
        self.assertEqual(max(rates), rates[2])
        self.assertAlmostEqual(rates[2], 0.01)
        self.assertEqual(rates[2:], sorted(rates[2:], reverse=True))
        self.assertEqual([epoch["lr"][0] for epoch in of_kind(events, "epoch")], rates[4::5])

    def test_measures_the_norm_before_clipping(self):
        free = self.reported(report_updates=True, max_updates=1, gradient_clip_norm="inf")[0]
        clipped = self.reported(report_updates=True, max_updates=1, gradient_clip_norm=0.01)[0]
        self.assertEqual(clipped["grad_norm"], free["grad_norm"])
        by_value = self.reported(report_updates=True, max_updates=1, gradient_clip_value=1e-4,
                                 gradient_clip_norm="inf")[0]
        self.assertLess(by_value["grad_norm"], free["grad_norm"])
        self.assertIsNone(self.reported(report_updates=True, max_updates=1)[0]["grad_norm"])

    def test_max_steps_ends_in_mid_epoch(self):
        events = self.reported(max_updates=7)
        self.assertEqual([epoch["updates"] for epoch in of_kind(events, "epoch")], [5, 7])
        self.assertEqual(events[-1]["reason"], "max_steps")
        self.assertIsNotNone(events[-1]["test_accuracy"])

    def test_accumulation_reduces_the_number_of_updates(self):
        events = self.reported(gradient_accumulation_steps=3, report_updates=True)
        self.assertEqual([epoch["updates"] for epoch in of_kind(events, "epoch")], [2, 4])
        self.assertEqual(len(losses(events)), 4)
        # The two updates have 384 and 256 samples.
        mean = (384 * losses(events)[0] + 256 * losses(events)[1]) / 640
        self.assertAlmostEqual(mean, of_kind(events, "epoch")[0]["train_loss_epoch"], places=12)

    def test_the_same_seed_produces_the_same_run(self):
        runs = [self.reported(report_updates=True, model="cnn", seed=seed) for seed in (1, 1, 2)]
        for events in runs:
            for epoch in of_kind(events, "epoch"):
                del epoch["samples_per_second"]
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(losses(runs[0]), losses(runs[2]))

    def test_workers_do_not_change_the_run(self):
        runs = [self.reported(report_updates=True, workers=workers) for workers in (0, 2)]
        self.assertEqual(losses(runs[0]), losses(runs[1]))

    def test_half_precision_stays_close_to_the_losses_of_float(self):
        exact = losses(self.reported(report_updates=True))
        for precision, bound in ("bf16", 0.1), ("fp16", 0.02):
            found = losses(self.reported(report_updates=True, precision=precision))
            self.assertNotEqual(found, exact)
            for a, b in zip(found, exact, strict=True):
                self.assertAlmostEqual(a, b, delta=bound)

    def test_graph_mode_does_not_change_the_losses(self):
        # Uses the CPU; all batches are full.
        runs = [self.reported(report_updates=True, limit_train=64, batch_size=16, execution_mode=mode)
                for mode in ("eager", "graph")]
        self.assertEqual(len(losses(runs[0])), 8)
        self.assertEqual(losses(runs[0]), losses(runs[1]))

    def test_augmentation_changes_the_images_independently_of_the_workers(self):
        plain = losses(self.reported(report_updates=True))
        augmented = [losses(self.reported(report_updates=True, augment="true", workers=workers))
                     for workers in (0, 2)]
        self.assertEqual(augmented[0], augmented[1])
        self.assertNotEqual(augmented[0], plain)

    def test_channels_last_and_deterministic_runs_train(self):
        events = self.reported(report_updates=True, model="cnn", channels_last="true",
                               deterministic="true")
        self.assertLess(losses(events)[-1], losses(events)[0])

    def test_starts_from_given_weights(self):
        shared = {"report_updates": True, "train_dataloader__shuffle": "false", "model": "cnn"}
        first = self.reported(seed=1, save_init="init.pt", **shared)
        same = self.reported(seed=2, init_from="init.pt", save_init="copy.pt", **shared)
        other = self.reported(seed=2, **shared)
        self.assertEqual(losses(first), losses(same))
        self.assertNotEqual(losses(first), losses(other))
        init, copy = (self.path / name for name in ("init.pt", "copy.pt"))
        self.assertEqual(init.read_bytes(), copy.read_bytes())

    def test_starts_from_a_checkpoint(self):
        end = self.reported(checkpoint="trained.pt")[-1]
        again = self.reported(init_from="output/trained.pt", lr=0, weight_decay=0, scheduler="none")
        self.assertEqual(again[-1]["test_accuracy"], end["test_accuracy"])

    def test_every_optimizer_and_model_trains(self):
        for options in (
            {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05},
            {"optimizer": "adam", "weight_decay": 0.1},
            {"model": "resnet18", "limit_train": 32, "limit_eval": 8, "batch_size": 16},
        ):
            with self.subTest(**options):
                events = self.reported(**options)
                self.assertEqual(events[-1]["reason"], "finished")
                self.assertGreater(
                    events[0]["train_loss_epoch"], events[1]["train_loss_epoch"], options
                )

    def test_reads_a_config_file(self):
        (self.path / "run.conf").write_text(
            "# a short run\n\nepochs = 1\nbatch-size=64  # smaller\ntrain_dataloader.shuffle=false\n"
            "model=cnn\n"
        )
        events = self.reported(config="run.conf", epochs=None, model=None)
        self.assertEqual([epoch["updates"] for epoch in of_kind(events, "epoch")], [10])
        events = self.reported(config="run.conf", epochs=3, model=None)
        self.assertEqual(len(of_kind(events, "epoch")), 3)

    @unittest.skipUnless(DEBIAN_DATA.is_dir(), "dataset-fashion-mnist is not installed")
    def test_finds_debians_data(self):
        end = self.reported(data=None, limit_train=6400, limit_eval=1000)[-1]
        self.assertGreater(end["test_accuracy"], 0.7)


class SignalTest(ProgramTest):
    def start(self, **options):
        """Starts a long run and waits for the first line of its report."""
        report = self.path / "report.jsonl"
        report.unlink(missing_ok=True)
        process = subprocess.Popen(
            self.command({"epochs": 100000, "report": "report.jsonl", **options}),
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while not (report.exists() and report.stat().st_size) and process.poll() is None:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        return process

    def test_a_signal_ends_the_run_cleanly_even_if_it_is_repeated(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            with self.subTest(signal=number):
                process = self.start()
                # A launcher and a service manager can both send and forward the signal.
                for _ in range(3):
                    process.send_signal(number)
                output, _ = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 128 + number, output)
                self.assertIn("checkpoint: output/fashion_mnist.pt", output)
                self.assertRegex(output, rf"stopped by signal {int(number)} \(.+\) after update \d+")
                self.assertEqual(
                    self.read_report()[-1],
                    {"event": "end", "reason": "stop_request", "test_accuracy": None},
                )
                self.assertEqual(self.files(), ["output/fashion_mnist.pt", "report.jsonl"])
        self.run_program(init_from="output/fashion_mnist.pt", max_updates=1)

    def test_a_signal_saves_even_if_the_reader_of_the_output_has_ended(self):
        # Simulates Ctrl-C on `fashion_mnist | tee log`.
        process = self.start(progress="plain", save_every_epochs=1)
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        self.assertEqual(process.wait(timeout=60), 128 + signal.SIGINT)
        process.stderr.close()
        self.assertTrue(self.states())
        self.assertIn("output/fashion_mnist.pt", self.files())


class OutputTest(ProgramTest):
    def test_standard_output_that_cannot_be_written_is_an_error_after_the_run(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run(self.command({"progress": "plain"}), cwd=self.path, stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("cannot write to standard output", done.stderr)
        self.assertEqual(self.files(), ["output/fashion_mnist.pt"])

    def test_a_run_continues_if_standard_error_cannot_be_written(self):
        for progress in ("plain", "bar"):
            with self.subTest(progress=progress), open("/dev/full", "w") as full:
                done = subprocess.run(self.command({"progress": progress}), cwd=self.path, stderr=full,
                                      stdout=subprocess.PIPE, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertIn("test accuracy: ", done.stdout)

    def test_a_report_that_cannot_be_written_is_an_error_after_the_run(self):
        (self.path / "report.jsonl").symlink_to("/dev/full")
        done = subprocess.run(
            self.command({"report": "report.jsonl", "progress": "plain", "save_every_epochs": 1}),
            cwd=self.path, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("ERROR: cannot write to the report", done.stdout)
        self.assertIn("test accuracy: ", done.stdout)
        self.assertIn("the report is not complete", done.stderr)
        self.assertEqual(len(self.states()), 2)

    def test_a_resumed_report_equals_that_of_the_uninterrupted_run(self):
        options = dict(report_updates=True, scheduler="none")
        whole = self.reported(**options, max_updates=7)
        options["report"] = "report.jsonl"
        self.run_program(**options, max_updates=4, save_every_updates=3, keep_last=9)
        with open(self.path / "report.jsonl", "a") as report:
            report.write('{"event":"upda')  # the last output of a killed run
        self.run_program(**options, max_updates=7, resume_from=self.states()[0])  # from update 3
        resumed = self.read_report()
        for events in whole, resumed:
            for epoch in of_kind(events, "epoch"):
                del epoch["samples_per_second"]
        self.assertEqual(resumed, whole)
        with open(self.path / "report.jsonl", "a") as report:
            report.write('{"event":"upda')
        self.run_program(**options, max_updates=1, resume_from="latest", output_dir="empty")
        self.assertEqual(self.read_report()[len(whole)]["update"], 1)

    def test_a_second_run_in_the_same_folder_is_refused(self):
        import fcntl
        options = dict(save_every_epochs=1, report="report.jsonl", trackers=trackers())
        self.run_program(**options)
        before = self.all_bytes()
        with open(self.path / "output" / "states" / ".lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for resume in None, "latest":
                error = self.run_program(status=1, epochs=1000000, resume_from=resume, **options)
                self.assertIn("is in use by another run", error)
                self.assertEqual(self.all_bytes(), before)
        with open(self.path / "report.jsonl", "a") as report:
            fcntl.flock(report, fcntl.LOCK_EX)
            error = self.run_program(status=1, epochs=1000000, report="report.jsonl")
            self.assertIn('"report.jsonl" is being written by another run', error)
            self.assertEqual(self.all_bytes(), before)
        self.run_program(**options)


class KilledRunTest(ProgramTest):
    def test_a_killed_and_resumed_run_ends_with_the_same_bytes(self):
        self.run_program(**SETTINGS)
        expected = self.final_bytes()
        draw = random.Random(KILL_SEED)
        kills = 0
        for round in range(KILL_ROUNDS):
            output = f"out{round}"
            while True:
                command = self.command({**SETTINGS, "save_every_updates": 1, "resume_from": "latest",
                                        "asynchronous": "true" if round % 2 else None,
                                        "output_dir": output})
                process = subprocess.Popen(command, cwd=self.path, stdout=subprocess.PIPE,
                                           stderr=subprocess.STDOUT, text=True)
                # Waits for the start of the program, so that a series of kills makes progress.
                before = set(self.states(output))
                deadline = time.monotonic() + 60
                while process.poll() is None and time.monotonic() < deadline:
                    if set(self.states(output)) - before:
                        break
                    time.sleep(0.002)
                try:
                    process.wait(timeout=draw.random() * 0.3)
                except subprocess.TimeoutExpired:
                    process.kill()
                    kills += 1
                printed, _ = process.communicate()
                if process.returncode == 0:
                    break
                self.assertEqual(process.returncode, -signal.SIGKILL, printed)
            self.assertEqual(self.final_bytes(output), expected)
            left = [file for file in (self.path / output / "states").rglob("*") if file.is_file()]
            self.assertLessEqual(len(left), 4, left)  # including the lock
        print(f"({kills} kills)", file=sys.stderr, end=" ")
        self.assertGreater(kills, 0)


class ResumeTest(ProgramTest):
    def test_sigterm_saves_a_state_from_which_the_run_resumes(self):
        self.run_program(**SETTINGS)
        expected = self.final_bytes()
        command = self.command({**SETTINGS, "resume_from": "latest", "progress": "plain",
                                "epochs": 3})
        process = subprocess.Popen(command, cwd=self.path, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if "Starting epoch 1" in line:
                break
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, printed)
        states = self.states()
        self.assertEqual(len(states), 1, states)
        again = self.run_program(**SETTINGS, resume_from="latest")
        self.assertIn(f"Resumed training state from output/states/{states[0].name}", again)
        self.assertEqual(self.final_bytes(), expected)

    def test_a_resumed_run_can_be_longer_if_that_is_allowed(self):
        self.run_program(epochs=1, save_every_epochs=1)
        longer = {"epochs": 2, "resume_from": "latest"}
        self.assertIn("allow_changed_schedule_length", self.run_program(status=1, **longer))
        printed = self.run_program(**longer, allow_changed_schedule_length="true")
        self.assertIn("Resumed training state from output/states/", printed)

    def test_latest_reports_that_there_is_nothing_to_resume(self):
        printed = self.run_program(resume_from="latest")
        self.assertIn("Nothing to resume in output/states; starting from the beginning", printed)

    def test_a_damaged_newest_state_is_reported_and_the_previous_one_is_used(self):
        self.run_program(**SETTINGS, save_every_epochs=1, keep_last=3)
        expected = self.final_bytes()
        states = self.states()
        self.assertEqual([state.name for state in states],
                         ["state-00000001", "state-00000002", "state-00000003"])
        newest = states[-1] / "training_state.pt"
        damaged = bytearray(newest.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        newest.write_bytes(damaged)
        printed = self.run_program(**SETTINGS, resume_from="latest")
        self.assertIn("WARNING: a damaged training state is skipped", printed)
        self.assertIn("has the checksum", printed)
        self.assertIn("Resumed training state from output/states/state-00000002", printed)
        self.assertEqual(self.final_bytes(), expected)

    def test_a_full_disk_does_not_end_the_run(self):
        limited = ["bash", "-c", "ulimit -f 100; exec \"$@\"", "-", *self.command(
            {**SETTINGS, "model": "mlp", "save_every_updates": 2, "checkpoint": None})]
        done = subprocess.run(limited, cwd=self.path, capture_output=True, text=True, timeout=120)
        self.assertIn("ERROR: the training state was not saved", done.stdout)
        self.assertIn("File too large", done.stdout)
        self.assertIn("The run continues", done.stdout)
        # The final checkpoint does not fit either, which makes the program fail.
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write", done.stderr)

    def test_a_checkpoint_starts_another_run(self):
        self.run_program(max_updates=3, checkpoint="first.pt")
        rates = [event["lr"][0] for event in of_kind(
            self.reported(load_checkpoint="output/first.pt", lr=0.01, scheduler="none", max_updates=1,
                          report_updates=True), "update")]
        self.assertEqual(rates, [0.01])
        self.assertIn("use only one of them",
                      self.run_program(status=2, load_checkpoint="first.pt", init_from="x").lower())
        first = "output/first.pt"
        self.run_program(init_from=first, init_key="model_state_dict", max_updates=1)
        self.assertIn('no "net"', self.run_program(status=1, init_from=first, init_key="net"))


class WrongUsageTest(ProgramTest):
    def test_wrong_usage_exits_with_status_2(self):
        for options, message in (
            ({"epoch": 3}, "--epoch is not an option of fashion_mnist. Did you mean --epochs?"),
            ({"lr": True}, "--lr needs a value"),
            ({"batch_size": 0}, "per_device_batch_size is 0; it must be at least 1"),
            ({"limit_train": 0}, "the limit of train samples is 0; it must be at least 1"),
            ({"model": "vgg"}, "there is no model 'vgg'"),
            ({"shuffle": "false"}, "may be --train_dataloader.shuffle, --eval_dataloader.shuffle"),
            ({"lr": "nan"}, "--optimizer: Invalid learning rate: nan"),
            ({"momentum": 0.9}, "momentum"),
            ({"distributed__timeout": 30}, "it must be a number with its unit: 30s"),
            ({"trackers": "csv:path=output/fashion_mnist.pt"}, "is the path of two outputs"),
            ({"keep_last": 3}, "no training states are saved"),
            ({"asynchronous": "true"}, "no training states are saved"),
            ({"zero_stage": 3}, "zero_stage is 3"),
            ({"local_sgd_interval": 8, "compression": "fp16"}, "local_sgd_interval"),
        ):
            with self.subTest(**options):
                self.assertIn(message, self.run_program(status=2, **options))
        self.assertEqual(self.files(), [])

    def test_an_error_names_the_invalid_config_line(self):
        for text, message in (
            ("lr=1e-3\n\nepochs\n", "run.conf:3: 'epochs' is not name=value"),
            ("epoch=3\n", "run.conf:1: 'epoch' is not an option of fashion_mnist. Did you mean"),
        ):
            with self.subTest(text=text):
                (self.path / "run.conf").write_text(text)
                self.assertIn(message, self.run_program(status=2, config="run.conf"))
        self.assertIn("cannot read the config file", self.run_program(status=2, config="none"))


class SchedulerTest(ProgramTest):
    def test_each_update_uses_the_schedules_value(self):
        events = self.reported(
            report_updates=True, optimizer="sgd", lr=0.5,
            scheduler="step:gamma=0.5,step_size=num_updates_per_epoch - 2",
        )
        rates = [event["lr"][0] for event in of_kind(events, "update")]
        self.assertEqual(rates, [0.5] * 3 + [0.25] * 3 + [0.125] * 3 + [0.0625])

    def test_one_cycle_ends_with_the_run(self):
        events = self.reported(
            report_updates=True, scheduler="one-cycle", lr=0.01, gradient_accumulation_steps=3,
            div_factor=10, final_div_factor=10,
        )
        rates = [event["lr"][0] for event in of_kind(events, "update")]
        self.assertEqual(len(rates), 4)
        self.assertAlmostEqual(rates[0], 1e-3)
        self.assertAlmostEqual(rates[-1], 1e-4)

    def test_a_plateau_lowers_the_rate(self):
        events = self.reported(
            scheduler="plateau:monitor=eval_accuracy,patience=0,factor=0.5", lr=0.01, epochs=4,
        )
        # In the default mode (min), a higher accuracy is worse.
        self.assertLess(of_kind(events, "epoch")[-1]["lr"][0], 0.01)


class ErrorTest(ProgramTest):
    def broken_data(self, name, content):
        """Copies the data with other contents for one file; None omits the file."""
        folder = self.path / "data"
        folder.mkdir(exist_ok=True)
        for file in self.data.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        return folder

    def test_invalid_data_is_named_and_nothing_is_written(self):
        images, labels = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
        packed = "train-images-idx3-ubyte.gz"
        good = (self.data / images).read_bytes()
        corrupt = bytearray((self.data / packed).read_bytes())
        corrupt[len(corrupt) // 2] ^= 0xFF
        for name, content, message in (
            (labels, None, f"has neither {labels} nor {labels}.gz"),
            (images, good[:-100], "is truncated: it has "),
            (images, good + b"\0", "is longer than the "),
            (images, b"\x89PNG" + good[4:], "begins with 0x89504e47; an idx file of"),
            (labels, idx([3], b"\0\1\2"), f"has {NUM_TEST} images, but "),
            (labels, idx([NUM_TEST], bytes([200]) * NUM_TEST), "has the label 200 for image 0"),
            (packed, bytes(corrupt), f'{packed}" '),
            (packed, bytes(corrupt[:2000]), f'{packed}" is truncated'),
        ):
            with self.subTest(name=name, message=message):
                data = self.broken_data(name, content)
                error = self.run_program(status=1, data=data, report="r", save_init="i")
                self.assertIn(message, error)
                self.assertEqual([file for file in self.files() if "data/" not in file], [])
        self.assertIn("does not exist", self.run_program(status=1, data="nowhere"))
        self.assertIn("the first 701 samples", self.run_program(status=1, limit_train=701))

    def test_a_missing_device_is_named(self):
        self.assertIn("cuda:99", self.run_program(status=2, device="cuda:99"))
        self.assertIn("tpu", self.run_program(status=2, device="tpu"))
        self.assertEqual(self.files(), [])

    def test_weights_of_another_model_are_named(self):
        self.run_program(max_updates=1, save_init="mlp.pt")
        error = self.run_program(status=1, model="cnn", init_from="mlp.pt", checkpoint="new.pt")
        self.assertIn('mlp.pt" do not fit', error)
        for name in ("1.running_mean", "2.weight", "0.weight"):  # missing, unexpected, with another shape
            self.assertIn(name, error)
        self.assertIn("none.pt", self.run_program(status=1, init_from="none.pt"))
        (self.path / "text.pt").write_text("no weights")
        self.assertIn("text.pt", self.run_program(status=1, init_from="text.pt"))
        self.assertNotIn("new.pt", self.files())

    def test_an_unwritable_output_is_reported_before_training(self):
        (self.path / "file").write_text("a file, not a folder")
        for option in ("report", "output_dir"):
            with self.subTest(option=option):
                # If the run trained for that many epochs, it would time out.
                options = {option: "file/x", "epochs": 1000000}
                self.assertIn("file/x", self.run_program(status=1, **options))
        self.assertIn("is not a regular file", self.run_program(status=1, report=self.path, epochs=1000000))
        self.assertEqual(self.files(), ["file"])

    def test_a_nan_loss_is_an_error(self):
        error = self.run_program(status=1, lr=1e30, scheduler="none", report="report.jsonl")
        self.assertIn("the loss became NaN or infinite after ", error)
        self.assertEqual(
            self.read_report()[-1], {"event": "end", "reason": "nan", "test_accuracy": None}
        )
        self.assertEqual(self.files(), ["report.jsonl"])

    def test_a_warm_up_longer_than_the_run_is_an_error(self):
        self.assertIn("warms up for", self.run_program(status=2, warmup_updates=10))

    def test_scheduler_options_are_checked(self):
        for options, message in (
            ("stepp", 'there is no scheduler "stepp"; there are step, multi-step,'),
            ("step:stepsize=3", 'has no option "stepsize"'),
            ("step:step_size", "is not KEY=VALUE"),
            ("step:step_size=3.5", "a count must be an integer"),
            ("step:gamma=-1", "gamma is -1"),
        ):
            with self.subTest(options):
                self.assertIn(message, self.run_program(status=2, scheduler=options))


class WatchingTest(ProgramTest):
    """Tests of --callbacks and the trackers."""

    def rows(self, name="run.csv"):
        with open(self.path / name, newline="") as table:
            return list(csv.DictReader(table))

    def test_callbacks_are_selected_by_name(self):
        output = self.run_program(
            metrics=METRICS,
            trackers="csv:path=run.csv",
            freeze_to=0,
            track_run__every_n_updates=2,
            callbacks=[
                "learning-rate-monitor:fields=lr+weight_decay",
                "gradient-norm",
                "phase-timer:warmup_micro_steps=1",
                "memory-monitor",
                "performance-monitor",
                "model-summary",
                "model-ema:decay=0.9,path=ema.pt",
                "step-based-evaluation:every_n_updates=4",
                "limit-eval-steps:num_eval_steps=1",
                "early-stopping:patience=9",
                "save-best-model:path=best.pt,save_top_k=2",
                "save-predictions:path=predictions.pt",
                "time-limit:minutes=30",
            ],
        )
        self.assertIn("Running evaluation after 4 updates", output)
        names = {row["name"] for row in self.rows()}
        for name in (
            "train_loss train_loss_epoch eval_loss_epoch eval_accuracy eval_f1 eval_kappa lr "
            "weight_decay train_gradient_norm train_forward_time resident_mib "
            "train_samples_per_second ema_model_eval_accuracy intermediate_eval_loss"
        ).split():
            self.assertIn(name, names)
        for name in ("ema.pt", "best-epoch1.pt", "predictions.pt"):
            self.assertIn(name, self.files())

    def test_all_trackers_record_one_run(self):
        self.run_program(trackers=trackers("out/"),
                         track_run__every_n_updates=1, histograms_every_n_epochs=1)
        files = self.files()
        # One file for the training, and one for the test after it.
        events = [name for name in files if "events.out.tfevents" in name]
        self.assertEqual({os.path.dirname(name) for name in events}, {"out/tb/fashion_mnist-1"})
        self.assertTrue([name for name in files if name.startswith("out/ml/") and "metrics/" in name])
        lines = (self.path / "out/run.jsonl").read_text().splitlines()
        kinds = [json.loads(line)["type"] for line in lines]
        self.assertEqual(kinds[0], "run")
        self.assertIn("histogram", kinds)
        self.assertIn("<svg", (self.path / "out/run.html").read_text())
        losses = [row for row in self.rows("out/run.csv") if row["name"] == "train_loss"]
        self.assertEqual([int(row["update"]) for row in losses], list(range(1, 11)))

    def test_a_resumed_run_continues_the_same_table(self):
        options = dict(trackers="csv:path=run.csv", track_run__every_n_updates=1, save_every_updates=3,
                       scheduler="none")
        self.run_program(max_updates=7, keep_last=9, **options)
        states = self.states()
        self.run_program(resume_from=states[1], **options)  # from update 6; update 7 is repeated
        losses = [int(row["update"]) for row in self.rows() if row["name"] == "train_loss"]
        self.assertEqual(losses, list(range(1, 11)))
        epochs = [int(row["epoch"]) for row in self.rows() if row["name"] == "train_loss_epoch"]
        self.assertEqual(epochs, [1, 2])

    def test_low_overhead_neither_prints_nor_monitors(self):
        output = self.run_program(default_callbacks="false")
        self.assertNotIn("Starting", output)
        self.assertNotIn("epoch", output)
        self.assertIn("test accuracy", output)

    def test_fast_dev_run_writes_no_state_and_ends_early(self):
        output = self.run_program(callbacks="fast-dev-run", save_every_updates=1)
        self.assertEqual(self.files(), [])
        self.assertIn("test accuracy", output)

    def test_latest_finds_the_states_of_a_named_callback(self):
        options = dict(callbacks="save-training-state:every_n_epochs=1", scheduler="none")
        self.run_program(epochs=1, **options)
        output = self.run_program(resume_from="latest", epochs=2, **options)
        self.assertIn("Resumed training state from ", output)
        self.assertEqual([path.name for path in self.path.iterdir()], ["output"])

    def test_lists_the_callbacks_with_their_options(self):
        output = self.run_program(list="callbacks")
        self.assertIn("\nmodel-ema\n    decay=0.9999\n    warmup=true\n", output)

    def test_invalid_callbacks_are_wrong_usage(self):
        for callbacks, message in (
            ("no-such", 'there is no callback "no-such"; there are early-stopping,'),
            ("timer:hours=1", 'the callback timer has no option "hours"; it has minutes.'),
            ("timer", "the callback timer's minutes is missing"),
            ("timer:minutes=0", "the time-limit's minutes is 0; it must be above 0"),
            ("save-predictions", "the callback save-predictions's path is missing"),
            (["memory-monitor", "memory-monitor"], "there already is a callback named linkboy::MemoryMonitor"),
            ("early-stopping:patience", "is not KEY=VALUE"),
            ("early-stopping:patience=0", "patience is 0"),
        ):
            with self.subTest(callbacks=callbacks):
                self.assertIn(message, self.run_program(status=2, callbacks=callbacks))
        self.assertEqual(self.files(), [])

    def test_an_error_for_an_unknown_metric_lists_the_recorded_ones(self):
        error = self.run_program(status=1, callbacks="early-stopping:monitor=eval_acc")
        self.assertIn('"eval_acc"', error)
        self.assertIn("eval_accuracy", error)

    def test_an_unwritable_path_is_reported_before_training(self):
        for tracker in trackers("/proc/no/such/"):
            with self.subTest(tracker):
                error = self.run_program(status=1, report="report.jsonl", trackers=tracker)
                self.assertIn("/proc/no", error)
                self.assertEqual((self.path / "report.jsonl").read_text(), "")

    def test_histograms_without_a_tracker_are_wrong_usage(self):
        self.assertIn("there is no tracker", self.run_program(status=2, histograms_every_n_epochs=1))


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest_main.main()
