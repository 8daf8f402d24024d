"""Runs examples/tools/lr_curve like a user.

    python3 lr_curve_test.py PATH/TO/lr_curve [unittest arguments]
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import programs  # noqa: E402
import unittest_main  # noqa: E402

PROGRAM = None
SCHEDULERS = """step multi-step constant linear exponential polynomial cosine cosine-restarts tanh
one-cycle cyclic inverse-sqrt wsd plateau""".split()
REQUIRED = {"multi-step": ":milestones=200,700", "exponential": ":gamma=0.99"}


def run(*arguments):
    return programs.run([PROGRAM, *arguments])


class LrCurveTest(programs.ProgramTest):
    def test_output_that_cannot_be_written_is_an_error(self):
        for arguments in ([], ["--help"]):
            with self.subTest(arguments=arguments):
                done = programs.run_on_full_disk([PROGRAM, *arguments], "stdout")
                self.assertEqual(done.status, 1)
                self.assertIn("cannot write to standard output", done.error)

    def test_draws_every_scheduler(self):
        for name in SCHEDULERS:
            with self.subTest(name=name):
                svg = self.path / f"{name}.svg"
                done = run("--scheduler", name + REQUIRED.get(name, ""), "--svg", svg)
                self.assertEqual((done.status, done.error), (0, ""))
                self.assertRegex(done.output.splitlines()[-1], r"^lr: first .*, last ")
                root = ElementTree.parse(svg).getroot()
                lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
                self.assertEqual(len(lines), 2 if name in ("one-cycle", "cyclic") else 1)
                self.assertEqual(len(lines[0].get("points").split()), 1000)

    def test_the_chart_falls_with_the_schedule(self):
        done = run(*programs.arguments_of({
            "scheduler": "linear:start_factor=1,end_factor=0", "scheduler.num_updates": 3, "width": 4, "height": 4, "epochs": 1, "updates-per-epoch": 4, "lr": 1}))
        self.assertEqual(done.output.splitlines()[1:5],
                         ["         1 |*", "           | *", "           |  *", "         0 |   *"], done.output)

    def test_invalid_arguments_are_wrong_usage(self):
        for arguments, message in (
            (["--scheduler", "stepp"], "there are step, multi-step,"),
            (["--scheduler", "multi-step"], "multi-step's milestones is missing"),
            (["--scheduler", "step:gamma=0"], "gamma is 0"),
            (["--scheduler", "step:x=0"], "it has step_size, gamma"),
            (["--width", "1"], "2 to 1000"),
            (["--scheduler", "exponential:gamma=10"],
             "the schedule returns lr = inf for update 310"),
            (["--epochs", "9223372036854775807", "--updates-per-epoch", "2"],
             "9223372036854775807 epochs of 2 updates are more than"),
        ):
            with self.subTest(arguments=arguments):
                done = run(*arguments)
                self.assertEqual(done.status, 2)
                self.assertIn(message, done.error)

    def test_an_unwritable_image_is_an_error(self):
        done = run("--svg", "/nowhere/curve.svg")
        self.assertEqual(done.status, 1)
        self.assertIn("cannot write", done.error)


if __name__ == "__main__":
    PROGRAM = programs.path_argument()
    unittest_main.main()
