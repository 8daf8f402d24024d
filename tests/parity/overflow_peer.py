#!/usr/bin/env python3
"""Trains with Python's torch.amp.GradScaler, with gradients that overflow, for overflow_test.cpp.

    overflow_peer.py CASES   reads a list of cases from a JSON file

A case has the number of micro-steps in an accumulation window; for each run, the factor of the loss in each micro-step,
where 4096 makes the gradients overflow at a large scale and -1 ends the run, whose window is dropped; and whether the
gradients are unscaled before the step. Prints for each case, after each window: the scale, the growth tracker and the
weight.
"""

import json
import sys

import torch


def run(case):
    weight = torch.nn.Parameter(torch.tensor([[0.5, -0.25]]))
    # Not fused: PyTorch 2.11's fused SGD does not initialize the momentum if the first step is skipped.
    optimizer = torch.optim.SGD([weight], lr=0.125, momentum=0.5)
    options = {"init_scale": 64.0, "growth_interval": 2}
    scaler = torch.amp.GradScaler("cpu", **options)
    steps = []
    for micro_steps in case["runs"]:
        for first in range(0, len(micro_steps), case["window"]):
            window = micro_steps[first:first + case["window"]]
            is_left = -1 in window
            for factor in window if not is_left else []:
                with torch.autocast("cpu", torch.float16):
                    loss = torch.nn.functional.linear(torch.tensor([[1.0, 2.0]]), weight).sum() * factor
                scaler.scale(loss / len(window)).backward()
            if case["unscales"] and not is_left:
                scaler.unscale_(optimizer)
            if not is_left:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            steps.append([scaler.get_scale(), scaler.state_dict()["_growth_tracker"], *weight.flatten().tolist()])
            if is_left:
                break
        # A run that was left may have unscaled gradients; dropping them ends the window.
        state = scaler.state_dict()
        scaler = torch.amp.GradScaler("cpu", **options)
        if state:
            scaler.load_state_dict(state)
    return steps


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open(sys.argv[1]) as file:
        print(json.dumps([run(case) for case in json.load(file)]))
