"""Runs the table of examples/README.md like a reader, and compares the last lines.

    python3 examples_test.py FOLDER_OF_THE_BUILT_EXAMPLES [unittest arguments]

Each command runs in a temporary folder, in which build/release/examples/ is the given folder, tests/
and examples/ are those of the repository, python3 is LINKBOY_PYTHON, and torchrun is
tests/distributed/launch, so that torchrun is not needed.
"""

import os
import pathlib
import re
import shlex
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import programs  # noqa: E402
import unittest_main  # noqa: E402

BUILT_EXAMPLES = None
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
# The table's numbers were computed with one thread on the CPU.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

ROW = re.compile(r"\| \[(.+?)\]\((.+?)\) \| .+ \| `(.+)` \| `(.+)` \|")
BUILT = "build/release/examples/"
TORCHRUN = "torchrun --no-python --nproc-per-node"
PROGRESS = re.compile(r"(epoch \d+|\w*eval) +\d+% ")
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")


def runnable(command):
    """Returns the command with the paths of this build."""
    for pattern, path in (
        (r"python3(?= )", os.environ.get("LINKBOY_PYTHON") or sys.executable),
        (re.escape(TORCHRUN) + r"(?= )", REPOSITORY / "tests/distributed/launch"),
        (re.escape(BUILT), f"{BUILT_EXAMPLES}/"),
        (r"(?=(?:examples|tests)/)", f"{REPOSITORY}/"),
    ):
        quoted = shlex.quote(str(path))
        command = re.sub(r"(?<!\S)" + pattern, lambda _: quoted, command)
    return command


def run(command, folder):
    """Runs a command of a page; returns its result and the lines of its output."""
    done = programs.run(["bash", "-c", runnable(command)], cwd=folder, env=os.environ | ENVIRONMENT)
    return done, [line.removeprefix("rank 0: ") for line in done.output.splitlines()]  # added by launch


def read_table():
    """Returns the name, the link, the command and the expected last line of each program."""
    lines = (EXAMPLES / "README.md").read_text().splitlines()
    matches = [ROW.fullmatch(line) for line in lines if line.startswith("|")][2:]
    assert all(matches), "each row must be `| [name](link) | text | command | last line |`"
    return [match.groups() for match in matches]


def program_of(command):
    """Returns the last program of a command."""
    return re.findall(re.escape(BUILT) + r"(\S+)", command)[-1]


def numbers_agree(expected, found):
    """Returns whether integers are equal and other numbers are close. Processors round the latter differently."""
    if "e" in expected:
        return float(expected) / 10 <= float(found) <= float(expected) * 10
    if "." in expected:
        return abs(float(found) - float(expected)) <= max(0.02, abs(float(expected)) / 10)
    return found == expected


def lines_agree(expected, found):
    """Returns whether texts are equal and numbers agree. "..." in `expected` matches anything."""
    pattern = ""
    for i, piece in enumerate(NUMBER.split(expected)):
        pattern += NUMBER.pattern if i % 2 else re.escape(piece).replace(r"\.\.\.", ".*")
    match = re.fullmatch(pattern, found)
    return bool(match) and all(map(numbers_agree, NUMBER.findall(expected), match.groups()))


class ExamplesTest(unittest.TestCase):
    def test_every_command_ends_with_the_expected_line(self):
        for _, _, command, last_line in read_table():
            with self.subTest(command=command), tempfile.TemporaryDirectory() as folder:
                done, lines = run(command, folder)
                self.assertEqual(done.status, 0, done)
                self.assertEqual([line for line in done.error.splitlines() if not PROGRESS.match(line)], [])
                found = lines[-1] if lines else ""
                self.assertTrue(lines_agree(last_line, found), f"{last_line} != {found}")

    def test_the_table_lists_every_program_and_links_to_its_source(self):
        found = {
            path.relative_to(BUILT_EXAMPLES).as_posix()
            for path in BUILT_EXAMPLES.rglob("*")
            if path.is_file() and os.access(path, os.X_OK) and not {"CMakeFiles", "tutorials"} & set(path.parts)
        }
        self.assertEqual({program_of(command) for _, _, command, _ in read_table()}, found)
        for name, link, command, _ in read_table():
            self.assertEqual(pathlib.PurePath(program_of(command)).name, name)
            self.assertTrue((EXAMPLES / link).exists(), link)

    def test_the_quickstart_is_short(self):
        self.assertLess(len((EXAMPLES / "quickstart.cpp").read_text().splitlines()), 40)


class LinesAgreeTest(unittest.TestCase):
    def test_numbers_can_be_rounded_differently(self):
        for expected, found, agree in (
            ("loss: 0.500, 3 epochs", "loss: 0.519, 3 epochs", True),
            ("loss: 0.500, 3 epochs", "loss: 0.519, 4 epochs", False),
            ("loss: 0.500", "loss: 0.551", False),
            ("loss: 50.0", "loss: nan", False),
            ("difference 1e-07", "difference 6.5e-08", True),
            ("difference 1e-07", "difference 1e-05", False),
            ("it writes ... in the end", "it writes 'a b' in the end", True),
            ("it writes ... in the end", "it writes 'a b'", False),
        ):
            with self.subTest(expected=expected, found=found):
                self.assertEqual(lines_agree(expected, found), agree)


if __name__ == "__main__":
    BUILT_EXAMPLES = programs.path_argument()
    unittest_main.main()
