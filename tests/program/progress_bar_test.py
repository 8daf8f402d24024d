"""Checks the progress bar as a user sees it: in pseudo-terminals of several widths, in a dumb
terminal, and in a file.

    python3 progress_bar_test.py PATH/TO/fashion_mnist [unittest arguments]

Needs only Python's standard library; the images are artificial.
"""

import contextlib
import fcntl
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import programs  # noqa: E402
import unittest_main  # noqa: E402
from fashion_mnist_data import write_data  # noqa: E402

PROGRAM = None


class Screen:
    """Converts bytes to lines, like a terminal. The last line is the current one."""

    def __init__(self, columns):
        self.columns = columns
        self.lines = [""]
        self.column = 0
        self.overlong = []

    def feed(self, text):
        for piece in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if piece == "\r":
                self.column = 0
            elif piece == "\n":
                self.lines.append("")
                self.column = 0
            elif piece == "\x1b[K":
                self.lines[-1] = self.lines[-1][: self.column]
            elif not piece.startswith("\x1b"):
                line = self.lines[-1].ljust(self.column)
                self.lines[-1] = line[: self.column] + piece + line[self.column + len(piece) :]
                self.column += len(piece)
                if len(self.lines[-1]) > self.columns:
                    self.overlong.append(self.lines[-1])


class ProgressBarTest(programs.ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.data = programs.temporary_folder(cls.addClassCleanup)
        write_data(cls.data)

    def arguments(self, *more):
        return [PROGRAM, "--data", self.data, "--model", "mlp", "--epochs", "2", "--batch-size",
                "10", "--output_dir", self.path / "output", *more]

    def in_terminal(self, columns, *more, **environment):
        """Returns the bytes that the program sends to a terminal: its output and its errors."""
        outer = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(self.arguments(*more), stdout=other, stderr=other,
                                   stdin=subprocess.DEVNULL, env={**outer, "TERM": "xterm", **environment})
        os.close(other)
        output = b""
        with contextlib.suppress(OSError):  # the program has closed the other end
            while block := os.read(main, 65536):
                output += block
        os.close(main)
        self.assertEqual(process.wait(), 0, output.decode())
        return output.decode().replace("\r\n", "\n")

    def screen_of(self, columns, *more):
        screen = Screen(columns)
        screen.feed(self.in_terminal(columns, *more))
        return screen

    def test_each_width_shows_the_parts_that_fit(self):
        for columns, parts in (
            (40, ["loss"]),
            (80, ["70/70", "loss", "samples/s"]),
            (200, ["#" * 40, "70/70", "samples/s", "loss", "lr "]),
        ):
            with self.subTest(columns=columns):
                screen = self.screen_of(columns)
                self.assertEqual([line for line in screen.overlong if "%" in line], [])
                (end,) = [line for line in screen.lines if "epoch 1 100%" in line]
                for part in parts:
                    self.assertIn(part, end)

    def test_bar_and_printed_lines_do_not_garble_each_other(self):
        # Every line is complete: a bar, or a printed line.
        printed = re.compile(
            r"Starting (training run|epoch \d|eval epoch|evaluation run)|Finishing .* run|"
            r"\w+: [\d.e-]+|checkpoint: .*|Running evaluation .*|Resuming .*|"
            r"Reached the maximum .*|test (accuracy|loss): [\d.]+|seed .*|"
        )
        bar = re.compile(r"(epoch \d|\w*eval) +\d+%.*\]")
        for columns in (80, 200):
            with self.subTest(columns=columns):
                lines = self.screen_of(columns).lines
                for line in lines:
                    self.assertTrue(printed.fullmatch(line) or bar.fullmatch(line), line)
                bars = [line for line in lines if bar.fullmatch(line)]
                self.assertEqual(len(bars), 5)  # two epochs, their evaluations, the test
                self.assertTrue(all("100%" in line for line in bars), bars)

    def test_is_drawn_in_colour_except_with_no_color(self):
        self.assertIn("\x1b[32m#", self.in_terminal(80))
        self.assertNotRegex(self.in_terminal(80, NO_COLOR="1"), r"\x1b\[[0-9;]*m")

    def test_a_dumb_terminal_gets_plain_lines(self):
        output = self.in_terminal(80, TERM="dumb")
        self.assertNotRegex(output, r"[\x1b\r]")
        self.assertIn("epoch 2 100% 70/70 [", output)

    def test_a_file_gets_plain_lines(self):
        path = self.path / "log"
        with open(path, "wb") as log:
            programs.run(self.arguments(), stdout=log, stderr=log, check=True)
        text = path.read_bytes().decode()
        self.assertNotRegex(text, r"[\x1b\r]")
        for part in "Starting epoch 2", "eval_accuracy: ":
            self.assertIn(part, text)
        # The interval of plain lines is much longer than an epoch of this run.
        self.assertEqual(len(re.findall(r"^epoch 1 +\d+%", text, re.MULTILINE)), 1)

    def test_a_stop_leaves_the_cursor_on_a_new_line(self):
        self.assertEqual(self.screen_of(80, "--max-updates", "75").lines[-1], "")


if __name__ == "__main__":
    PROGRAM = programs.path_argument()
    unittest_main.main()
