"""The Python side of handover_test.cpp: trains the example's models before and after a checkpoint.

    handover_peer.py start FOLDER     trains, writes FOLDER/CASE.pt after a few updates, and continues
    handover_peer.py continue FOLDER  loads FOLDER/CASE.pt over different weights and options; continues

Prints JSON: for every case, the losses after the checkpoint and the sums of the final tensors. Images
are computed with integer arithmetic and exact float operations, so that C++ can create the same
ones without a file.
"""

import json
import sys

import torch
from fashion_mnist_models import MODELS
from python_peer import sequence
from torch import nn

UPDATES_BEFORE = 3
# Samples per batch, width of the images, and updates after the checkpoint. The ResNet is slow, but accepts any width.
SHAPES = {"mlp": (8, 28, 20), "cnn": (8, 28, 20), "resnet18": (2, 16, 4)}
# Stepped like linkboy does it: with the fused kernels, or with the same operations in the same order.
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"fused": True},
            {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3}),
    "adam": (torch.optim.Adam, {"fused": True},
             {"lr": 1e-3, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 1e-3}),
    "adamw": (torch.optim.AdamW, {"fused": True},
              {"lr": 2e-3, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.05}),
    "adagrad": (torch.optim.Adagrad, {"fused": True},
                {"lr": 0.01, "lr_decay": 0.05, "eps": 1e-7, "weight_decay": 1e-3}),
    "rmsprop": (torch.optim.RMSprop, {"foreach": False},
                {"lr": 1e-4, "alpha": 0.9, "eps": 1e-7, "momentum": 0.5, "weight_decay": 1e-3}),
}


def train(model_name, optimizer_name, path, starts):
    # The side that continues starts with different weights and options, so it needs all of the checkpoint.
    torch.manual_seed(1 if starts else 2)
    model = MODELS[model_name]()
    make_optimizer, implementation, options = OPTIMIZERS[optimizer_name]
    # The side that continues gets the implementation from the checkpoint only.
    optimizer = make_optimizer(model.parameters(),
                               **({**options, **implementation} if starts else {"lr": 1.0}))
    if not starts:
        checkpoint = torch.load(path, weights_only=True)
        model.load_state_dict(checkpoint["model_state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer_state_dict"])

    batch, width, updates_after = SHAPES[model_name]
    samples = (UPDATES_BEFORE + updates_after) * batch
    images = sequence(samples * width * width, 7).reshape(samples, 1, width, width)
    labels = torch.arange(samples) * 7 % 10
    losses = []
    model.train()
    for i in range(0 if starts else UPDATES_BEFORE, UPDATES_BEFORE + updates_after):
        if starts and i == UPDATES_BEFORE:
            torch.save({"model_state_dict": model.state_dict(),
                        "optimizer_state_dict": optimizer.state_dict()}, path)
        rows = slice(i * batch, (i + 1) * batch)
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    sums = [tensor.double().sum().item() for tensor in model.state_dict().values()]
    return {"losses": losses[-updates_after:], "sums": sums}


def main():
    command, folder = sys.argv[1:]
    torch.set_num_threads(1)
    outcomes = {}
    for model in MODELS:
        for optimizer in OPTIMIZERS:
            case = f"{model}-{optimizer}"
            outcomes[case] = train(model, optimizer, f"{folder}/{case}.pt", command == "start")
    print(json.dumps(outcomes, allow_nan=False))


if __name__ == "__main__":
    main()
