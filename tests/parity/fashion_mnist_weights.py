"""Prints the weights of freshly made models as Python's PyTorch makes them from seed 0, for fashion_mnist_models_test.cpp.

As JSON: per model, and per weight of more than one dimension, the sum of the absolute values.
"""

import json

import torch
from fashion_mnist_models import MODELS


def absolute_sums(model):
    return {name: parameter.detach().double().abs().sum().item()
            for name, parameter in model.named_parameters() if parameter.dim() > 1}


if __name__ == "__main__":
    sums = {}
    for name, make in MODELS.items():
        torch.manual_seed(0)
        sums[name] = absolute_sums(make())
    print(json.dumps(sums))
