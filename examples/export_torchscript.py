"""The Python side of torchscript.cpp: exports a model, and evaluates what was made of it.

    python3 export_torchscript.py model.pt
    torchscript --model model.pt --output trained
    python3 export_torchscript.py --check trained

The last command fails if the scores of the test images differ from those in C++.
"""

import argparse
import pathlib
import sys

import torch
from torch import nn


class Net(nn.Module):
    """Images [N, 3, 28, 28] to scores [N, 4]."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 7 * 7, 4))

    def forward(self, images):
        return self.head(self.features(images))


def export(path):
    torch.manual_seed(0)
    # Not torch.jit.trace, which would fix dropout and batch norm in one of their two modes; nor
    # torch.jit.freeze, which leaves no parameters to train.
    torch.jit.script(Net()).save(path)


def check(folder):
    """Whether the trained model gives the scores here that it gave in C++."""
    model = torch.jit.load(folder / "model.pt").eval()
    test = torch.load(folder / "test_set.pt", weights_only=True)
    with torch.no_grad():
        scores = model((test["images"] / 255 - 0.4) / 0.25)
    accuracy = (scores.argmax(dim=1) == test["classes"]).double().mean().item()
    print(f"accuracy: {accuracy:.3f}")
    return torch.allclose(scores, test["scores"], rtol=1e-4, atol=1e-4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", nargs="?", metavar="FILE", help="where to write the model")
    what.add_argument("--check", type=pathlib.Path, metavar="FOLDER",
                      help="the --output of torchscript")
    arguments = parser.parse_args()
    if arguments.check is None:
        export(arguments.file)
    elif not check(arguments.check):
        sys.exit("the scores are not those of C++")


if __name__ == "__main__":
    main()
