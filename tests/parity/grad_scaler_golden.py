#!/usr/bin/env python3
"""Writes the results of Python's torch.amp.GradScaler for finite and overflowing gradients, update by update,
for grad_scaler_golden_test.cpp.

    grad_scaler_golden.py FILE   writes the golden values
    grad_scaler_golden.py -      prints them, as this machine computes them

Made with PyTorch 2.11.0. Each line is one case: its options; for each update, the gradient's values before scaling
(also "inf" and "nan"); and after each update the scale, the growth tracker and the parameter.
"""

import contextlib
import json
import random
import sys

import torch


def run(options, gradients):
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", **options)
    steps = []
    for gradient in gradients:
        optimizer.zero_grad()
        factor = torch.tensor(gradient)
        # The loss's gradient is `factor`; inf represents an overflow in the backward pass.
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        steps.append({"scale": scaler.get_scale(), "growth": scaler.state_dict()["_growth_tracker"],
                      "weight": weight.tolist()})
    return steps


def cases():
    generator = random.Random(0)
    for options in [
        {},
        {"init_scale": 8.0, "growth_interval": 2},
        {"init_scale": 1000.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 3},
        {"init_scale": 2.0**120, "growth_interval": 1},
        {"init_scale": 2.0**-20, "growth_interval": 4},
    ]:
        for bad_share in [0.0, 0.2, 0.7, 1.0]:
            gradients = []
            for _ in range(40):
                gradient = [generator.uniform(-1, 1) for _ in range(3)]
                if generator.random() < bad_share:
                    gradient[generator.randrange(3)] = generator.choice([float("inf"), float("-inf"), float("nan")])
                gradients.append(gradient)
            as_text = [[value if abs(value) < 2 else str(value) for value in gradient] for gradient in gradients]
            yield {"torch": torch.__version__, "options": options, "gradients": as_text,
                   "steps": run(options, gradients)}


if __name__ == "__main__":
    with contextlib.nullcontext(sys.stdout) if sys.argv[1] == "-" else open(sys.argv[1], "w") as file:
        file.writelines(json.dumps(case) + "\n" for case in cases())
