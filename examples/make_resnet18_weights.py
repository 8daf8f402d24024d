"""Writes random ResNet-18 weights in torchvision's file format. Does not need torchvision.

    python3 make_resnet18_weights.py FILE [--seed N]

The weights that were trained on ImageNet are at
https://download.pytorch.org/models/resnet18-f37072fd.pth. fine_tuning accepts either file.
"""

import argparse
import collections
import math

import torch


def add_conv(state, name, inputs, outputs, kernel):
    """Adds a weight with Kaiming initialisation, like torchvision."""
    std = math.sqrt(2.0 / (outputs * kernel * kernel))
    state[f"{name}.weight"] = torch.randn(outputs, inputs, kernel, kernel) * std


def add_batch_norm(state, name, channels):
    state[f"{name}.weight"] = torch.ones(channels)
    state[f"{name}.bias"] = torch.zeros(channels)
    state[f"{name}.running_mean"] = torch.zeros(channels)
    state[f"{name}.running_var"] = torch.ones(channels)
    state[f"{name}.num_batches_tracked"] = torch.tensor(0)


def resnet18_state(num_classes=1000):
    state = collections.OrderedDict()
    add_conv(state, "conv1", 3, 64, 7)
    add_batch_norm(state, "bn1", 64)
    inputs = 64
    for layer, outputs in enumerate([64, 128, 256, 512], start=1):
        for block in range(2):
            name = f"layer{layer}.{block}"
            add_conv(state, f"{name}.conv1", inputs, outputs, 3)
            add_batch_norm(state, f"{name}.bn1", outputs)
            add_conv(state, f"{name}.conv2", outputs, outputs, 3)
            add_batch_norm(state, f"{name}.bn2", outputs)
            if inputs != outputs:
                add_conv(state, f"{name}.downsample.0", inputs, outputs, 1)
                add_batch_norm(state, f"{name}.downsample.1", outputs)
            inputs = outputs
    bound = 1.0 / math.sqrt(inputs)
    state["fc.weight"] = torch.empty(num_classes, inputs).uniform_(-bound, bound)
    state["fc.bias"] = torch.empty(num_classes).uniform_(-bound, bound)
    return state


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.save(resnet18_state(), arguments.file)


if __name__ == "__main__":
    main()
