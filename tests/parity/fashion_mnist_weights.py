"""Prints what models_test.cpp expects of freshly made models: per model, from seed 0, the sum of the
absolute values of its first and its last weight, as Python's PyTorch makes them.

Run with PyTorch 2.11.0 (its Python needs no torchvision).
"""

import torch
from torch import nn


def mlp():
    return nn.Sequential(
        nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def cnn():
    def block(inside, outside):
        return (
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    return nn.Sequential(
        *block(1, 16),
        *block(16, 32),
        nn.Flatten(),
        nn.Linear(1568, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def resnet18():
    """The layers that draw random numbers, in the order in which torchvision makes them."""

    def conv(inside, outside, kernel):
        return nn.Conv2d(inside, outside, kernel, bias=False)

    class Block(nn.Module):
        def __init__(self, inside, outside, downsample):
            super().__init__()
            self.conv1 = conv(inside, outside, 3)
            self.conv2 = conv(outside, outside, 3)
            self.downsample = downsample

    def layer(inside, outside):
        downsample = conv(inside, outside, 1) if inside != outside else None
        return nn.Sequential(Block(inside, outside, downsample), Block(outside, outside, None))

    channels = [64, 64, 128, 256, 512]
    layers = [conv(1, 64, 3)]
    layers += [layer(inside, outside) for inside, outside in zip(channels, channels[1:])]
    model = nn.Sequential(*layers, nn.Linear(512, 10))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


if __name__ == "__main__":
    print("PyTorch", torch.__version__)
    for make in (mlp, cnn, resnet18):
        torch.manual_seed(0)
        weights = [p for p in make().parameters() if p.dim() > 1]
        sums = [weight.detach().double().abs().sum().item() for weight in (weights[0], weights[-1])]
        print(make.__name__, *sums)
    torch.manual_seed(0)
    late = [module for module in resnet18().modules() if isinstance(module, nn.Conv2d)][-1]
    print("resnet18 last convolution", late.weight.detach().double().abs().sum().item())
