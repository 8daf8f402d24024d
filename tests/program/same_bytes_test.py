"""Checks that a run always ends with the same bytes (checkpoint, and report except times).

    python3 same_bytes_test.py PATH/TO/fashion_mnist [BUILT_OTHERWISE...]

Runs twice, with 1 and with 4 workers, and once with each other build that is given. scripts/maintain/same_bytes passes
builds with shared libraries and without optimisation. Needs only Python's standard library.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from fashion_mnist_test import write_data

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
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        lines = (pathlib.Path(folder) / "report.jsonl").read_text().splitlines()
        report = [json.loads(line) for line in lines]
        for event in report:
            event.pop("samples_per_second", None)
        return (pathlib.Path(folder) / "end.pt").read_bytes(), report


def main():
    programs = [str(pathlib.Path(name).resolve()) for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder)
        write_data(data)
        checkpoint, report = run(programs[0], data, workers=0)
        updates = [event for event in report if event["event"] == "update"]
        assert len(updates) == 12 and updates[0]["loss"] != updates[-1]["loss"], report
        others = [(programs[0], 0), (programs[0], 1), (programs[0], 4)]
        for program, workers in others + [(program, 1) for program in programs[1:]]:
            other_checkpoint, other_report = run(program, data, workers)
            name = f"{program} with {workers} workers"
            for line, other_line in zip(report, other_report, strict=True):
                assert line == other_line, f"{name}: reports {other_line}, the first run {line}"
            assert checkpoint == other_checkpoint, f"{name}: another checkpoint"
            print(f"same bytes: {name}")


if __name__ == "__main__":
    main()
