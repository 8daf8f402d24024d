"""Checks that a run always ends with the same bytes (checkpoint, and report except times).

    python3 same_bytes_test.py PATH/TO/fashion_mnist [BUILT_OTHERWISE...]

Runs twice, with 1 and with 4 workers, and once with each other build that is given. scripts/maintain/same_bytes passes
builds with shared libraries and without optimisation. Needs only Python's standard library.
"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import programs  # noqa: E402
from fashion_mnist_data import write_data  # noqa: E402
from fashion_mnist_test import read_json_lines, without_speed  # noqa: E402

# Augmentation draws random numbers in the workers; the CNN uses the kernels of a real network.
OPTIONS = [
    "--epochs=2", "--max-updates=12", "--batch-size=64", "--model=cnn", "--augment=true", "--report-updates",
    "--device=cpu", "--num_threads=1", "--progress=none", "--gradient_clip_norm=1",
    "--gradient_accumulation_steps=2",
]


def run(program, data, workers):
    with tempfile.TemporaryDirectory() as folder:
        files = [f"--checkpoint={folder}/end.pt", f"--report={folder}/report.jsonl"]
        command = [program, f"--data={data}", f"--workers={workers}", *files, *OPTIONS]
        programs.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=None, timeout=None)
        path = pathlib.Path(folder)
        return (path / "end.pt").read_bytes(), without_speed(read_json_lines(path / "report.jsonl"))


def main():
    builds = [str(pathlib.Path(name).resolve()) for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder)
        write_data(data)
        checkpoint, report = run(builds[0], data, workers=0)
        updates = [event for event in report if event["event"] == "update"]
        assert len(updates) == 12 and updates[0]["loss"] != updates[-1]["loss"], report
        others = [(builds[0], 0), (builds[0], 1), (builds[0], 4)]
        for program, workers in others + [(program, 1) for program in builds[1:]]:
            other_checkpoint, other_report = run(program, data, workers)
            name = f"{program} with {workers} workers"
            for line, other_line in zip(report, other_report, strict=True):
                assert line == other_line, f"{name}: reports {other_line}, the first run {line}"
            assert checkpoint == other_checkpoint, f"{name}: another checkpoint"
            print(f"same bytes: {name}")


if __name__ == "__main__":
    main()
