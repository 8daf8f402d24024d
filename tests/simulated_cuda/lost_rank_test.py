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
    def start_on_devices(self, timeout, has_network=False, folder="."):
        port = fault_test.free_port()
        options = self.options(distributed__timeout=f"{timeout}s", device="cuda", precision="fp16", **self.ENDLESS)
        processes = [self.start_rank(rank, 2, port, options, folder, LD_PRELOAD=LIBRARIES,
                                     SIMULATED_CUDA_DEVICES=2,
                                     SIMULATED_CUDA_NETWORK=int(has_network)) for rank in range(2)]
        self.wait_for_update(20, processes, folder)
        return processes

    def test_a_killed_rank_is_named_within_the_timeout(self):
        for victim in (1, 0):
            with self.subTest(victim=victim):
                processes = self.start_on_devices(timeout=5, folder=f"victim{victim}")
                processes[victim].kill()
                self.assert_names(victim, processes, 5 + fault_test.SLACK)

    def test_a_killed_rank_is_named_immediately_if_nccl_detects_it(self):
        for victim in (1, 0):
            with self.subTest(victim=victim):
                processes = self.start_on_devices(60, has_network=True, folder=f"victim{victim}")
                processes[victim].kill()
                self.assert_names(victim, processes, fault_test.SLACK)

    def test_a_stopped_rank_is_named_after_the_timeout(self):
        for victim in (1, 0):
            with self.subTest(victim=victim):
                processes = self.start_on_devices(timeout=3, folder=f"victim{victim}")
                processes[victim].send_signal(signal.SIGSTOP)
                self.assert_names(victim, processes, 3 + fault_test.SLACK)
                self.assertIsNone(processes[victim].poll())


if __name__ == "__main__":
    fault_test.PROGRAM = programs.path_argument()
    LIBRARIES = sys.argv.pop(1)
    unittest_main.main()
