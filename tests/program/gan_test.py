"""Checks that a resumed GAN run equals the uninterrupted one: both networks and both optimizers.

    python3 gan_test.py PATH/TO/gan PATH/TO/linkboy-checkpoint [unittest arguments]

Needs only Python's standard library.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import programs  # noqa: E402
import unittest_main  # noqa: E402

GAN = None
CHECKPOINT_TOOL = None


def run(*command):
    return programs.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}).output


def train(states, updates):
    """Trains with 16 updates per epoch."""
    return run(GAN, f"--states={states}", f"--updates={updates}", "--batch-size=4096")


def newest(states):
    return sorted(states.glob("*/training_state.pt"))[-1]


class GanTest(programs.ProgramTest):
    def test_a_resumed_run_equals_the_uninterrupted_one(self):
        whole, parts = self.path / "whole", self.path / "parts"
        last_line = train(whole, 40).splitlines()[-1]
        train(parts, 20)  # mid-epoch
        resumed = train(parts, 40)
        self.assertIn("Resumed training state", resumed)
        self.assertEqual(resumed.splitlines()[-1], last_line)
        self.assertIn("discriminator", run(CHECKPOINT_TOOL, "--list", newest(whole)))
        for key in "model_state_dict", "optimizer_state_dict", "registered_optimizers_state_dict":
            run(CHECKPOINT_TOOL, "--diff", newest(whole), "--with", newest(parts), "--key", key)


if __name__ == "__main__":
    GAN, CHECKPOINT_TOOL = programs.path_argument(), programs.path_argument()
    unittest_main.main()
