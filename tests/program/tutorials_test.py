"""Runs the ```console blocks of the tutorials like a reader, and compares their output.

    python3 tutorials_test.py FOLDER_OF_THE_BUILT_EXAMPLES [unittest arguments]

A line that begins with "$ " is a command; the lines after it are its output. A line `...` matches any lines,
`...` within a line matches any text, and numbers can be rounded as in examples_test.py. The blocks of a page run in
order in one temporary folder. A command must end with status 0. Its errors are not compared.
"""

import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import examples_test  # noqa: E402
import programs  # noqa: E402
import unittest_main  # noqa: E402

DOCS = examples_test.REPOSITORY / "docs"
PAGES = [*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "coming_from/lightning_and_accelerate.md"]


def steps_of(text):
    """Yields each command with the lines of its output."""
    for block in re.findall(r"^```console\n\$ (.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE):
            command, *output = step.splitlines()
            yield command, output


def outputs_agree(expected, found):
    if not expected:
        return not found
    if expected[0] == "...":
        return any(outputs_agree(expected[1:], found[first:]) for first in range(len(found) + 1))
    return bool(found) and examples_test.lines_agree(expected[0], found[0]) and outputs_agree(expected[1:], found[1:])


class TutorialsTest(unittest.TestCase):
    def test_every_command_prints_what_its_page_shows(self):
        self.assertTrue(PAGES)
        for page in PAGES:
            steps = list(steps_of(page.read_text()))
            self.assertTrue(steps, f"{page} has no command that a reader could try")
            with tempfile.TemporaryDirectory() as folder:
                for command, output in steps:
                    done, found = examples_test.run(command, folder)
                    told = f"{page.name}: {command}\n{done.output}{done.error}"
                    self.assertEqual(done.status, 0, told)
                    self.assertTrue(outputs_agree(output, found), told)

    def test_every_program_is_on_a_page(self):
        text = "".join(page.read_text() for page in PAGES)
        for source in (examples_test.EXAMPLES / "tutorials").glob("*.cpp"):
            self.assertIn(f"{examples_test.BUILT}tutorials/{source.stem}", text)


class StepsTest(unittest.TestCase):
    def test_a_block_has_commands_and_their_outputs(self):
        steps = steps_of("$ text\n```console\n$ a\nb\n\n$ c\n```\n```sh\n$ d\n```\n")
        self.assertEqual(list(steps), [("a", ["b", ""]), ("c", [])])

    def test_outputs_that_differ_do_not_agree(self):
        for expected, found, agree in (
            (["...", "c"], ["a", "b", "c"], True),
            (["..."], [], True),
            (["...", "b"], ["a", "b", "c"], False),
            (["a"], ["a", "b"], False),
            (["a"], [], False),
            (["epoch 1"], ["epoch 2"], False),
        ):
            self.assertEqual(outputs_agree(expected, found), agree, (expected, found))


if __name__ == "__main__":
    examples_test.BUILT_EXAMPLES = programs.path_argument()
    unittest_main.main()
