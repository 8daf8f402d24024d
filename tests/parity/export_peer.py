"""Runs exported models and compares their outputs with those of C++: export_peer.py FOLDER.

FOLDER has outputs.pt with "inputs" (a list of lists of tensors) and "outputs" (likewise), and a model in package.pt2,
program.pt2 or model.onnx. Prints JSON: for each model the largest difference, relative to the largest output.
"""

import json
import pathlib
import sys

import torch


def as_list(outputs):
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def load_package(path):
    return torch._inductor.aoti_load_package(str(path))


def load_program(path):
    return torch.export.load(path).module()


def load_onnx(path):
    import onnxruntime
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_inputs()]

    def run(*inputs):
        outputs = session.run(None, {name: value.numpy() for name, value in zip(names, inputs)})
        return [torch.from_numpy(each) for each in outputs]

    return run


def main(folder):
    expected = torch.load(folder / "outputs.pt", weights_only=True)
    differences = {}
    for name, load in {"package.pt2": load_package, "program.pt2": load_program, "model.onnx": load_onnx}.items():
        if not (folder / name).exists():
            continue
        model = load(folder / name)
        largest = 0.0
        for inputs, outputs in zip(expected["inputs"], expected["outputs"]):
            actual = as_list(model(*inputs))
            assert len(actual) == len(outputs), f"{name} has {len(actual)} outputs"
            for one, other in zip(actual, outputs):
                assert one.shape == other.shape, f"{name} returns {one.shape}, not {other.shape}"
                largest = max(largest, ((one - other).abs().max() / other.abs().max()).item())
        differences[name] = largest
    print(json.dumps(differences))


main(pathlib.Path(sys.argv[1]))
