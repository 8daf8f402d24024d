#!/usr/bin/env python3
"""Checks that the folders follow the architecture:

- every folder is in a layer, and its files include only files of the same folder and of lower layers;
- a scheduler or a metric includes only headers of the folders in SEES;
- headers of CUDA, NCCL, Gloo and c10d are included only in src/;
- <linkboy/FOLDER.hpp> includes all public headers of FOLDER, and <linkboy/linkboy.hpp> everything;
- a test file in C++ has at most 400 lines, and an example of one file at most 80;
- tests/README.md names each folder of tests/ and each file of tests/support/.

    check_includes.py ROOT    prints each violation; exits with 1 if there are any
"""

import pathlib
import re
import sys

# From the lowest layer to the highest. Folders in the same layer do not include each other.
LAYERS = ["util",
          "checkpoint",
          "model data profiling",
          "run memory",
          "distributed",
          "extend",
          "precision",
          "accelerator",
          "trainer",
          "fine_tuning",
          "callbacks compile metrics schedulers tracking vision",
          "cli"]
LAYER = {folder: layer for layer, folders in enumerate(LAYERS) for folder in folders.split()}
# The layers of headers directly in include/linkboy. All others there are umbrella headers.
ROOT_HEADERS = {"error": "util", "export": "util", "version": "util", "model": "model", "loss_function": "model",
                "callback": "run", "scheduler": "run", "metric": "extend", "accelerator": "accelerator",
                "engine": "accelerator", "trainer": "trainer"}
# Headers in a lower layer than their folder, which can include only what that layer allows.
LOWER = {"callbacks/default_callbacks.hpp": "run"}
SEES = {"schedulers": {"schedulers", "run", "extend", "util"}, "metrics": {"metrics", "extend", "util"}}
SIBLINGS = ("callbacks", "metrics", "schedulers")  # headers and sources in one top-level folder
NOT_IN_EVERYTHING = {"linkboy", "cli", "compile", "metrics", "tracking", "vision"}  # the others are separate libraries
MOST_LINES = {"tests/**/*.hpp": 400, "tests/**/*.cpp": 400, "examples/*.cpp": 80, "examples/tutorials/*.cpp": 80}
SYSTEM_IN_SRC_ONLY = re.compile(r"cuda|nccl|gloo|c10d|torch/csrc/distributed", re.IGNORECASE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)', re.MULTILINE)


def folder_of(path):
    """Returns the folder of a path like include/linkboy/trainer.hpp, linkboy/data/batch.hpp, data/hash_pair.hpp or
    src/data/hash_pair.hpp; an empty value for an umbrella header."""
    parts = [part for part in pathlib.PurePath(path).parts if part not in ("include", "linkboy", "src")]
    if "/".join(parts) in LOWER:
        return LOWER["/".join(parts)]
    return parts[0] if len(parts) > 1 else ROOT_HEADERS.get(pathlib.PurePath(path).stem)


def offences(root):
    files = [file for folder in ("include", "src", *SIBLINGS)
             for pattern in ("*.hpp", "*.cpp") for file in sorted((root / folder).rglob(pattern))]
    assert len(files) > 50, f"only {len(files)} files were found in {root}"
    for file in files:
        name = file.relative_to(root).as_posix()
        folder = folder_of(name)
        if folder is None and name.startswith("include/linkboy/"):
            continue  # an umbrella header
        if folder not in LAYER:
            yield f"{name} is not in a folder of {sorted(LAYER)}"
            continue
        for bracket, target in INCLUDE.findall(file.read_text()):
            if bracket == "<":
                if target.startswith("linkboy/"):
                    yield f"{name} includes <{target}>; write it in quotes"
                if SYSTEM_IN_SRC_ONLY.search(target) and not name.startswith("src/"):
                    yield f"{name} includes {target}, which only src/ may include"
                continue
            if "/" not in target:
                target = f"{folder}/{target}"
            if not target.startswith("linkboy/") and not name.startswith("src/"):
                yield f"{name} includes the private {target}"
                continue
            other = folder_of(target)
            if other not in LAYER:
                yield f"{name} includes {target}, which is an umbrella header or not in a folder"
            elif other not in SEES.get(folder, {other}):
                yield f"{name} includes {target}; it may only include {sorted(SEES[folder])}"
            elif other != folder and LAYER[other] >= LAYER[folder]:
                yield f"{name} includes {target}, which is not in a lower layer"


def missing_from_umbrellas(root):
    public = root / "include/linkboy"

    def lacks(umbrella, headers):
        path = public / umbrella
        included = set(INCLUDE.findall(path.read_text())) if path.exists() else set()
        for header in sorted(headers):
            if ('"', header) not in included:
                yield f"include/linkboy/{umbrella} does not include {header}"

    folders = [folder for folder in public.iterdir() if folder.is_dir()] + [root / name for name in SIBLINGS]
    for folder in folders:
        yield from lacks(f"{folder.name}.hpp",
                         [f"linkboy/{folder.name}/{header.name}" for header in folder.glob("*.hpp")])
    yield from lacks("linkboy.hpp", [f"linkboy/{header.name}" for header in public.glob("*.hpp")
                                     if header.stem not in NOT_IN_EVERYTHING])


def too_long(root):
    for pattern, most in MOST_LINES.items():
        files = sorted(root.glob(pattern))
        assert files, f"no {pattern} was found in {root}"
        for file in files:
            count = len(file.read_text().splitlines())
            if count > most:
                yield (f"{file.relative_to(root).as_posix()} has {count} lines; at most {most} are allowed; "
                       "split it by subject")


def missing_from_readme(root):
    tests = root / "tests"
    text = (tests / "README.md").read_text()
    names = [f"{path.name}/" for path in tests.glob("[a-z]*") if path.is_dir()]
    names += [path.name for suffix in ("hpp", "cpp", "py") for path in (tests / "support").glob(f"*.{suffix}")]
    for name in sorted(names):
        if f"`{name}`" not in text:
            yield f"tests/README.md does not name `{name}`"


def main():
    root = pathlib.Path(sys.argv[1])
    found = [*offences(root), *missing_from_umbrellas(root), *too_long(root), *missing_from_readme(root)]
    print("\n".join(found) or
          "all includes follow the architecture, no file is too long, and tests/README.md is up to date")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
