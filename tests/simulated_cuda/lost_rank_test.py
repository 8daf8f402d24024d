"""Ranks whose gradients go through NCCL and that are killed or stopped, on simulated devices.

    python3 lost_rank_test.py PATH/TO/fashion_mnist LIBRARIES_TO_PRELOAD [unittest arguments]

In fp16, the other ranks may be waiting for the device at that time.
"""

import pathlib
import signal
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "distributed"), str(TESTS / "support")]
import fault_test  # noqa: E402
import programs  # noqa: E402
import unittest_main  # noqa: E402

LIBRARIES = None


class LostRankTest(fault_test.FaultTest):
    def check_each_rank(self, act, timeout, named_after, has_network=False):
        """Calls `act` with the process of one rank, and expects that the other one names this rank."""
        for victim in (1, 0):
            with self.subTest(victim=victim):
                port, folder = fault_test.free_port(), f"victim{victim}"
                options = self.options(distributed__timeout=f"{timeout}s", device="cuda", precision="fp16",
                                       **self.ENDLESS)
                processes = [self.start_rank(rank, 2, port, options, folder, LD_PRELOAD=LIBRARIES,
                                             SIMULATED_CUDA_DEVICES=2,
                                             SIMULATED_CUDA_NETWORK=int(has_network)) for rank in range(2)]
                self.wait_for_update(20, processes, folder)
                act(processes[victim])
                self.assert_names(victim, processes, named_after + fault_test.SLACK)

    def test_a_killed_rank_is_named_within_the_timeout(self):
        self.check_each_rank(lambda process: process.kill(), timeout=5, named_after=5)

    def test_a_killed_rank_is_named_immediately_if_nccl_detects_it(self):
        self.check_each_rank(lambda process: process.kill(), timeout=60, named_after=0, has_network=True)

    def test_a_stopped_rank_is_named_after_the_timeout(self):
        self.check_each_rank(lambda process: process.send_signal(signal.SIGSTOP), timeout=3, named_after=3)


if __name__ == "__main__":
    fault_test.PROGRAM = programs.path_argument()
    LIBRARIES = sys.argv.pop(1)
    unittest_main.main()
