#!/usr/bin/env python3
"""Compares linkboy with its Python peers, in turns within one run. scripts/maintain/benchmark calls it.

    compare_peers.py [--only ROW ...] [--rounds N] [--threads N] [--quick] [--output FILE.json] [--programs DIR]

Each side of a row is a process that waits for its turn. In every round, each side has one turn, and
the order rotates. A ratio is computed within each round, and its median over the rounds is compared
with the target. docs/benchmarks.md has the details.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = ["torch", "pytorch-accelerated", "accelerate", "pytorch-lightning", "torchvision", "jax", "onnxruntime"]
NAMES = {"bare": "bare loop", "bare_not_fused": "bare loop, AdamW not fused",
         "accelerated": "pytorch-accelerated", "lightning": "Lightning",
         "lightning_log_loss": "Lightning that logs its loss", "eager": "linkboy, eager",
         "torch_compile": "torch.compile", "jax": "JAX, jitted step", "jax_scan": "JAX, scanned epoch",
         "python_eager": "PyTorch, eager", "jit": "torch.jit, frozen", "onnxruntime": "ONNX Runtime"}
VARIANTS = {"bare_not_fused": ("bare", "--not-fused"), "torch_compile": ("bare", "--compile"),
            "lightning_log_loss": ("lightning", "--log-loss"), "jax": ("jax_training",),
            "jax_scan": ("jax_training", "--scan")}
# No model can predict the noise of the data (make_sequences in peers/models.py), except by heart.
LOSSES_OF_NOISE = {"gpt": math.log(4)}
WORKERS_TO_TRY = (0, 2)
WARM_UP_TURNS = 4
LEAST_ROUNDS = 5
MEBIBYTE = 1 << 20
MLP_BATCH_BYTES = 64 * (784 * 4 + 8)


class Side:
    """A process that does the work of one side on request."""

    def __init__(self, command, hello=True):
        # All sides run on the CPU, even if the machine has GPUs.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        self.start = time.perf_counter()
        self._process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, env=environment)
        self.hello = self.read() if hello else None

    def ask(self, word):
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self.read()

    def read(self):
        line = self._process.stdout.readline()
        command = shlex.join(self._process.args)
        if not line:
            sys.exit(f"{command}: ended with status {self._process.wait()} without an answer")
        answer = json.loads(line)
        if "error" in answer:
            sys.exit(f"{command}: {answer['error']}")
        return answer

    def quit(self):
        self._process.communicate("quit\n")


class Training:
    """Measures steps per second of Trainers and loops over data in memory."""

    unit, lower_is_better = "steps/s", False
    units_per_step = 1

    def __init__(self, title, work, steps, rounds, threads, targets, shown=(), execution="eager"):
        self.title, self.work, self.steps, self.rounds, self.execution = title, work, steps, rounds, execution
        self.threads, self.targets, self.peers = threads, targets, [*targets, *shown]

    def command(self, run, side, workers=0):
        common = [self.work, "--steps", self.steps_of(run), "--threads", self.threads]
        if side in ("linkboy", "eager"):
            execution = self.execution if side == "linkboy" else "eager"
            return [run.programs / "linkboy_workloads", *common, "--execution", execution]
        common += ["--workers", workers]
        side, *options = VARIANTS.get(side, (side,))
        return [sys.executable, HERE / "peers" / f"{side}.py", *common, *options]

    def steps_of(self, run):
        return max(4, self.steps // 10) if run.quick else self.steps

    def choose_workers(self, run, side):
        """Warms a peer up with each number of workers, in turns, and continues with the fastest."""
        has_loader = side in ("bare", "accelerated", "lightning", *VARIANTS) and not side.startswith("jax")
        numbers = WORKERS_TO_TRY if has_loader and self.work != "step" else (0,)
        candidates = {number: Side(self.command(run, side, number)) for number in numbers}
        turns = {number: [] for number in numbers}
        for number in by_turns(list(numbers), WARM_UP_TURNS):
            turns[number].append(candidates[number].ask("run"))
        seconds = {number: statistics.median(turn["seconds"] for turn in turns[number][1:])
                   for number in numbers}
        best = min(seconds, key=seconds.get)
        for number in set(numbers) - {best}:
            candidates[number].quit()
        # All sides have had the same number of turns at this point.
        return candidates[best], {"workers": best, "seconds_with_workers": seconds,
                                  "loss_after_warm_up": turns[best][-1]["loss"]}

    def measure(self, run):
        sides, details = {}, {}
        for side in ["linkboy", *self.peers]:
            sides[side], details[side] = self.choose_workers(run, side)
        values = {side: [] for side in sides}
        for turn in by_turns(list(sides), run.rounds_of(self)):
            answer = sides[turn].ask("run")
            assert answer["steps"] == self.steps_of(run), answer
            values[turn].append(self.units_per_step * answer["steps"] / answer["seconds"])
            details[turn]["loss"] = answer["loss"]
        for side in sides.values():
            side.quit()
        return values, details

    def check(self, details):
        """Compares the losses roughly, because the sides shuffle differently. Without training, the loss is 2.3 (gpt:
        5.7).
        """
        losses = [side["loss_after_warm_up"] for side in details.values()]
        spread = max(losses) - min(losses)
        remaining = max(0.0, min(losses) - LOSSES_OF_NOISE.get(self.work, 0.0))
        if not spread <= 0.1 + 0.5 * remaining:
            return f"the losses after the same number of steps differ: {losses}"
        return None


class OptimizerSteps(Training):
    """Measures updates per second. All sides compute the same numbers."""

    unit = "updates/s"

    def check(self, details):
        values = [side["loss_after_warm_up"] for side in details.values()]
        if max(values) - min(values) > 1e-6 * max(values):
            return f"the weights after the same number of updates differ: {values}"
        return None


class FirstUpdate(Training):
    """Measures the seconds from the start of a process to the end of its first update."""

    unit, lower_is_better = "s", True

    def measure(self, run):
        values = {side: [] for side in ["linkboy", *self.peers]}
        # The first round loads the files into the page cache.
        for i, turn in enumerate(by_turns(list(values), run.rounds_of(self) + 1)):
            side = Side([*self.command(run, turn), "--first-update"], hello=False)
            assert side.read()["first_update"]
            seconds = time.perf_counter() - side.start
            side.quit()
            if i >= len(values):
                values[turn].append(seconds)
        return values, {side: {} for side in values}

    def check(self, details):
        return None


class Memory(Training):
    """Measures the peak resident memory of a process that trains one epoch."""

    unit, lower_is_better = "MiB", True

    def steps_of(self, run):
        return self.steps  # also with --quick, because the memory depends on the size of the data

    def measure(self, run):
        values = {side: [] for side in ["linkboy", *self.peers]}
        details = {side: {} for side in values}
        for turn in by_turns(list(values), run.rounds_of(self)):
            side = Side(self.command(run, turn))
            answer = side.ask("run")
            side.quit()
            values[turn].append(answer["peak_bytes"] / MEBIBYTE)
            details[turn]["loss_after_warm_up"] = answer["loss"]
        data = self.steps_of(run) * MLP_BATCH_BYTES / MEBIBYTE
        for side, each in values.items():
            details[side]["median_without_data"] = statistics.median(each) - data
        return values, details


class Images(Training):
    """Measures samples per second of a loader that transforms images."""

    unit = "samples/s"

    program, arguments = "image_transforms", ()

    def measure(self, run):
        program = run.programs / f"linkboy_{self.program}"
        if not program.exists():
            raise NotBuilt(program)
        peer = HERE / "peers" / f"{self.program}.py"
        sides = {"linkboy": Side([program, *self.arguments], hello=False),
                 "torchvision": Side([sys.executable, peer, *self.arguments], hello=False)}
        values = {side: [] for side in sides}
        for i, turn in enumerate(by_turns(list(sides), run.rounds_of(self) + 1)):
            answer = sides[turn].ask("go")
            if i >= len(sides):  # the first round is a warm-up
                values[turn].append(answer["samples_per_second"])
        for side in sides.values():
            side.quit()
        return values, {side: {} for side in values}

    def check(self, details):
        return None


class JpegImages(Images):
    """Measures samples per second of a loader that decodes, resizes and crops JPEG files."""

    program = "image_folder"

    def measure(self, run):
        peer = HERE / "peers" / "image_folder.py"
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, peer, folder, "--make"], check=True)
            self.arguments = [folder, *(["--train"] if self.work == "train" else [])]
            return super().measure(run)


class Inference(Training):
    """Measures samples per second of an exported model. `work` is the number of samples of a batch."""

    unit = "samples/s"

    def command(self, run, side, workers=0):
        common = [self.folder, "--batch", self.work, "--threads", self.threads, "--steps", self.steps_of(run)]
        if side in ("linkboy", "eager"):
            side = "exported" if side == "linkboy" else side
            return [self.program, *common, "--side", side]
        return [sys.executable, HERE / "peers" / "inference.py", *common, "--side", side.removeprefix("python_")]

    def choose_workers(self, run, side):
        """Warms a side up. There are no workers."""
        process = Side(self.command(run, side))
        turns = [process.ask("run") for _ in range(WARM_UP_TURNS)]
        return process, {"loss_after_warm_up": turns[-1]["loss"]}

    def measure(self, run):
        self.program, self.units_per_step = run.programs / "linkboy_inference", self.work
        if not self.program.exists():
            raise NotBuilt(self.program)
        with tempfile.TemporaryDirectory() as self.folder:
            # The peers' Python has the packages that the export to ONNX needs.
            subprocess.run([self.program, self.folder, "--make", "--batch", str(self.work)], check=True,
                           env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "LINKBOY_PYTHON": sys.executable})
            return super().measure(run)

    def check(self, details):
        values = [side["loss_after_warm_up"] for side in details.values()]
        if not max(values) - min(values) <= 1e-5:
            return f"the means of the outputs differ: {values}"
        return None


class NotBuilt(Exception):
    pass


ROWS = {
    "mlp": Training("MLP 784-128-64-10, batch 64", "mlp", steps=938, rounds=11, threads=1,
                    targets={"bare": 2.0, "accelerated": 2.5, "lightning": 4.0},
                    shown=["bare_not_fused", "lightning_log_loss"]),
    "cnn": Training("CNN of two 5x5 convolutions, batch 64", "cnn", steps=300, rounds=7, threads=2,
                    targets={"accelerated": 1.25, "lightning": 1.25}),
    "mlp_compiled": Training("MLP 784-128-64-10, batch 64, compiled", "mlp", steps=938, rounds=11, threads=1,
                             targets={"eager": 1.2, "bare": 2.0, "torch_compile": 2.0, "lightning": 5.0, "jax": 1.1,
                                      "jax_scan": 1.0}, execution="compiled"),
    "cnn_compiled": Training("CNN of two 5x5 convolutions, batch 64, compiled", "cnn", steps=300, rounds=7, threads=2,
                             targets={"eager": 1.3, "bare": 1.3, "torch_compile": 1.3, "jax": 1.3},
                             execution="compiled"),
    "gpt_compiled": Training("GPT of 4 layers, width 128, 64 tokens, batch 8, compiled", "gpt", steps=150, rounds=7,
                             threads=2, targets={"eager": 1.05, "bare": 1.05, "torch_compile": 1.05, "jax": 1.05},
                             execution="compiled"),
    "resnet18": Training("ResNet-18 for 32x32, batch 32", "resnet18", steps=10, rounds=7, threads=2,
                         targets={"bare": 1.0}),
    "start": FirstUpdate("program start to end of first update (MLP)", "mlp", steps=10, rounds=11,
                         threads=1, targets={"accelerated": 0.3}),
    "memory": Memory("peak resident memory (MLP, one epoch)", "mlp", steps=938, rounds=5, threads=1,
                     targets={"accelerated": 0.6}),
    "step": OptimizerSteps("fused AdamW over 1,000 tensors of 16x16", "step", steps=200, rounds=11,
                           threads=1, targets={"bare": 1.0}),
    "images": Images("crop, flip, normalise from uint8, 2 workers", "images", steps=0, rounds=7,
                     threads=1, targets={"torchvision": 5.0}),
    "jpeg": JpegImages("JPEG decode, resize, centre crop, normalise, 2 workers", "evaluate", steps=0, rounds=7,
                       threads=1, targets={"torchvision": 1.5}),
    "jpeg_train": JpegImages("JPEG decode, random resized crop, flip, normalise, 2 workers", "train", steps=0,
                             rounds=7, threads=1, targets={"torchvision": 1.5}),
    "inference": Inference("exported CNN, batch 64", 64, steps=200, rounds=7, threads=2, targets={},
                           shown=["eager", "python_eager", "jit", "onnxruntime"]),
    "inference_one": Inference("exported CNN, batch 1", 1, steps=2000, rounds=7, threads=1, targets={},
                               shown=["eager", "python_eager", "jit", "onnxruntime"]),
}


# Programs that compare linkboy with a hand-written loop or with itself, and print their own table.
PROGRAMS = {"overhead": "linkboy_overhead", "loop": "linkboy_loop_overhead"}


def by_turns(names, rounds):
    for round in range(rounds):
        for i in range(len(names)):
            yield names[(round + i) % len(names)]


def compare(row, values):
    """Returns the ratios of linkboy to each peer, computed within each round."""
    ratios = []
    for peer in values:
        if peer == "linkboy":
            continue
        each = [ours / theirs for ours, theirs in zip(values["linkboy"], values[peer])]
        median, target = statistics.median(each), row.targets.get(peer)
        met = target and (median <= target if row.lower_is_better else median >= target)
        ratios.append({"peer": peer, "median": median, "least": min(each), "most": max(each),
                       "target": target, "met": met})
    return ratios


class Run:
    def __init__(self, options):
        self.programs, self.rounds, self.quick = options.programs, options.rounds, options.quick

    def rounds_of(self, row):
        return self.rounds or (2 if self.quick else row.rounds)


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()
    except OSError:
        return ""


def describe_machine():
    fields = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": f"{fields.get('model name', platform.machine())}, family {fields.get('cpu family')} "
               f"model {fields.get('model')}, {fields.get('cpu MHz')} MHz",
        "cpus": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30), 1),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }


def describe_software(programs):
    program = programs / "linkboy_workloads"
    if not program.exists():
        sys.exit(f"{program} does not exist. Build it with scripts/maintain/benchmark, or name its folder with "
                 "--programs.")
    side = Side([program, "step", "--steps", 1])
    side.quit()
    commit = output_of("git", "rev-parse", "--short", "HEAD")
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "linkboy": commit + (" with changes" if changed else ""),
        "libtorch": side.hello["torch"],
        "compiler": side.hello["compiler"],
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def print_row(name, row, result):
    rounds = len(result["sides"]["linkboy"]["values"])
    threads = f", {row.threads} thread{'s'[:row.threads > 1]}" if not isinstance(row, Images) else ""
    print(f"\n{name}: {row.title}{threads} ({rounds} rounds)")
    for side, told in result["sides"].items():
        notes = [f"{told['workers']} workers"] if "workers" in told else []
        if "loss_after_warm_up" in told:
            notes.append(f"check value {told['loss_after_warm_up']:.4g}")
        if "median_without_data" in told:
            notes.append(f"{told['median_without_data']:.4g} without the dataset")
        print(f"  {NAMES.get(side, side):28} {told['median']:12.4g} {row.unit:10} {', '.join(notes)}")
    for ratio in result["ratios"]:
        target = ""
        if ratio["target"]:
            sign = "<=" if row.lower_is_better else ">="
            target = f"target {sign} {ratio['target']}: {'met' if ratio['met'] else 'MISSED'}"
        print(f"  linkboy / {NAMES.get(ratio['peer'], ratio['peer']):28} {ratio['median']:8.3f}   "
              f"{ratio['least']:.3f}..{ratio['most']:.3f}   {target}")
    if result["problem"]:
        print(f"  PROBLEM: {result['problem']}")
    sys.stdout.flush()


def parse_options():
    parser = argparse.ArgumentParser()
    rows = [*PROGRAMS, *ROWS]
    parser.add_argument("--only", nargs="+", choices=rows, metavar="ROW", default=rows,
                        help=", ".join(rows))
    parser.add_argument("--rounds", type=int, help="number of rounds; the default depends on the row")
    parser.add_argument("--threads", type=int, help="number of threads of each side; the default depends on the row")
    parser.add_argument("--quick", action="store_true",
                        help="run only 2 short rounds, to check that everything works")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file for the values of all rounds")
    parser.add_argument("--programs", type=pathlib.Path,
                        default=HERE.parent / "build" / "release" / "benchmarks")
    parser.add_argument("--only-check-options", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("rounds", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1")
    if options.only_check_options:
        sys.exit()
    return options


def main():
    options = parse_options()
    run = Run(options)
    report = {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
              "command": shlex.join(sys.argv), "machine": describe_machine(),
              "software": describe_software(options.programs), "rows": {}}
    for title in ("date", "command"):
        print(f"{title}: {report[title]}")
    for title in ("machine", "software"):
        print(f"{title}: " + ", ".join(f"{name} {value}" for name, value in report[title].items()))
    if report["machine"]["load_before"] > 0.5:
        print("warning: the machine is not idle; the ratios below may be off")
    if any(run.rounds_of(ROWS[name]) < LEAST_ROUNDS for name in options.only if name in ROWS):
        print(f"warning: fewer than {LEAST_ROUNDS} rounds are not a measurement; they only show that it works")

    for name in options.only:
        if name in PROGRAMS:
            print(f"\n{name}: {PROGRAMS[name]}", flush=True)
            table = subprocess.run([options.programs / PROGRAMS[name]], check=True, text=True,
                                   stdout=subprocess.PIPE).stdout
            print(table, end="", flush=True)
            report["rows"][name] = {"table": table.splitlines(), "problem": None}
            continue
        row = ROWS[name]
        row.threads = options.threads or row.threads
        try:
            values, details = row.measure(run)
        except NotBuilt as missing:
            print(f"\n{name}: {row.title}: skipped, because {missing} is not built")
            continue
        result = {
            "title": row.title, "unit": row.unit, "threads": row.threads,
            "steps": row.steps_of(run), "ratios": compare(row, values),
            "sides": {side: {"median": statistics.median(each), "values": each, **details[side]}
                      for side, each in values.items()},
            "problem": row.check(details),
        }
        report["rows"][name] = result
        print_row(name, row, result)
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(any(result["problem"] for result in report["rows"].values()))


if __name__ == "__main__":
    main()
