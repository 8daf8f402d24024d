"""Ends a test program so that no skipped test counts as passed.

The exit status is 77 if all tests were skipped (ctest then says so), and 1 if LINKBOY_NO_SKIPS=1 is set and
any was.
"""

import os
import sys
import unittest


def main():
    result = unittest.main(module="__main__", verbosity=2, exit=False).result
    # A skipped subtest, which knows its test_case, leaves its test run; a skipped class has no tests.
    tests = [test for test, _ in result.skipped
             if isinstance(test, unittest.TestCase) and not hasattr(test, "test_case")]
    skipped = len(result.skipped)
    if not result.wasSuccessful():
        sys.exit(1)
    if skipped and os.environ.get("LINKBOY_NO_SKIPS") == "1":
        sys.exit("LINKBOY_NO_SKIPS=1 is set, and tests were skipped: "
                 + "; ".join(f"{test}: {reason}" for test, reason in result.skipped))
    sys.exit(77 if skipped and len(tests) >= result.testsRun else 0)
