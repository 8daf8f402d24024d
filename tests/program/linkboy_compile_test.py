"""Runs examples/tools/linkboy_compile_tool like a user, on packages of fashion_mnist.

    python3 linkboy_compile_test.py PATH/TO/linkboy-compile PATH/TO/fashion_mnist [unittest arguments]

A script in place of Python writes files that are not libraries, so the steps run eagerly.
"""

import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import programs  # noqa: E402
import unittest_main  # noqa: E402

TOOL = PROGRAM = None


class ToolTest(programs.ProgramTest):
    def setUp(self):
        super().setUp()
        self.cache = self.path / "cache"
        python = self.path / "python"
        python.write_text('#!/bin/sh\nprintf code > "$4/step.so"\n', encoding="utf-8")
        python.chmod(0o700)
        done = programs.run(
            [PROGRAM, "--model", "mlp", "--limit-train", "64", "--limit-eval", "64", "--epochs", "1", "--execution",
             "compiled", "--compile.cache", self.cache, "--output-dir", self.path / "output"],
            env={**os.environ, "LINKBOY_PYTHON": str(python)})
        self.assertEqual(done.status, 0, done.error)
        self.assertIn("cannot load the package", done.output + done.error)
        self.names = sorted(each.name for each in self.cache.iterdir())
        self.assertEqual(len(self.names), 2)  # of training and of evaluation

    def succeed(self, *arguments):
        done = programs.run([TOOL, "--cache", self.cache, *arguments])
        self.assertEqual((done.status, done.error), (0, ""))
        return done.output.splitlines()

    def fail_with(self, message, *arguments, status=1):
        done = programs.run([TOOL, "--cache", self.cache, *arguments])
        self.assertEqual((done.status, done.output), (status, ""))
        self.assertIn(message, done.error)

    def test_packages_are_listed_with_the_reason_if_one_cannot_be_used(self):
        lines = self.succeed("--list")
        self.assertEqual(lines[-1], f"2 packages in {self.cache}")
        self.assertRegex(lines[0], r"^[0-9a-f]{12} +[0-9]+ calls  any size +\S+ +torch [0-9.]+ +0 KiB  used 0 days ago$")
        (self.cache / self.names[0] / "step.so").write_text("kode", encoding="utf-8")
        self.assertIn(f"{self.names[0][:12]}  cannot be used: its code is damaged", self.succeed("--list"))
        shipped = self.path / "shipped"
        self.fail_with("cannot be copied: its code is damaged", "--copy-to", shipped, "--only", self.names[0])
        self.assertEqual(self.succeed("--copy-to", shipped)[1], f"1 package copied to {shipped}")

    def test_unused_packages_are_removed_unless_they_are_pinned(self):
        name = self.names[0]
        self.assertEqual(self.succeed("--pin", name[:12]), [f"{self.cache / name} is pinned"])
        self.assertEqual(self.succeed("--remove-unused", "1"), ["0 packages removed"])
        self.assertEqual(self.succeed("--remove-unused", "0")[-1], "1 package removed")
        self.assertEqual(self.succeed("--unpin", name), [f"{self.cache / name} is not pinned"])
        self.assertTrue(self.succeed("--remove-unused", "0")[0].startswith(name[:12]))
        self.assertEqual(list(self.cache.iterdir()), [])
        self.fail_with("has no package to copy", "--copy-to", self.path / "shipped")

    def test_packages_are_copied(self):
        shipped = self.path / "shipped"
        self.assertEqual(self.succeed("--copy-to", shipped, "--only", self.names[1]), [f"1 package copied to {shipped}"])
        self.assertEqual([each.name for each in shipped.iterdir()], [self.names[1]])
        self.assertEqual(self.succeed("--copy-to", shipped), [f"2 packages copied to {shipped}"])

    def test_wrong_arguments_are_errors(self):
        self.fail_with('no package begins with "zz"', "--pin", "zz")
        self.fail_with("0 of --list, --copy-to, --remove-unused, --pin and --unpin are set", status=2)
        self.fail_with("--only requires --copy-to", "--list", "--only", "a", status=2)
        self.cache = self.path / "missing"
        self.fail_with("cannot read the cache", "--list")


if __name__ == "__main__":
    TOOL, PROGRAM = programs.path_argument(), programs.path_argument()
    unittest_main.main()
