"""Makes operating system calls fail, one per run, in a resumed run of fashion_mnist.

    python3 faults_test.py PATH/TO/fashion_mnist PATH/TO/libfail_call.so [unittest arguments]

After each failure, the exit status and the message must be correct, the files of another run must be unchanged, and a
complete state must exist from which the run resumes and ends with the same bytes as an uninterrupted one. By default,
the first, second and fifth call of each kind fail, with each error. With LINKBOY_ALL_FAULTS=1, each call fails in turn.
"""

import os
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import programs  # noqa: E402
import unittest_main  # noqa: E402
from fashion_mnist_data import write_data  # noqa: E402

PROGRAM = LIBRARY = None
ALL = os.environ.get("LINKBOY_ALL_FAULTS") == "1"

# The errors of each call. The run must survive all of them, and must report those in LOUD.
FAULTS = {
    "open": ("EIO", "EMFILE", "EACCES", "EINTR"),
    "write": ("EIO", "ENOSPC", "EINTR", "short"),
    "fsync": ("EIO", "EINTR"),
    "close": ("EIO",),
    "rename": ("EIO", "ENOSPC"),
    "unlink": ("EIO",),
    "mkdir": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "mmap": ("ENOMEM",),
    "pread": ("EIO", "EINTR", "short"),
    "flock": ("EIO", "ENOLCK", "EINTR"),
    "ftruncate": ("EIO",),
    "fstat": ("EIO",),
    "pthread_create": ("EAGAIN",),
    "malloc": ("ENOMEM",),
}
LOUD = {("write", "EIO"), ("write", "ENOSPC"), ("fsync", "EIO"), ("rename", "EIO"), ("rename", "ENOSPC")}
THREADS = {"pthread_create"}  # started by asynchronous saves
# Without memory for its buffers, the library for matrix products rounds differently.
INEXACT = {"malloc"}
HARMLESS = {"EINTR", "ENOLCK", "short"}
NUMBERS = (1, 2, 5)
# Calls that a run makes only once or twice.
FEWER = {"ftruncate": (1,), "pthread_create": (1,), "mkdir": (1, 2), "mmap": (1,)}


class FaultTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = programs.temporary_folder(cls.addClassCleanup).resolve()
        # In another folder, because the test does not cover the reading of the data.
        cls.data = programs.temporary_folder(cls.addClassCleanup)
        # Noise, so that the first model stays the best, and the resumed run copies its file to another name.
        write_data(cls.data, num_train=60, num_test=20, has_bands=False)
        # The state of another run, and a run of two of three epochs.
        cls.start = cls.root / "start"
        cls.run_in(cls.start, epochs=1, seed=9)
        cls.others = {file.relative_to(cls.start): file.read_bytes()
                      for file in (cls.start / "states").rglob("training_state.pt")}
        cls.run_in(cls.root / "whole", checkpoint=cls.root / "whole.pt")
        cls.expected = (cls.root / "whole.pt").read_bytes()
        cls.run_in(cls.start, max_updates=8)
        # The last state is that of an ended run. The state before it is in mid-epoch.
        shutil.rmtree(sorted((cls.start / "states").glob("state-*"))[-1])

    @classmethod
    def run_in(cls, output, fault=None, log=None, best=None, **options):
        """Runs to the end. A run without a fault must succeed."""
        command = [PROGRAM, *programs.arguments_of({
            "data": cls.data, "model": "mlp", "epochs": 3, "batch_size": 10, "device": "cpu", "num_threads": 1,
            "progress": "none", "scheduler": "none", "output_dir": output, "save_every_updates": 2,
            "eval_batch_size": 20, "callbacks": f"save-best-model:path={best or output / 'best.pt'},load_saved_checkpoint=false",
            **options})]
        preloaded = {"LD_PRELOAD": LIBRARY, "LINKBOY_FAULT": fault, "LINKBOY_FAULT_LOG": log} if fault else {}
        return programs.run(command, cwd=cls.root, check=not fault, env={**os.environ, **preloaded})

    def disturb(self, call, number, error, asynchronous):
        """Returns whether the run made such a call."""
        output, log, final = (self.root / name for name in ("output", "log", "final.pt"))
        shutil.rmtree(output, ignore_errors=True)
        log.unlink(missing_ok=True)
        final.unlink(missing_ok=True)
        shutil.copytree(self.start, output)
        done = self.run_in(output, f"{call}:{number}:{error}:{self.root}", log, best=output / "copied.pt",
                           resume_from=output / "states", checkpoint=final,
                           states__asynchronous="true" if asynchronous else None)
        if not log.exists():
            return False
        self.assertIn(done.status, (0, 1), done)
        if done.status == 1:
            self.assertTrue(done.error.startswith("fashion_mnist: error: "), done)
        elif call not in INEXACT:
            self.assertEqual(final.read_bytes(), self.expected, done)
        if (call, error) in LOUD:
            self.assertTrue(done.status == 1 or "ERROR: " in done.output or "WARNING: " in done.output, done)
        if error in HARMLESS:
            self.assertEqual((done.status, done.error, "ERROR" in done.output), (0, "", False), done)
        for file, content in self.others.items():
            self.assertEqual((output / file).read_bytes(), content, done)
        # The newest state existed before this run or is complete.
        resumed = self.run_in(output, resume_from=output / "states", checkpoint=final).output
        self.assertIn("Resumed training state from", resumed)
        self.assertNotIn("a damaged training state is skipped", resumed)
        if call not in INEXACT:
            self.assertEqual(final.read_bytes(), self.expected, done)
        return True

    def try_all(self, call):
        sample = FEWER.get(call, NUMBERS)
        for error in FAULTS[call]:
            for number in range(1, 2000) if ALL else sample:
                has_failed = True
                with self.subTest(call=call, number=number, error=error):
                    has_failed = self.disturb(call, number, error, number % 2 == 0 or call in THREADS)
                    if number in sample:
                        self.assertTrue(has_failed, f"a run makes no {number} calls of {call}")
                if not has_failed:
                    break


for fault in FAULTS:
    setattr(FaultTest, f"test_survives_a_failed_{fault}", lambda self, call=fault: self.try_all(call))


if __name__ == "__main__":
    PROGRAM, LIBRARY = programs.path_argument(), programs.path_argument()
    unittest_main.main()
