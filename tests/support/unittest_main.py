"""Runs the tests of a program and exits with a status that does not count skipped tests as passed.

The status is 77 if all tests were skipped, which ctest reports as skipped, and 1 if LINKBOY_NO_SKIPS=1 is set
and any test was skipped.
"""

import os
import sys
import unittest


def main():
    result = unittest.main(module="__main__", verbosity=2, exit=False).result
    # Skipped subtests (which have a test_case) and skipped classes are not counted: the test of such a
    # subtest still ran, and the tests of such a class are not counted as run.
    tests = [test for test, _ in result.skipped
             if isinstance(test, unittest.TestCase) and not hasattr(test, "test_case")]
    skipped = len(result.skipped)
    if not result.wasSuccessful():
        sys.exit(1)
    if skipped and os.environ.get("LINKBOY_NO_SKIPS") == "1":
        sys.exit("LINKBOY_NO_SKIPS=1 is set, and tests were skipped: "
                 + "; ".join(f"{test}: {reason}" for test, reason in result.skipped))
    sys.exit(77 if skipped and len(tests) >= result.testsRun else 0)
