"""Prints what models_test.cpp expects of freshly made models: per model, from seed 0, the sum of the
absolute values of its first and its last weight, as Python's PyTorch makes them.

Run with PyTorch 2.11.0 (its Python needs no torchvision).
"""

import torch
from fashion_mnist_models import MODELS
from torch import nn


if __name__ == "__main__":
    print("PyTorch", torch.__version__)
    for name, make in MODELS.items():
        torch.manual_seed(0)
        weights = [p for p in make().parameters() if p.dim() > 1]
        sums = [weight.detach().double().abs().sum().item() for weight in (weights[0], weights[-1])]
        print(name, *sums)
    torch.manual_seed(0)
    late = [module for module in MODELS["resnet18"]().modules() if isinstance(module, nn.Conv2d)][-1]
    print("resnet18 last convolution", late.weight.detach().double().abs().sum().item())
