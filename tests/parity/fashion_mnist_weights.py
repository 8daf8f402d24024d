"""Prints the initial weights of Python's models for seed 0, for fashion_mnist_models_test.cpp.

The output is JSON: for each model, and each weight with more than one dimension, the sum of its absolute values.
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
