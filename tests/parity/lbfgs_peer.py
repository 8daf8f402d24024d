#!/usr/bin/env python3
"""Trains a small regression with Python's torch.optim.LBFGS and prints its losses, for lbfgs_test.cpp.

    lbfgs_peer.py                         trains with each of the options and windows
    lbfgs_peer.py --continue CHECKPOINT   continues the training with a line search from a Trainer's checkpoint

The output is a list of cases: the optimizer's options, the number of batches in an accumulation window, and for each
update the mean loss before it, its number of evaluations, and the weights after it.
"""

import json
import sys

import torch


def run(options, window, checkpoint=None):
    torch.set_num_threads(1)
    inputs = torch.sin(torch.arange(96, dtype=torch.float64) * 0.7).reshape(24, 4)
    targets = torch.cos(torch.arange(24, dtype=torch.float64)).reshape(24, 1)
    weight = torch.nn.Parameter(torch.tensor([[0.3, -0.2, 0.5, 0.1]], dtype=torch.float64))
    bias = torch.nn.Parameter(torch.tensor([0.1], dtype=torch.float64))
    optimizer = torch.optim.LBFGS([weight, bias], **options)
    if checkpoint is not None:
        with torch.no_grad():
            weight.copy_(checkpoint["model_state_dict"]["weight"])
            bias.copy_(checkpoint["model_state_dict"]["bias"])
        optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    steps = []
    for _ in range(4):  # epochs
        for first in range(0, 6, window):  # batches of 4
            evaluations = []

            def closure():
                optimizer.zero_grad()
                total = torch.zeros((), dtype=torch.float64)
                batches = range(first, min(first + window, 6))
                for batch in batches:
                    rows = slice(4 * batch, 4 * batch + 4)
                    output = torch.nn.functional.linear(inputs[rows], weight, bias)
                    loss = torch.log1p((output - targets[rows]).square()).mean()
                    (loss / len(batches)).backward()
                    total = total + loss.detach() / len(batches)
                evaluations.append(total.item())
                return total

            optimizer.step(closure)
            steps.append({"loss": evaluations[0], "evaluations": len(evaluations),
                          "weights": weight.flatten().tolist() + bias.tolist()})
    return steps


ALL_OPTIONS = [
    {"lr": 0.5, "max_iter": 4},
    {"lr": 1.0, "max_iter": 6, "history_size": 3, "line_search_fn": "strong_wolfe"},
]


def main():
    cases = [(options, window) for options in ALL_OPTIONS for window in (1, 2, 4)]
    if sys.argv[1:2] == ["--continue"]:
        cases = [(ALL_OPTIONS[1], 1, torch.load(sys.argv[2], weights_only=True))]
    print(json.dumps([{"options": case[0], "window": case[1], "steps": run(*case)} for case in cases]))


if __name__ == "__main__":
    main()
