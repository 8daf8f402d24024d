"""The Python sides of the rows on inference. See inference.cpp for the files in FOLDER and the work.

    inference.py FOLDER --side eager|jit|onnxruntime --steps N [--batch N] [--threads N]
"""

import argparse
import pathlib

import torch

from models import Cnn
from turns import serve


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--side", choices=["eager", "jit", "onnxruntime"], required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.set_defaults(first_update=False)
    return parser.parse_args()


def load_model(arguments):
    model = Cnn()
    model.load_state_dict(torch.load(arguments.folder / "weights.pt"))
    return model.eval()


def load_frozen(arguments, images):
    model = torch.jit.freeze(torch.jit.trace(load_model(arguments), images))
    return torch.jit.optimize_for_inference(model)


def load_session(arguments):
    """Returns a function of an array, which is the type of inputs and outputs of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    session = onnxruntime.InferenceSession(arguments.folder / "model.onnx", options,
                                           providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda array: session.run(None, {name: array})[0]


@torch.inference_mode()
def infer(arguments, turns):
    torch.manual_seed(1)
    images = torch.randn(arguments.batch, 1, 28, 28)
    if arguments.side == "onnxruntime":
        model, images = load_session(arguments), images.numpy()
    else:
        model = load_frozen(arguments, images) if arguments.side == "jit" else load_model(arguments)
    turns.ready()
    while True:
        turns.begin()
        for _ in range(arguments.steps):
            output = model(images)
        turns.end(lambda: float(output.mean()))


if __name__ == "__main__":
    serve(infer, parse_arguments())
