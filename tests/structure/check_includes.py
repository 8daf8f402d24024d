#!/usr/bin/env python3
"""Checks that includes point downwards: callbacks and metrics -> trainer -> options -> {accelerator,
callback, scheduler, data, checkpoint, model} -> foundations -> LibTorch; that schedulers see the
scheduler, placeholders, run configuration, metric reader and errors only; and that CUDA, NCCL, Gloo and c10d
headers appear in src/ only. And that linkboy.hpp includes all public headers.

    check_includes.py ROOT    prints each offence, exits 1 if there is one
"""

import pathlib
import re
import sys

LAYERS = [
    ["export", "version", "error", "printable", "message_of", "guarded_dict", "gradients", "divide_up", "parse_number", "text_options", "status_line",
     "state_dict", "sampler", "stop_training", "run_config", "distributed_options",
     "process_group"],
    ["batch", "step_output", "placeholders", "loss_tracker", "run_history", "checkpoint", "safetensors",
     "loss_function", "model", "callback", "scheduler", "dataset", "data_loader", "param_group_field",
     "name_options", "parse_run_value", "training_state", "metric_reader",
     "deferred_value", "grad_scaler", "stage_range", "activation_checkpoint", "image_transforms",
     "sync_batch_norm", "stop_control", "limited_loader", "tracker", "csv_tracker",
     "json_lines_tracker", "html_report", "tensorboard_tracker", "mlflow_tracker", "layer_groups",
     "model_freezer", "parameter_groups", "memory_use", "recomputation_guards",
     "saved_tensor_packer"],
    ["accelerator", "options", "cli", "main_process"],
    ["trainer", "run_setup", "trainer_state", "trainer_losses"],
    ["run_snapshot", "lr_finder", "batch_size_finder"],
    ["linkboy"],
]
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names}
FOLDERS = {"checkpoint": 1, "data": 1, "precision": 1, "distributed": 1, "tracking": 1,
           "callbacks": 5, "metrics": 4}
SCHEDULERS_SEE = {"scheduler", "placeholders", "run_config", "error", "export", "metric_reader",
                  "text_options"}
EVERYTHING = "include/linkboy/linkboy.hpp"
SYSTEM_IN_SRC_ONLY = re.compile(r"cuda|nccl|gloo|c10d|torch/csrc/distributed", re.IGNORECASE)


def layer_of(path):
    """The layer of a path like linkboy/trainer.hpp, callbacks/x.hpp or data/mix.hpp."""
    parts = pathlib.PurePath(path).parts
    folders = [part for part in parts[:-1] if part in FOLDERS]
    return FOLDERS[folders[-1]] if folders else LAYER[pathlib.PurePath(path).stem]


def offences(root):
    files = [file for folder in ("include", "src", "callbacks", "schedulers", "metrics")
             for pattern in ("*.hpp", "*.cpp") for file in (root / folder).rglob(pattern)]
    assert len(files) > 50, f"only {len(files)} files were found in {root}"
    for file in files:
        name = file.relative_to(root).as_posix()
        for line in file.read_text().splitlines():
            match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)', line)
            if not match:
                continue
            target = match.group(2)
            if match.group(1) == "<":
                if SYSTEM_IN_SRC_ONLY.search(target) and not name.startswith("src/"):
                    yield f"{name} includes {target}, which belongs in src/ only"
                continue
            if "/" not in target:
                target = pathlib.PurePath(name).with_name(target).as_posix()
            if not target.startswith("linkboy/") and not name.startswith("src/"):
                yield f"{name} includes the private {target}"
                continue
            if name.startswith("schedulers/"):
                stem = pathlib.PurePath(target).stem
                if "schedulers/" not in target and stem not in SCHEDULERS_SEE:
                    yield f"{name} includes {target}; a scheduler sees {sorted(SCHEDULERS_SEE)} only"
                continue
            if "schedulers/" in target:
                if name != EVERYTHING:
                    yield f"{name} includes {target}; nothing but a program does"
            elif layer_of(target) > layer_of(name):
                yield f"{name} includes {target}, which stands above it"


def missing_from_everything(root):
    included = set(re.findall(r'#include "(linkboy/[^"]+)"', (root / EVERYTHING).read_text()))
    public = [f"linkboy/{file.name}" for file in (root / "include/linkboy").glob("*.hpp")]
    public += [f"linkboy/{folder}/{file.name}" for folder in ("callbacks", "metrics", "schedulers")
               for file in (root / folder).glob("*.hpp")]
    for header in sorted(set(public) - included - {"linkboy/linkboy.hpp", "linkboy/cli.hpp"}):
        yield f"{EVERYTHING} lacks {header}"


def main():
    root = pathlib.Path(sys.argv[1])
    found = [*offences(root), *missing_from_everything(root)]
    print("\n".join(found) or "all includes point downwards")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
