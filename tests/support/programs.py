"""Runs programs in tests: to their end, or in the background until a condition is true."""

import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

# The output is None if the test redirected it.
Ended = collections.namedtuple("Ended", "status output error")


def path_argument():
    """Removes the first argument of the test and returns it as an absolute path."""
    if len(sys.argv) < 2:
        sys.exit(sys.modules["__main__"].__doc__)
    return pathlib.Path(sys.argv.pop(1)).resolve()


def temporary_folder(add_cleanup):
    """Returns a new folder. `add_cleanup` is the addCleanup or addClassCleanup of a test."""
    folder = tempfile.TemporaryDirectory()
    add_cleanup(folder.cleanup)
    return pathlib.Path(folder.name)


def arguments_of(options):
    """Returns options as the words of a command. In their names, '__' represents '.'. True sets a switch, a list
    repeats the option, and None omits it."""
    words = []
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                words += ["--" + name.replace("__", "."), *([] if one is True else [one])]
    return words


def run(command, **options):
    """Runs a command to its end. The options are those of subprocess.run."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 120, **options}
    done = subprocess.run([str(word) for word in command], text=True, **options)
    return Ended(done.returncode, done.stdout, done.stderr)


def run_on_full_disk(command, stream, **options):
    """Runs a command whose stream ("stdout" or "stderr") cannot be written."""
    with open("/dev/full", "w") as full:
        return run(command, **{stream: full}, **options)


def output_of(process):
    """Returns what a process of ProgramTest.start has written to stdout and stderr until now."""
    # Does not seek, because the process has the same file offset.
    return [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in process.files]


class ProgramTest(unittest.TestCase):
    """A test with a folder, `path`."""

    def setUp(self):
        self.path = temporary_folder(self.addCleanup)

    def start(self, command, folder=".", **options):
        """Starts a command that is killed at the end of the test. Its output goes to files without a name, because a
        full pipe would block it. The options are those of subprocess.Popen."""
        files = [tempfile.TemporaryFile() for _ in range(2)]
        where = self.path / folder
        where.mkdir(parents=True, exist_ok=True)
        options = {"cwd": where, "stdout": files[0], "stderr": files[1], **options}
        process = subprocess.Popen([str(word) for word in command], **options)
        process.files = files
        for cleanup in (*(file.close for file in files), process.wait, process.kill):
            self.addCleanup(cleanup)
        return process

    def wait_until(self, condition, *processes):
        """Waits until `condition` returns a true value, and returns it. Fails if a process ends before that."""
        deadline = time.monotonic() + 60
        while True:
            has_ended = any(process.poll() is not None for process in processes)
            value = condition()
            if value:
                return value
            if has_ended or time.monotonic() > deadline:
                self.fail(f"{'ended' if has_ended else 'waited'} in vain: {[output_of(p) for p in processes]}")
            time.sleep(0.005)

    def end(self, *processes, seconds=60):
        """Waits until the processes have ended. Fails after `seconds` in total."""
        deadline = time.monotonic() + seconds
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.fail(f"{process.args} still runs after {seconds} s: {[output_of(p) for p in processes]}")
        return [Ended(process.returncode, *output_of(process)) for process in processes]
