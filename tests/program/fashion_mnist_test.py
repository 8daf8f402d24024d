"""Runs examples/programs/fashion_mnist like a user: options, files, exit statuses, signals.

    python3 fashion_mnist_test.py PATH/TO/fashion_mnist [unittest arguments]

Needs only Python's standard library; the images are artificial.
"""

import csv
import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import programs  # noqa: E402
import unittest_main  # noqa: E402
from fashion_mnist_data import NUM_TEST, idx, write_data  # noqa: E402

PROGRAM = None
# Number of runs that are killed at random times until they complete; LINKBOY_KILL_ROUNDS changes it.
KILL_ROUNDS = int(os.environ.get("LINKBOY_KILL_ROUNDS", "2"))
KILL_SEED = int(os.environ.get("LINKBOY_KILL_SEED", "0"))
DEBIAN_DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")

# A run that is stopped and resumed.
SETTINGS = {"model": "cnn", "limit_train": 300, "limit_eval": 50, "epochs": 3,
            "gradient_accumulation_steps": 2, "batch_size": 20, "workers": 2,
            "checkpoint": "final.pt", "eval_batch_size": 50}
# So many epochs that a run that trains would time out.
ENDLESS = 1000000
METRICS = ["accuracy:num_classes=10", "f-beta:num_classes=10,as=f1", "cohen-kappa:num_classes=10,as=kappa"]


def trackers(folder=""):
    """Returns the names of all trackers, for --trackers."""
    return [tracker.replace("=", "=" + folder) for tracker in (
        "tensorboard:directory=tb", "csv:path=run.csv", "json-lines:path=run.jsonl",
        "html-report:path=run.html")]


class ProgramTest(programs.ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.data = programs.temporary_folder(cls.addClassCleanup)
        write_data(cls.data)

    def command(self, **options):
        """Returns the command of a tiny run."""
        return [PROGRAM, *programs.arguments_of({
            "data": self.data, "model": "mlp", "limit_train": 640, "limit_eval": 200, "epochs": 2, "device": "cpu",
            "num_threads": 1, "progress": "none", **options})]

    def run_program(self, status=0, **options):
        """Runs in the test's folder; returns the output, or the error if it failed."""
        done = programs.run(self.command(**options), cwd=self.path)
        self.assertEqual(done.status, status, done)
        if status == 0:
            self.assertEqual(done.error, "")
            return done.output
        self.assertTrue(done.error.startswith("fashion_mnist: error: "), done.error)
        self.assertEqual(done.error.endswith("See fashion_mnist --help.\n"), status == 2)
        return done.error

    def expect_errors(self, status, *cases):
        """Runs with the options of each case, and expects an error that contains its message."""
        for options, message in cases:
            with self.subTest(**options):
                self.assertIn(message, self.run_program(status=status, **options))

    def reported(self, **options):
        """Returns the events of a successful run."""
        self.run_program(report="report.jsonl", **options)
        return self.read_report()

    def read_report(self):
        return read_json_lines(self.path / "report.jsonl")

    def updates(self, **options):
        """Returns the events of the updates of a successful run."""
        return of_kind(self.reported(report_updates=True, **options), "update")

    def losses(self, **options):
        return [update["loss"] for update in self.updates(**options)]

    def rates(self, **options):
        return [update["lr"][0] for update in self.updates(**options)]

    def states(self, output="output"):
        return sorted((self.path / output / "states").glob("state-*"))

    def final_bytes(self, output="output"):
        return (self.path / output / "final.pt").read_bytes()

    def all_bytes(self):
        return {name: (self.path / name).read_bytes() for name in self.files()}

    def files(self):
        return sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file())


def read_json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def flipped(content):
    """Returns the content with a damaged byte in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1:]


def of_kind(events, kind):
    return [event for event in events if event["event"] == kind]


def without_speed(events):
    return [{key: value for key, value in event.items() if key != "samples_per_second"} for event in events]


class SuccessTest(ProgramTest):
    def test_prints_the_checkpoint_and_the_accuracy(self):
        lines = self.run_program(model="cnn", epochs=3).splitlines()
        self.assertEqual(lines[0], "checkpoint: output/fashion_mnist.pt")
        self.assertRegex(lines[1], r"^test loss: \d\.\d{4}$")
        self.assertRegex(lines[2], r"^test accuracy: [01]\.\d{4}$")
        self.assertGreater(float(lines[2].split()[-1]), 0.5)
        self.assertEqual(self.files(), ["output/fashion_mnist.pt"])

    def test_help_lists_groups_and_defaults(self):
        done = programs.run([PROGRAM, "--help"])
        self.assertEqual(done.status, 0)
        for text in ("Training:", "--train.num_epochs N (=5)", "adamw:lr=0.003", "--report-updates",
                     "--model.name VALUE (=cnn)", "Also --epochs."):
            self.assertIn(text, done.output)

    def test_reports_epochs_and_the_end(self):
        first, second, end = self.reported(checkpoint="my.pt", seed=3)
        for number, epoch in enumerate((first, second), start=1):
            self.assertEqual(
                " ".join(epoch), "event epoch updates train_loss_epoch eval_loss_epoch eval_accuracy lr samples_per_second")
            self.assertEqual((epoch["event"], epoch["epoch"], epoch["updates"]), ("epoch", number, 5 * number))
            self.assertGreater(epoch["samples_per_second"], 0)
            self.assertEqual(len(epoch["lr"]), 1)
        self.assertLess(second["train_loss_epoch"], first["train_loss_epoch"])
        self.assertEqual(end, {"event": "end", "reason": "finished", "test_accuracy": second["eval_accuracy"]})
        self.assertEqual(list(end), ["event", "reason", "test_accuracy"])
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
        mean = sum(weight * update["loss"] for weight, update in zip(weights, updates)) / sum(weights)
        self.assertAlmostEqual(mean, events[5]["train_loss_epoch"], places=12)

    def test_warms_up_along_the_cosine(self):
        rates = self.rates(lr=0.01, warmup_updates="0.4 * num_updates_per_epoch")
        self.assertEqual(rates[0], 1e-6)
        self.assertEqual(max(rates), rates[2])
        self.assertAlmostEqual(rates[2], 0.01)
        self.assertEqual(rates[2:], sorted(rates[2:], reverse=True))
        self.assertEqual([epoch["lr"][0] for epoch in of_kind(self.read_report(), "epoch")], rates[4::5])

    def test_measures_the_norm_before_clipping(self):
        def norm(**clipping):
            return self.updates(max_updates=1, **clipping)[0]["grad_norm"]
        free = norm(gradient_clip_norm="inf")
        self.assertEqual(norm(gradient_clip_norm=0.01), free)
        self.assertLess(norm(gradient_clip_value=1e-4, gradient_clip_norm="inf"), free)
        self.assertIsNone(norm())

    def test_max_num_updates_ends_in_mid_epoch(self):
        events = self.reported(max_updates=7)
        self.assertEqual([epoch["updates"] for epoch in of_kind(events, "epoch")], [5, 7])
        self.assertEqual(events[-1]["reason"], "max_num_updates")
        self.assertIsNotNone(events[-1]["test_accuracy"])

    def test_accumulation_reduces_the_number_of_updates(self):
        losses = self.losses(gradient_accumulation_steps=3)
        epochs = of_kind(self.read_report(), "epoch")
        self.assertEqual([epoch["updates"] for epoch in epochs], [2, 4])
        self.assertEqual(len(losses), 4)
        # The two updates have 384 and 256 samples.
        self.assertAlmostEqual((384 * losses[0] + 256 * losses[1]) / 640, epochs[0]["train_loss_epoch"], places=12)

    def test_half_precision_stays_close_to_the_losses_of_float(self):
        exact = self.losses()
        for precision, bound in ("bf16", 0.1), ("fp16", 0.02):
            found = self.losses(precision=precision)
            self.assertNotEqual(found, exact)
            for a, b in zip(found, exact, strict=True):
                self.assertAlmostEqual(a, b, delta=bound)

    def test_graph_mode_does_not_change_the_losses(self):
        # Uses the CPU; all batches are full.
        eager, graph = (self.losses(limit_train=64, batch_size=16, execution_mode=mode) for mode in ("eager", "graph"))
        self.assertEqual((len(eager), eager), (8, graph))

    def test_augmentation_changes_the_images_independently_of_the_workers(self):
        augmented = self.losses(augment="true", workers=0)
        self.assertEqual(augmented, self.losses(augment="true", workers=2))
        self.assertNotEqual(augmented, self.losses())

    def test_channels_last_and_deterministic_runs_train(self):
        losses = self.losses(model="cnn", channels_last="true", deterministic="true")
        self.assertLess(losses[-1], losses[0])

    def test_starts_from_given_weights(self):
        shared = {"train_dataloader__shuffle": "false", "model": "cnn"}
        first = self.losses(seed=1, save_init="init.pt", **shared)
        self.assertEqual(first, self.losses(seed=2, init_from="init.pt", save_init="copy.pt", **shared))
        self.assertNotEqual(first, self.losses(seed=2, **shared))
        self.assertEqual((self.path / "init.pt").read_bytes(), (self.path / "copy.pt").read_bytes())

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
                self.assertGreater(events[0]["train_loss_epoch"], events[1]["train_loss_epoch"], options)

    def test_reads_a_config_file(self):
        (self.path / "run.conf").write_text(
            "# a short run\n\nepochs = 1\nbatch-size=64  # smaller\ntrain_dataloader.shuffle=false\nmodel=cnn\n")
        events = self.reported(config="run.conf", epochs=None, model=None)
        self.assertEqual([epoch["updates"] for epoch in of_kind(events, "epoch")], [10])
        events = self.reported(config="run.conf", epochs=3, model=None)
        self.assertEqual(len(of_kind(events, "epoch")), 3)

    @unittest.skipUnless(DEBIAN_DATA.is_dir(), "dataset-fashion-mnist is not installed")
    def test_finds_debians_data(self):
        end = self.reported(data=None, limit_train=6400, limit_eval=1000)[-1]
        self.assertGreater(end["test_accuracy"], 0.7)


class SignalTest(ProgramTest):
    def start_run(self, popen=None, **options):
        """Starts a long run and waits for the first line of its report."""
        report = self.path / "report.jsonl"
        report.unlink(missing_ok=True)
        process = self.start(self.command(epochs=ENDLESS, report=report.name, **options), **(popen or {}))
        self.wait_until(lambda: report.exists() and report.stat().st_size, process)
        return process

    def test_a_signal_ends_the_run_cleanly_even_if_it_is_repeated(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            with self.subTest(signal=number):
                process = self.start_run()
                # A launcher and a service manager can both send and forward the signal.
                for _ in range(3):
                    process.send_signal(number)
                (ended,) = self.end(process)
                self.assertEqual(ended.status, 128 + number, ended)
                self.assertIn("checkpoint: output/fashion_mnist.pt", ended.output)
                self.assertRegex(ended.output, rf"stopped by signal {int(number)} \(.+\) after update \d+")
                self.assertEqual(self.read_report()[-1],
                                 {"event": "end", "reason": "stop_request", "test_accuracy": None})
                self.assertEqual(
                    self.files(), ["output/fashion_mnist.pt", "output/states/.lock",
                                   "output/states/state-00000001/training_state.pt", "report.jsonl"])
                shutil.rmtree(self.path / "output/states")
        self.run_program(init_from="output/fashion_mnist.pt", max_updates=1)

    def test_a_signal_saves_even_if_the_reader_of_the_output_has_ended(self):
        # Simulates Ctrl-C on `fashion_mnist | tee log`.
        process = self.start_run({"stdout": subprocess.PIPE}, progress="plain", save_every_epochs=1)
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.end(process)[0].status, 128 + signal.SIGINT)
        self.assertTrue(self.states())
        self.assertIn("output/fashion_mnist.pt", self.files())


class OutputTest(ProgramTest):
    def test_standard_output_that_cannot_be_written_is_an_error_after_the_run(self):
        done = programs.run_on_full_disk(self.command(progress="plain"), "stdout", cwd=self.path)
        self.assertEqual(done.status, 1, done.error)
        self.assertIn("cannot write to standard output", done.error)
        self.assertEqual(self.files(), ["output/fashion_mnist.pt"])

    def test_a_run_continues_if_standard_error_cannot_be_written(self):
        for progress in ("plain", "bar"):
            with self.subTest(progress=progress):
                done = programs.run_on_full_disk(self.command(progress=progress), "stderr", cwd=self.path)
                self.assertEqual(done.status, 0, done.output)
                self.assertIn("test accuracy: ", done.output)

    def test_a_report_that_cannot_be_written_is_an_error_after_the_run(self):
        (self.path / "report.jsonl").symlink_to("/dev/full")
        done = programs.run(self.command(report="report.jsonl", progress="plain", save_every_epochs=1), cwd=self.path)
        self.assertEqual(done.status, 1, done.output)
        self.assertIn("ERROR: cannot write to the report", done.output)
        self.assertIn("test accuracy: ", done.output)
        self.assertIn("the report is not complete", done.error)
        self.assertEqual(len(self.states()), 2)

    def test_a_resumed_report_equals_that_of_the_uninterrupted_run(self):
        def lose_the_end():
            with open(self.path / "report.jsonl", "a") as report:
                report.write('{"event":"upda')  # the last output of a killed run
        options = dict(report_updates=True, scheduler="none")
        whole = without_speed(self.reported(**options, max_updates=7))
        self.reported(**options, max_updates=4, save_every_updates=3, keep_last=9)
        lose_the_end()
        resumed = self.reported(**options, max_updates=7, resume_from=self.states()[0])  # from update 3
        self.assertEqual(without_speed(resumed), whole)
        lose_the_end()
        again = self.reported(**options, max_updates=1, resume_from="latest", output_dir="empty")
        self.assertEqual(again[len(whole)]["update"], 1)

    def test_a_second_run_in_the_same_folder_is_refused(self):
        options = dict(save_every_epochs=1, report="report.jsonl", trackers=trackers())
        self.run_program(**options)
        before = self.all_bytes()
        for locked, message, *refused in (
            ("output/states/.lock", "is in use by another run", options, {**options, "resume_from": "latest"}),
            ("report.jsonl", '"report.jsonl" is being written by another run', {"report": "report.jsonl"}),
        ):
            with open(self.path / locked, "a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                for more in refused:
                    self.assertIn(message, self.run_program(status=1, epochs=ENDLESS, **more))
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
            command = self.command(**SETTINGS, save_every_updates=1, resume_from="latest",
                                   asynchronous="true" if round % 2 else None, output_dir=output)
            ended = None
            while not ended or ended.status != 0:
                process = self.start(command)
                # Waits for the start of the program, so that a series of kills makes progress.
                before = set(self.states(output))
                self.wait_until(lambda: process.poll() is not None or set(self.states(output)) - before)
                try:
                    process.wait(timeout=draw.random() * 0.3)
                except subprocess.TimeoutExpired:
                    process.kill()
                    kills += 1
                (ended,) = self.end(process)
                self.assertIn(ended.status, (0, -signal.SIGKILL), ended)
            self.assertEqual(self.final_bytes(output), expected)
            left = [file for file in (self.path / output / "states").rglob("*") if file.is_file()]
            self.assertLessEqual(len(left), 4, left)  # including the lock
        print(f"({kills} kills)", file=sys.stderr, end=" ")
        self.assertGreater(kills, 0)


class ResumeTest(ProgramTest):
    def test_sigterm_saves_a_state_from_which_the_run_resumes(self):
        self.run_program(**SETTINGS)
        expected = self.final_bytes()
        process = self.start(self.command(**SETTINGS, resume_from="latest", progress="plain"))
        self.wait_until(lambda: "Starting epoch 1" in programs.output_of(process)[0], process)
        process.send_signal(signal.SIGTERM)
        (ended,) = self.end(process)
        self.assertEqual(ended.status, 128 + signal.SIGTERM, ended)
        (state,) = self.states()
        again = self.run_program(**SETTINGS, resume_from="latest")
        self.assertIn(f"Resumed training state from output/states/{state.name}", again)
        self.assertEqual(self.final_bytes(), expected)

    def test_a_resumed_run_can_be_longer_if_that_is_allowed(self):
        printed = self.run_program(epochs=1, save_every_epochs=1, resume_from="latest")
        self.assertIn("Nothing to resume in output/states; starting from the beginning", printed)
        longer = {"epochs": 2, "resume_from": "latest"}
        self.assertIn("allow_changed_schedule_length", self.run_program(status=1, **longer))
        printed = self.run_program(**longer, allow_changed_schedule_length="true")
        self.assertIn("Resumed training state from output/states/", printed)

    def test_a_damaged_newest_state_is_reported_and_the_previous_one_is_used(self):
        self.run_program(**SETTINGS, save_every_epochs=1, keep_last=3)
        expected = self.final_bytes()
        states = self.states()
        self.assertEqual([state.name for state in states], ["state-00000001", "state-00000002", "state-00000003"])
        newest = states[-1] / "training_state.pt"
        newest.write_bytes(flipped(newest.read_bytes()))
        printed = self.run_program(**SETTINGS, resume_from="latest")
        for text in ("WARNING: a damaged training state is skipped", "has the checksum",
                     "Resumed training state from output/states/state-00000002"):
            self.assertIn(text, printed)
        self.assertEqual(self.final_bytes(), expected)

    def test_a_full_disk_does_not_end_the_run(self):
        command = self.command(**{**SETTINGS, "model": "mlp", "save_every_updates": 2, "checkpoint": None})
        done = programs.run(["bash", "-c", 'ulimit -f 100; exec "$@"', "-", *command], cwd=self.path)
        for text in "ERROR: the training state was not saved", "File too large", "The run continues":
            self.assertIn(text, done.output)
        # The final checkpoint does not fit either, which makes the program fail.
        self.assertEqual(done.status, 1)
        self.assertIn("cannot write", done.error)

    def test_a_checkpoint_starts_another_run(self):
        first = "output/first.pt"
        self.run_program(max_updates=3, checkpoint="first.pt")
        self.assertEqual(self.rates(load_checkpoint=first, lr=0.01, scheduler="none", max_updates=1), [0.01])
        self.assertIn("use only one of them",
                      self.run_program(status=2, load_checkpoint="first.pt", init_from="x").lower())
        self.run_program(init_from=first, init_key="model_state_dict", max_updates=1)
        self.assertIn('no "net"', self.run_program(status=1, init_from=first, init_key="net"))


class WrongUsageTest(ProgramTest):
    def test_wrong_usage_exits_with_status_2(self):
        self.expect_errors(
            2,
            ({"epoch": 3}, "--epoch is not an option of fashion_mnist. Did you mean --epochs?"),
            ({"lr": True}, "--lr needs a value"),
            ({"limit_train": 0}, "the limit of train samples is 0; it must be at least 1"),
            ({"model": "vgg"}, "there is no model 'vgg'"),
            ({"lr": "nan"}, "--optimizer: the optimizer's lr is nan; it must be"),
            ({"momentum": 0.9}, "momentum"),
            ({"distributed__timeout": 30}, "it must be a number with its unit: 30s"),
            ({"asynchronous": "true"}, "no training states are saved"),
            ({"zero_stage": 4}, "zero_stage is 4"),
            ({"parallel": "share=2"}, "it must be a list such as shard=2,data=2"),
            ({"local_sgd_interval": 8, "compression": "fp16"}, "local_sgd_interval"),
            ({"histograms_every_n_epochs": 1}, "there is no tracker"),
            ({"device": "cuda:99"}, "cuda:99"),
            ({"device": "tpu"}, "tpu"),
            ({"warmup_updates": 10}, "warms up for"),
            ({"scheduler": "stepp"}, 'there is no scheduler "stepp"; there are step, multi-step,'),
            ({"scheduler": "step:stepsize=3"}, 'has no option "stepsize"'),
            ({"scheduler": "step:step_size"}, "is not KEY=VALUE"),
            ({"scheduler": "step:step_size=3.5"}, "a count must be an integer"),
            ({"scheduler": "step:gamma=-1"}, "gamma is -1"),
            ({"callbacks": "no-such"}, 'there is no callback "no-such"; there are early-stopping,'),
            ({"callbacks": "time-limit:hours=1"}, 'the callback time-limit has no option "hours"; it has max_time.'),
            ({"callbacks": "time-limit"}, "the callback time-limit's max_time is missing"),
            ({"callbacks": "time-limit:max_time=0s"}, "max_time is 0 ms; it must be positive"),
            ({"callbacks": "save-predictions"}, "the callback save-predictions's path is missing"),
            ({"callbacks": ["memory-monitor", "memory-monitor"]},
             "there already is a callback named linkboy::MemoryMonitor"),
            ({"callbacks": "early-stopping:patience"}, "is not KEY=VALUE"),
            ({"callbacks": "early-stopping:patience=0"}, "patience is 0"),
        )
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
        rates = self.rates(optimizer="sgd", lr=0.5, scheduler="step:gamma=0.5,step_size=num_updates_per_epoch - 2")
        self.assertEqual(rates, [0.5] * 3 + [0.25] * 3 + [0.125] * 3 + [0.0625])

    def test_one_cycle_ends_with_the_run(self):
        rates = self.rates(scheduler="one-cycle", lr=0.01, gradient_accumulation_steps=3, div_factor=10,
                           final_div_factor=10)
        self.assertEqual([round(rate, 9) for rate in (rates[0], rates[-1], len(rates))], [1e-3, 1e-4, 4])

    def test_a_plateau_lowers_the_rate(self):
        events = self.reported(scheduler="plateau:monitor=eval_accuracy,patience=0,factor=0.5", lr=0.01, epochs=4)
        # In the default mode (min), a higher accuracy is worse.
        self.assertLess(of_kind(events, "epoch")[-1]["lr"][0], 0.01)


class ErrorTest(ProgramTest):
    def broken_data(self, name, content):
        """Copies the data with other contents for one file; None omits the file."""
        folder = self.path / "data"
        shutil.copytree(self.data, folder, dirs_exist_ok=True)
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        return folder

    def test_invalid_data_is_named_and_nothing_is_written(self):
        images, labels = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
        packed = "train-images-idx3-ubyte.gz"
        good = (self.data / images).read_bytes()
        corrupt = flipped((self.data / packed).read_bytes())
        for name, content, message in (
            (labels, None, f"has neither {labels} nor {labels}.gz"),
            (images, good[:-100], "is truncated: it has "),
            (images, good + b"\0", "is longer than the "),
            (images, b"\x89PNG" + good[4:], "begins with 0x89504e47; an idx file of"),
            (labels, idx([3], b"\0\1\2"), f"has {NUM_TEST} images, but "),
            (labels, idx([NUM_TEST], bytes([200]) * NUM_TEST), "has the label 200 for image 0"),
            (packed, corrupt, f'{packed}" '),
            (packed, corrupt[:2000], f'{packed}" is truncated'),
        ):
            with self.subTest(name=name, message=message):
                data = self.broken_data(name, content)
                error = self.run_program(status=1, data=data, report="r", save_init="i")
                self.assertIn(message, error)
                self.assertEqual([file for file in self.files() if "data/" not in file], [])
        self.expect_errors(1, ({"data": "nowhere"}, "does not exist"), ({"limit_train": 701}, "the first 701 samples"))

    def test_weights_of_another_model_are_named(self):
        self.run_program(max_updates=1, save_init="mlp.pt")
        error = self.run_program(status=1, model="cnn", init_from="mlp.pt", checkpoint="new.pt")
        # The last three names are missing, unexpected, and of another shape.
        for text in 'mlp.pt" do not fit', "1.running_mean", "2.weight", "0.weight":
            self.assertIn(text, error)
        (self.path / "text.pt").write_text("no weights")
        self.expect_errors(1, *(({"init_from": name}, name) for name in ("none.pt", "text.pt")))
        self.assertNotIn("new.pt", self.files())

    def test_an_unwritable_output_is_reported_before_training(self):
        (self.path / "file").write_text("a file, not a folder")
        self.expect_errors(1, *(({name: value, "epochs": ENDLESS}, message) for name, value, message in (
            ("report", "file/x", "file/x"), ("output_dir", "file/x", "file/x"),
            ("report", self.path, "is not a regular file"))))
        self.assertEqual(self.files(), ["file"])

    def test_a_nan_loss_is_an_error(self):
        error = self.run_program(status=1, lr=1e30, scheduler="none", report="report.jsonl")
        self.assertIn("the loss became NaN or infinite after ", error)
        self.assertEqual(self.read_report()[-1], {"event": "end", "reason": "nan", "test_accuracy": None})
        self.assertEqual(self.files(), ["report.jsonl"])


class WatchingTest(ProgramTest):
    """Tests of --callbacks and the trackers."""

    def rows(self, name="run.csv"):
        with open(self.path / name, newline="") as table:
            return list(csv.DictReader(table))

    def recorded(self, name, field, table="run.csv"):
        """Returns this integer of each row of a metric."""
        return [int(row[field]) for row in self.rows(table) if row["name"] == name]

    def test_callbacks_are_selected_by_name(self):
        output = self.run_program(
            metrics=METRICS, trackers="csv:path=run.csv", freeze_to=0, track_run__every_n_updates=2,
            callbacks=["learning-rate-monitor:fields=lr+weight_decay", "gradient-norm",
                       "memory-monitor", "performance-monitor:warmup_micro_steps=1", "model-summary",
                       "model-ema:decay=0.9,path=ema.pt", "step-based-evaluation:every_n_updates=4",
                       "limit-batches:num_intermediate_eval_batches=1,are_eval_limits_total=true", "early-stopping:patience=9",
                       "save-best-model:path=best.pt,save_top_k=2", "save-predictions:path=predictions.pt",
                       "time-limit:max_time=30min"])
        self.assertIn("Running evaluation after 4 updates", output)
        self.assertLessEqual(
            set("train_loss train_loss_epoch eval_loss_epoch eval_accuracy eval_f1 eval_kappa lr weight_decay "
                "train_gradient_norm train_forward_time resident_mib train_samples_per_second "
                "ema_model_eval_accuracy intermediate_eval_loss".split()),
            {row["name"] for row in self.rows()})
        self.assertLessEqual({"ema.pt", "best-epoch1.pt", "predictions.pt"}, set(self.files()))

    def test_all_trackers_record_one_run(self):
        self.run_program(trackers=trackers("out/"), track_run__every_n_updates=1, histograms_every_n_epochs=1)
        files = self.files()
        # One file for the training, and one for the test after it.
        events = [name for name in files if "events.out.tfevents" in name]
        self.assertEqual({os.path.dirname(name) for name in events}, {"out/tb/fashion_mnist-1"})
        kinds = [line["type"] for line in read_json_lines(self.path / "out/run.jsonl")]
        self.assertEqual(kinds[0], "run")
        self.assertIn("histogram", kinds)
        self.assertIn('{"type":"end","outcome":"finished"', (self.path / "out/run.html").read_text())
        self.assertEqual(self.recorded("train_loss", "update", "out/run.csv"), list(range(1, 11)))

    def test_a_resumed_run_continues_the_same_table(self):
        options = dict(trackers="csv:path=run.csv", track_run__every_n_updates=1, save_every_updates=3,
                       scheduler="none")
        self.run_program(max_updates=7, keep_last=9, **options)
        self.run_program(resume_from=self.states()[1], **options)  # from update 6; update 7 is repeated
        self.assertEqual(self.recorded("train_loss", "update"), list(range(1, 11)))
        self.assertEqual(self.recorded("train_loss_epoch", "epoch"), [1, 2])

    def test_low_overhead_neither_prints_nor_monitors(self):
        self.assertRegex(self.run_program(default_callbacks="false"),
                         r"^checkpoint: .*\n(seed .*\n)?test loss: .*\ntest accuracy: .*\n$")

    def test_fast_dev_run_writes_no_state_and_ends_early(self):
        self.assertIn("test accuracy", self.run_program(callbacks="fast-dev-run", save_every_updates=1))
        self.assertEqual(self.files(), [])

    def test_latest_finds_the_states_of_a_named_callback(self):
        options = dict(callbacks="save-training-state:every_n_epochs=1", scheduler="none")
        self.run_program(epochs=1, **options)
        output = self.run_program(resume_from="latest", epochs=2, **options)
        self.assertIn("Resumed training state from ", output)
        self.assertEqual([path.name for path in self.path.iterdir()], ["output"])

    def test_an_error_for_an_unknown_metric_lists_the_recorded_ones(self):
        self.assertRegex(self.run_program(status=1, callbacks="early-stopping:monitor=eval_acc"),
                         r'(?s)"eval_acc".*eval_accuracy')

    def test_an_unwritable_path_is_reported_before_training(self):
        for tracker in trackers("/proc/no/such/"):
            with self.subTest(tracker):
                error = self.run_program(status=1, report="report.jsonl", trackers=tracker)
                self.assertIn("/proc/no", error)
                self.assertEqual((self.path / "report.jsonl").read_text(), "")


if __name__ == "__main__":
    PROGRAM = programs.path_argument()
    unittest_main.main()
