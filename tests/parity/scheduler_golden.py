#!/usr/bin/env python3
"""Writes the values of Python's schedulers, update by update, for scheduler_golden_test.cpp.

    scheduler_golden.py FILE

Made with PyTorch 2.11.0, timm 1.0.31 (which needs torchvision) and pytorch-accelerated 0.1.61 (which
needs accelerate). Each line is a JSON object: the name of linkboy's scheduler and its settings, or a
"composite" that the test builds itself, and for each of 220 updates the values of two param groups.
"""

import json
import math
import sys
import warnings

import timm
import torch
from pytorch_accelerated.schedulers import CosineLrScheduler, WSDLrScheduler
from timm.scheduler.cosine_lr import CosineLRScheduler
from timm.scheduler.poly_lr import PolyLRScheduler
from timm.scheduler.step_lr import StepLRScheduler
from timm.scheduler.tanh_lr import TanhLRScheduler
from timm.scheduler.wsd_lr import WSDLRScheduler
from torch.optim import lr_scheduler as torch_lr

UPDATES = 220
BASE = [0.1, 0.02]
PER_EPOCH = 10


def record(make, advance, kind):
    """Returns the values of each update. `advance(scheduler, n)` sets those of the update after n others."""
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in BASE]
    optimizer = torch.optim.AdamW(groups) if kind == "AdamW" else torch.optim.SGD(groups, momentum=0.9)
    scheduler = make(optimizer)
    values = {"lr": [], "momentum": [], "optimizer": kind}
    for n in range(UPDATES):
        advance(scheduler, n)
        values["lr"].append([group["lr"] for group in optimizer.param_groups])
        values["momentum"].append([group["betas"][0] if "betas" in group else group["momentum"]
                                   for group in optimizer.param_groups])
    return values


def runner(advance):
    """Returns a function that records a scheduler that is made with the given class and arguments."""
    return lambda make, *arguments, kind="SGD", **options: record(
        lambda optimizer: make(optimizer, *arguments, **options), advance, kind)


@runner
def by_torch(scheduler, n):
    if n > 0:
        scheduler.step()


@runner
def by_torch_epochs(scheduler, n):
    if n > 0 and n % PER_EPOCH == 0:
        is_plateau = isinstance(scheduler, torch_lr.ReduceLROnPlateau)
        scheduler.step(*[plateau_metric(n // PER_EPOCH - 1)] if is_plateau else [])


@runner
def by_timm(scheduler, n):
    # Before the first update too, because the constructor keeps the base values, which are not always f(0).
    scheduler.step_update(n)
    if n % PER_EPOCH == 0:
        scheduler.step(n // PER_EPOCH)


@runner
def by_upstream(scheduler, n):
    # The values f(n), because pytorch-accelerated's own stepping uses f(0) twice.
    for group, value in zip(scheduler.optimizer.param_groups, scheduler.get_updated_values(n)):
        group["lr"] = value


@runner
def by_plateau(scheduler, n):
    if n > 0:
        scheduler.step(plateau_metric(n - 1))


def plateau_metric(epoch):
    """Returns a metric that falls more and more slowly, with jumps. The numbers are exact."""
    return 1.0 + 64.0 / (1 << min(epoch // 8, 20)) + (epoch * 37 % 16) / 1024


def torch_cases():
    yield "step", {"step_size": 7, "gamma": 0.9}, by_torch(torch_lr.StepLR, 7, 0.9)
    yield "multi-step", {"milestones": "11,60,61,150", "gamma": 0.5}, by_torch(
        torch_lr.MultiStepLR, [11, 60, 61, 150], 0.5)
    yield "constant", {"factor": 0.25, "num_updates": 40}, by_torch(torch_lr.ConstantLR, 0.25, 40)
    yield "linear", {"start_factor": 0.1, "end_factor": 0.7, "num_updates": 150}, by_torch(
        torch_lr.LinearLR, 0.1, 0.7, 150)
    yield "exponential", {"gamma": 0.99}, by_torch(torch_lr.ExponentialLR, 0.99)
    for power in (0.5, 1.0, 2.0):
        yield "polynomial", {"num_updates": 180, "power": power}, by_torch(torch_lr.PolynomialLR, 180, power)
    yield "cosine", {"num_updates": "22 * num_updates_per_epoch", "min_lr": 0.001}, by_torch(
        torch_lr.CosineAnnealingLR, 220, 0.001)
    yield "cosine-restarts", {"first_cycle_updates": 50}, by_torch(torch_lr.CosineAnnealingWarmRestarts, 50)
    yield "cosine-restarts", {"first_cycle_updates": 20, "cycle_mult": 2, "min_lr": 1e-4}, by_torch(
        torch_lr.CosineAnnealingWarmRestarts, 20, 2, 1e-4)
    yield "one-cycle", {"max_lr": "0.5,0.2"}, by_torch(torch_lr.OneCycleLR, [0.5, 0.2], UPDATES)
    yield "one-cycle", {"max_lr": 0.5, "anneal_strategy": "linear", "pct_start": 0.4,
                        "base_momentum": "0.7,0.8", "div_factor": 10}, by_torch(
        torch_lr.OneCycleLR, 0.5, UPDATES, anneal_strategy="linear", pct_start=0.4, base_momentum=[0.7, 0.8],
        div_factor=10, kind="AdamW")
    yield "one-cycle", {"max_lr": 0.3, "three_phase": "true", "final_div_factor": 100}, by_torch(
        torch_lr.OneCycleLR, 0.3, UPDATES, three_phase=True, final_div_factor=100)
    for mode in ("triangular", "triangular2", "exp_range"):
        yield "cyclic", {"base_lr": "0.01,0.001", "max_lr": 0.3, "step_size_up": 20,
                         "step_size_down": 35, "mode": mode, "gamma": 0.995}, by_torch(
            torch_lr.CyclicLR, [0.01, 0.001], 0.3, 20, 35, mode=mode, gamma=0.995)
    # The formula of transformers' get_inverse_sqrt_schedule.
    yield "inverse-sqrt", {"warmup_updates": 30}, by_torch(
        torch_lr.LambdaLR, lambda n: n / 30 if n < 30 else 1 / math.sqrt(n / 30))
    yield "inverse-sqrt", {"warmup_updates": 10, "timescale": 90}, by_torch(
        torch_lr.LambdaLR, lambda n: n / 10 if n < 10 else 1 / math.sqrt((n + 80) / 90))
    for mode, threshold_mode, patience, cooldown in (("min", "rel", 3, 0), ("max", "abs", 2, 4),
                                                     ("min", "abs", 5, 1), ("max", "rel", 9, 0)):
        options = {"mode": mode, "threshold_mode": threshold_mode, "patience": patience, "cooldown": cooldown,
                   "factor": 0.5, "min_lr": 1e-6}
        yield "plateau", options, by_plateau(torch_lr.ReduceLROnPlateau, **options)


def epoch_cases():
    epochs = UPDATES // PER_EPOCH
    yield "step", {"step_size": 3, "gamma": 0.9}, by_torch_epochs(torch_lr.StepLR, 3, 0.9)
    yield "multi-step", {"milestones": "num_epochs / 2,num_updates - 2"}, by_torch_epochs(
        torch_lr.MultiStepLR, [epochs // 2, epochs - 2])
    yield "constant", {"factor": 0.25, "num_updates": 4}, by_torch_epochs(torch_lr.ConstantLR, 0.25, 4)
    yield "linear", {"start_factor": 0.1, "end_factor": 0.7}, by_torch_epochs(torch_lr.LinearLR, 0.1, 0.7, epochs)
    yield "exponential", {"gamma": 0.9}, by_torch_epochs(torch_lr.ExponentialLR, 0.9)
    yield "polynomial", {"num_updates": 18, "power": 2.0}, by_torch_epochs(torch_lr.PolynomialLR, 18, 2.0)
    yield "cosine", {"min_lr": 0.001}, by_torch_epochs(torch_lr.CosineAnnealingLR, epochs, 0.001)
    yield "cosine-restarts", {"first_cycle_updates": 3, "cycle_mult": 2}, by_torch_epochs(
        torch_lr.CosineAnnealingWarmRestarts, 3, 2)
    yield "one-cycle", {"max_lr": "0.5,0.2"}, by_torch_epochs(torch_lr.OneCycleLR, [0.5, 0.2], epochs)
    yield "cyclic", {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 4}, by_torch_epochs(
        torch_lr.CyclicLR, 0.01, 0.3, 4)
    yield "plateau", {"patience": 1, "factor": 0.5}, by_torch_epochs(torch_lr.ReduceLROnPlateau, "min", 0.5, 1)


def composite_cases():
    yield "lambda", by_torch(torch_lr.LambdaLR, [lambda n: 0.95**n, lambda n: 1 / (1 + n)])
    yield "multiplicative", by_torch(torch_lr.MultiplicativeLR, lambda n: 1 - 1 / (n + 10))
    yield "sequential", by_torch(lambda o: torch_lr.SequentialLR(
        o, [torch_lr.LinearLR(o, 0.1, 1.0, 20), torch_lr.ExponentialLR(o, 0.99),
            torch_lr.StepLR(o, 15, 0.5)], [20, 120]))
    yield "chained", by_torch(lambda o: torch_lr.ChainedScheduler(
        [torch_lr.ConstantLR(o, 0.1, 20), torch_lr.ExponentialLR(o, 0.99),
         torch_lr.MultiStepLR(o, [100, 150], 0.3)]))
    yield "warm-up and timm cosine", by_timm(
        CosineLRScheduler, 190, lr_min=1e-5, warmup_t=30, warmup_lr_init=1e-4, warmup_prefix=True, t_in_epochs=False)
    yield "warm-up and timm step", by_timm(
        StepLRScheduler, 25, 0.7, warmup_t=12, warmup_lr_init=1e-3, t_in_epochs=False)
    yield "hidden warm-up and timm tanh", by_timm(
        TanhLRScheduler, 220, lr_min=1e-5, warmup_t=15, warmup_lr_init=1e-4, t_in_epochs=False)
    yield "timm cosine in epochs", by_timm(
        CosineLRScheduler, 5, lr_min=1e-5, cycle_mul=2.0, cycle_decay=0.5, cycle_limit=2, t_in_epochs=True)
    yield "warm-up and timm step in epochs", by_timm(
        StepLRScheduler, 4, 0.5, warmup_t=3, warmup_lr_init=1e-3, t_in_epochs=True)


def timm_cases():
    yield "cosine-restarts", {"first_cycle_updates": 40, "cycle_decay": 0.6, "min_lr": 1e-4}, by_timm(
        CosineLRScheduler, 40, lr_min=1e-4, cycle_decay=0.6, cycle_limit=100, t_in_epochs=False)
    yield "cosine-restarts", {"first_cycle_updates": 30, "cycle_mult": 1.5, "cycle_decay": 0.5, "cycle_limit": 3,
                              "k_decay": 1.5}, by_timm(
        CosineLRScheduler, 30, cycle_mul=1.5, cycle_decay=0.5, cycle_limit=3, k_decay=1.5, t_in_epochs=False)
    yield "tanh", {"min_lr": 1e-5}, by_timm(TanhLRScheduler, 220, lr_min=1e-5, t_in_epochs=False)
    yield "tanh", {"tanh_start": -5, "tanh_end": 4, "num_updates": 180}, by_timm(
        TanhLRScheduler, 180, lb=-5, ub=4, t_in_epochs=False)
    yield "polynomial", {"power": 0.5, "min_lr": 1e-4, "k_decay": 1.5}, by_timm(
        PolyLRScheduler, 220, power=0.5, lr_min=1e-4, k_decay=1.5, t_in_epochs=False)
    for theirs, ours in (("1-sqrt", "sqrt"), ("linear", "linear")):
        yield "wsd", {"warmup_updates": 20, "warmup_start_lr": 1e-4, "decay": ours,
                      "decay_phase_ratio": 0.25, "min_lr_ratio": 0}, by_timm(
            WSDLRScheduler, 200, 55, decay_fn=theirs, warmup_t=20, warmup_lr_init=1e-4, t_in_epochs=False)


def upstream_cases():
    yield "cosine", {"k_decay": 2, "min_lr_ratio": 0.1, "cooldown_updates": "4 * num_updates_per_epoch"}, by_upstream(
        CosineLrScheduler, 22, PER_EPOCH, k_decay=2, min_lr_ratio=0.1, num_cooldown_epochs=4)
    for decay in "sqrt", "inverse":
        options = {"warmup_updates": 15, "decay_phase_ratio": 0.2, "min_lr_ratio": 0.01, "decay": decay}
        yield "wsd", options, by_upstream(
            WSDLrScheduler, total_steps=UPDATES, use_inverse_sqrt_decay=decay == "sqrt", num_warmup_steps=15,
            decay_phase_ratio=0.2, lr_min=0.01)
    # Three is the only number of checkpoints that pytorch-accelerated places correctly.
    yield "wsd", {"num_checkpoints": 3, "min_lr_ratio": 0.01}, by_upstream(
        WSDLrScheduler, total_steps=UPDATES, num_checkpoints=3, lr_min=0.01)


def lines():
    yield {"torch": torch.__version__, "timm": timm.__version__,
           "pytorch-accelerated": "0.1.61", "updates": UPDATES, "base": BASE,
           "updates_per_epoch": PER_EPOCH,
           "plateau_metric": [plateau_metric(epoch) for epoch in range(UPDATES)]}
    for cases, kind in ((torch_cases, "settings"), (timm_cases, "settings"), (upstream_cases, "settings"),
                        (epoch_cases, "epoch_settings")):
        for name, settings, values in cases():
            fields = ["lr", "momentum", "optimizer"] if name in ("one-cycle", "cyclic") else ["lr"]
            yield {"scheduler": name, kind: {k: str(v) for k, v in settings.items()},
                   **{field: values[field] for field in fields}}
    for name, values in composite_cases():
        yield {"composite": name, "lr": values["lr"]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with open(sys.argv[1], "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines())
