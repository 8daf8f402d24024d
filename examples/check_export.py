"""The Python side of export.cpp: runs the exported models and compares their scores with those of C++.

    python3 check_export.py output/export

python3 must be a Python with torch, such as the one with which LibTorch was installed. It has no code of the model. The
package needs the same version of torch, and ONNX needs onnxruntime.
"""

import argparse
import logging
import pathlib
import sys

import torch


def run_package(path):
    return torch._inductor.aoti_load_package(str(path))


def run_program(path):
    return torch.export.load(path).module()


def run_onnx(path):
    import onnxruntime
    session = onnxruntime.InferenceSession(path)
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def main(folder):
    logging.disable(logging.WARNING)  # torch says that it finds no CUDA
    if not (folder / "test_set.pt").exists():
        sys.exit(f"{folder} has no test_set.pt; name the folder that export has written")
    test = torch.load(folder / "test_set.pt", weights_only=True)
    for name, load in {"package.pt2": run_package, "program.pt2": run_program, "model.onnx": run_onnx}.items():
        if not (folder / name).exists():
            continue
        model = load(folder / name)
        for count in (1, 7, 200):
            scores = model(test["images"][:count])
            if not torch.allclose(scores, test["scores"][:count], rtol=1e-4, atol=1e-4):
                sys.exit(f"{name}: the scores of {count} images differ from those of C++")
        print(f"{name}: equal scores")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="the folder of exported models: --output of export")
    main(parser.parse_args().folder)
