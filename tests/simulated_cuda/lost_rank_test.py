"""Ranks whose gradients go through NCCL and that are killed or stopped, on simulated devices.

    python3 lost_rank_test.py PATH/TO/fashion_mnist LIBRARIES_TO_PRELOAD [unittest arguments]

In fp16, the other ranks may be waiting for the device at that time.
"""

import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "distributed"), str(TESTS / "support")]
import fault_test  # noqa: E402
import programs  # noqa: E402
import unittest_main  # noqa: E402

LIBRARIES = None


class LostRankTest(fault_test.FaultTest):
    network = 0  # whether NCCL detects a lost rank

    def start_endless(self, size, timeout, folder="."):
        port = fault_test.free_port()
        options = self.options(distributed__timeout=f"{timeout}s", device="cuda", precision="fp16", **self.ENDLESS)
        processes = [self.start_rank(rank, size, port, options, folder, LD_PRELOAD=LIBRARIES, SIMULATED_CUDA_DEVICES=2,
                                     SIMULATED_CUDA_NETWORK=self.network) for rank in range(size)]
        self.wait_for_update(20, processes, folder)
        return processes

    def test_a_killed_rank_is_named_within_the_timeout(self):
        self.check_victims(fault_test.kill, 2, victims=(1, 0), timeout=5)

    def test_a_killed_rank_is_named_immediately_if_nccl_detects_it(self):
        self.network = 1
        self.check_victims(fault_test.kill, 2, victims=(1, 0), timeout=60, named_after=0)

    def test_a_stopped_rank_is_named_after_the_timeout(self):
        self.check_victims(fault_test.stop, 2, victims=(1, 0), timeout=3)


if __name__ == "__main__":
    fault_test.PROGRAM = programs.path_argument()
    LIBRARIES = sys.argv.pop(1)
    unittest_main.main()
