#!/usr/bin/env python3
"""Trains the models of the parity tests with Python's PyTorch and prints the results.

    python_peer.py all           prints losses and sums of the final tensors for every case, as JSON
    python_peer.py --golden DIR  writes DIR/CASE.json for every case, with the version of PyTorch

Data and weights are computed with integer arithmetic and exact float operations, so that C++ can
create the same ones without a file.
"""

import json
import math
import pathlib
import sys

import torch
from torch import nn

SAMPLES, BATCH, EPOCHS = 52, 4, 2
CASES = [
    f"{model}-{optimizer}-{accumulation}-{extra}"
    for model in ("mlp", "cnn")
    for optimizer in ("sgd", "adamw")
    for accumulation in (1, 4)
    for extra in ("plain", "clip_value", "clip_norm", "cosine")
]


def sequence(count, start):
    """Returns multiples of 2**-15 in [-1, 1), which are exact in float32."""
    index = torch.arange(start, start + count, dtype=torch.int64)
    return ((index * 40503 + 12345) % 65536 - 32768).to(torch.float32) / 32768


def make_model(name):
    if name == "mlp":
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16),
                              nn.ReLU(), nn.Linear(16, 10))
    else:
        model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
                              nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8),
                              nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 10))
    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            values = sequence(parameter.numel(), start).reshape(parameter.shape)
            parameter.copy_(values * 0.25 if parameter.dim() > 1 else values * 0.125 + 0.5)
            start += parameter.numel()
    return model


def train(case):
    torch.set_num_threads(1)
    model_name, optimizer_name, accumulation, extra = case.split("-")
    accumulation = int(accumulation)
    model = make_model(model_name)
    x = sequence(SAMPLES * 64, 7).reshape(SAMPLES, 1, 8, 8)
    y = torch.arange(SAMPLES) * 7 % 10
    if optimizer_name == "adamw":
        base, optimizer = 3e-3, torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    else:
        base, optimizer = 0.05, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9,
                                                weight_decay=1e-4, fused=True)
    batches = SAMPLES // BATCH
    total = EPOCHS * -(-batches // accumulation)
    updates, losses = 0, []
    model.train()
    for _ in range(EPOCHS):
        for i in range(batches):
            first = i // accumulation * accumulation
            window = min(accumulation, batches - first)
            rows = slice(i * BATCH, (i + 1) * BATCH)
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            losses.append(loss.item())
            (loss / window).backward()
            if i + 1 != first + window:
                continue
            if extra == "clip_value":
                nn.utils.clip_grad_value_(model.parameters(), 0.01)
            if extra == "clip_norm":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if extra == "cosine":
                for group in optimizer.param_groups:
                    group["lr"] = 1e-6 + 0.5 * (base - 1e-6) * (
                        1.0 + math.cos(math.pi * (updates / total)))
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
    sums = [tensor.double().sum().item() for tensor in model.state_dict().values()]
    return {"torch": torch.__version__, "losses": losses, "sums": sums}


def main():
    if sys.argv[1] == "--golden":
        folder = pathlib.Path(sys.argv[2])
        folder.mkdir(parents=True, exist_ok=True)
        for case in CASES:
            (folder / f"{case}.json").write_text(json.dumps(train(case)) + "\n")
    else:
        print(json.dumps({case: train(case) for case in CASES}))


if __name__ == "__main__":
    main()
