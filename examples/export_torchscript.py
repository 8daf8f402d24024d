"""The Python side of torchscript.cpp: exports a model, and evaluates the trained model.

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
    """Maps images [N, 3, 28, 28] to scores [N, 4]."""

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
    # torch.jit.trace would fix dropout and batch norm to one of their two modes, and
    # torch.jit.freeze would leave no parameters to train.
    torch.jit.script(Net()).save(path)


def check(folder):
    """Returns whether the trained model produces the same scores as in C++."""
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
                      help="evaluate the model in FOLDER, the --output of torchscript")
    arguments = parser.parse_args()
    if arguments.check is None:
        export(arguments.file)
    elif not check(arguments.check):
        sys.exit("the scores differ from those of C++")


if __name__ == "__main__":
    main()
