"""Interrupts scripts/maintain/mutation: it must end soon, together with the programs that it has started. Also gives it
lists that name tests that do not exist.

    python3 mutation_test.py PATH/TO/scripts/maintain/mutation [unittest arguments]

The compiler, the linker and the tests are stand-ins.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = None
LOAD = """
import importlib.machinery, importlib.util, pathlib, sys
loader = importlib.machinery.SourceFileLoader("mutation", sys.argv[1])
mutation = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutation", loader))
sys.modules["mutation"] = mutation
sys.dont_write_bytecode = True
loader.exec_module(mutation)
"""
STAND_INS = LOAD + """
started = sys.argv[2]
class Build:
    def objects(self, mutant, folder):
        status, _ = mutation.run(["sh", "-c", f"echo >{started}/{mutant.number}; sleep 100 & wait"])
        if status != 0:
            raise mutation.Problem("it does not compile")
        yield folder
mutation.Build = Build
mutation.check_baseline = lambda build, mutations: None
sys.argv[1:] = ["--jobs", "2"]
mutation.call_main()
"""
CHECK = LOAD + """
mutation.MUTATIONS, mutation.CPU_ONLY = map(pathlib.Path, sys.argv[2:])
sys.argv[1:] = ["--check"]
mutation.call_main()
"""
ENTRY = """[name] src/util/plain_name.cpp
why: an entry for this test
test: {}
- #include "linkboy/util/plain_name.hpp"
+
"""


class MutationTest(unittest.TestCase):
    def test_an_interrupted_run_ends_all_processes_that_it_has_started(self):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([sys.executable, "-c", STAND_INS, SCRIPT, folder], text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            deadline = time.monotonic() + 60
            while len(os.listdir(folder)) < 2:
                self.assertLess(time.monotonic(), deadline)
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            # The output ends only when the last process that holds the pipe has ended.
            output, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, output)
            self.assertEqual(output, "mutation: interrupted\n")
            self.assertEqual(sorted(os.listdir(folder)), ["1", "2"])

    def check(self, test, cpu_only):
        with tempfile.TemporaryDirectory() as folder:
            lists = [pathlib.Path(folder) / name for name in ("mutations.txt", "cpu_only.txt")]
            lists[0].write_text(ENTRY.format(test))
            lists[1].write_text(f"# A reason.\n{cpu_only}\n")
            return subprocess.run([sys.executable, "-c", CHECK, SCRIPT, *lists], text=True, capture_output=True)

    def test_tests_of_every_kind_are_found(self):
        for test in ("ResumeTest.*", "All/ZeroTest.OnlyWeightsThatNoRankUsesAreLeftUnchanged/1:ResumeTest.*",
                     "*/ZeroTest.OnlyWeights*/*"):
            result = self.check(test, test)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_test_that_does_not_exist_is_named(self):
        for test in ("ResumeTest.Nothing", "ResumeTests.*", "All/ZeroTest.Nothing/1"):
            self.assertIn(f"[name] there is no test {test}", self.check("ResumeTest.*:" + test, "ResumeTest.*").stderr)
            result = self.check("ResumeTest.*", test)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"cpu_only.txt: there is no test {test}", result.stderr)

    def test_there_is_at_least_one_job(self):
        result = subprocess.run([sys.executable, SCRIPT, "--check", "--jobs", "0"], text=True, capture_output=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--jobs is 0; it must be at least 1", result.stderr)


if __name__ == "__main__":
    SCRIPT = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
