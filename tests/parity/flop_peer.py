"""Writes TorchScript models into a folder. For each, prints a line with the file's name, the input's
shape and the FLOPs of PyTorch's own counter:

    flop_peer.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.attention(x, x, x)[0])


def models():
    yield "mlp", nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4)), (5, 6)
    yield "convolutions", nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, groups=2), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2),
        nn.ConvTranspose2d(6, 5, 3, stride=2), nn.Flatten(), nn.LazyLinear(3)), (2, 4, 9, 9)
    yield "sequence", nn.Sequential(
        nn.Conv1d(3, 7, 5, dilation=2), nn.ConvTranspose1d(7, 4, 3, groups=1)), (3, 3, 20)
    yield "attention", SelfAttention(), (3, 7, 8)


def main():
    folder = Path(sys.argv[1])
    for name, model, shape in models():
        x = torch.randn(shape)
        model(x)
        with torch.no_grad():
            torch.jit.trace(model, x).save(folder / f"{name}.pt")
            with FlopCounterMode(display=False) as counter:
                model(x)
        print(name, counter.get_total_flops(), *shape)


main()
