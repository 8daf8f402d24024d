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


def make_optimizer(kind="sgd"):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in BASE]
    if kind == "adamw":
        return torch.optim.AdamW(groups)
    return torch.optim.SGD(groups, momentum=0.9)


def momentum_of(group):
    return group["betas"][0] if "betas" in group else group["momentum"]


class Recorder:
    def __init__(self, optimizer):
        self.optimizer, self.lr, self.momentum = optimizer, [], []

    def record(self):
        groups = self.optimizer.param_groups
        self.lr.append([group["lr"] for group in groups])
        self.momentum.append([momentum_of(group) for group in groups])


def by_torch(make, kind="sgd"):
    """Returns the learning rate of each update in a loop that steps optimizer and scheduler alternately."""
    optimizer = make_optimizer(kind)
    scheduler = make(optimizer)
    recorder = Recorder(optimizer)
    for _ in range(UPDATES):
        recorder.record()
        optimizer.step()
        scheduler.step()
    return recorder


def by_torch_epochs(make, kind="sgd"):
    """Returns the learning rate of each update in a loop that steps the scheduler at the end of each epoch."""
    optimizer = make_optimizer(kind)
    scheduler = make(optimizer)
    recorder = Recorder(optimizer)
    for update in range(1, UPDATES + 1):
        recorder.record()
        optimizer.step()
        if update % PER_EPOCH == 0:
            if isinstance(scheduler, torch_lr.ReduceLROnPlateau):
                scheduler.step(plateau_metric(update // PER_EPOCH - 1))
            else:
                scheduler.step()
    return recorder


def by_timm(make):
    """Does the same with a loop in timm's style: step_update after each update, step after each epoch."""
    optimizer = make_optimizer()
    scheduler = make(optimizer)
    recorder = Recorder(optimizer)
    # The constructor keeps the base values, which are not always f(0).
    scheduler.step_update(0)
    scheduler.step(0)
    for update in range(1, UPDATES + 1):
        recorder.record()
        scheduler.step_update(update)
        if update % PER_EPOCH == 0:
            scheduler.step(update // PER_EPOCH)
    return recorder


def by_upstream(make):
    """Returns the values f(n), because pytorch-accelerated's own stepping uses f(0) twice."""
    optimizer = make_optimizer()
    scheduler = make(optimizer)
    recorder = Recorder(optimizer)
    for update in range(UPDATES):
        values = scheduler.get_updated_values(update)
        for group, value in zip(optimizer.param_groups, values):
            group["lr"] = value
        recorder.record()
    return recorder


def plateau_metric(epoch):
    """Returns a metric that falls more and more slowly, with jumps. The numbers are exact."""
    return 1.0 + 64.0 / (1 << min(epoch // 8, 20)) + (epoch * 37 % 16) / 1024


def by_plateau(make):
    optimizer = make_optimizer()
    scheduler = make(optimizer)
    recorder = Recorder(optimizer)
    for epoch in range(UPDATES):
        recorder.record()
        scheduler.step(plateau_metric(epoch))
    return recorder


def torch_cases():
    yield "step", {"step_size": 7, "gamma": 0.9}, by_torch(lambda o: torch_lr.StepLR(o, 7, 0.9))
    yield "multi-step", {"milestones": "11,60,61,150", "gamma": 0.5}, by_torch(
        lambda o: torch_lr.MultiStepLR(o, [11, 60, 61, 150], 0.5))
    yield "constant", {"factor": 0.25, "total_iters": 40}, by_torch(
        lambda o: torch_lr.ConstantLR(o, 0.25, 40))
    yield "linear", {"start_factor": 0.1, "end_factor": 0.7, "total_iters": 150}, by_torch(
        lambda o: torch_lr.LinearLR(o, 0.1, 0.7, 150))
    yield "exponential", {"gamma": 0.99}, by_torch(lambda o: torch_lr.ExponentialLR(o, 0.99))
    for power in (0.5, 1.0, 2.0):
        yield "polynomial", {"total_iters": 180, "power": power}, by_torch(
            lambda o, power=power: torch_lr.PolynomialLR(o, 180, power))
    yield "cosine", {"num_epochs": 22, "lr_min": 0.001}, by_torch(
        lambda o: torch_lr.CosineAnnealingLR(o, 220, 0.001))
    yield "cosine-restarts", {"T_0": 50}, by_torch(
        lambda o: torch_lr.CosineAnnealingWarmRestarts(o, 50))
    yield "cosine-restarts", {"T_0": 20, "T_mult": 2, "eta_min": 1e-4}, by_torch(
        lambda o: torch_lr.CosineAnnealingWarmRestarts(o, 20, 2, 1e-4))
    yield "one-cycle", {"max_lr": "0.5,0.2"}, by_torch(
        lambda o: torch_lr.OneCycleLR(o, [0.5, 0.2], UPDATES))
    yield "one-cycle", {"max_lr": 0.5, "anneal_strategy": "linear", "pct_start": 0.4,
                        "base_momentum": "0.7,0.8", "div_factor": 10}, by_torch(
        lambda o: torch_lr.OneCycleLR(o, 0.5, UPDATES, anneal_strategy="linear", pct_start=0.4,
                                      base_momentum=[0.7, 0.8], div_factor=10), "adamw")
    yield "one-cycle", {"max_lr": 0.3, "three_phase": "true", "final_div_factor": 100}, by_torch(
        lambda o: torch_lr.OneCycleLR(o, 0.3, UPDATES, three_phase=True, final_div_factor=100))
    for mode in ("triangular", "triangular2", "exp_range"):
        yield "cyclic", {"base_lr": "0.01,0.001", "max_lr": 0.3, "step_size_up": 20,
                         "step_size_down": 35, "mode": mode, "gamma": 0.995}, by_torch(
            lambda o, mode=mode: torch_lr.CyclicLR(o, [0.01, 0.001], 0.3, 20, 35, mode=mode,
                                                   gamma=0.995))
    # The formula of transformers' get_inverse_sqrt_schedule.
    yield "inverse-sqrt", {"num_warmup_steps": 30}, by_torch(
        lambda o: torch_lr.LambdaLR(o, lambda n: n / 30 if n < 30 else 1 / math.sqrt(n / 30)))
    yield "inverse-sqrt", {"num_warmup_steps": 10, "timescale": 90}, by_torch(
        lambda o: torch_lr.LambdaLR(
            o, lambda n: n / 10 if n < 10 else 1 / math.sqrt((n + 80) / 90)))
    for mode, threshold_mode, patience, cooldown in (("min", "rel", 3, 0), ("max", "abs", 2, 4),
                                                     ("min", "abs", 5, 1), ("max", "rel", 9, 0)):
        yield "plateau", {"mode": mode, "threshold_mode": threshold_mode, "patience": patience,
                          "cooldown": cooldown, "factor": 0.5, "min_lr": 1e-6}, by_plateau(
            lambda o, *a, m=mode, t=threshold_mode, p=patience, c=cooldown:
            torch_lr.ReduceLROnPlateau(o, m, 0.5, p, threshold_mode=t, cooldown=c, min_lr=1e-6))


def epoch_cases():
    epochs = UPDATES // PER_EPOCH
    yield "step", {"step_size": 3, "gamma": 0.9}, by_torch_epochs(
        lambda o: torch_lr.StepLR(o, 3, 0.9))
    yield "multi-step", {"milestones": "num_epochs / 2,num_updates - 2"}, by_torch_epochs(
        lambda o: torch_lr.MultiStepLR(o, [epochs // 2, epochs - 2]))
    yield "constant", {"factor": 0.25, "num_updates": 4}, by_torch_epochs(
        lambda o: torch_lr.ConstantLR(o, 0.25, 4))
    yield "linear", {"start_factor": 0.1, "end_factor": 0.7}, by_torch_epochs(
        lambda o: torch_lr.LinearLR(o, 0.1, 0.7, epochs))
    yield "exponential", {"gamma": 0.9}, by_torch_epochs(lambda o: torch_lr.ExponentialLR(o, 0.9))
    yield "polynomial", {"num_updates": 18, "power": 2.0}, by_torch_epochs(
        lambda o: torch_lr.PolynomialLR(o, 18, 2.0))
    yield "cosine", {"min_lr": 0.001}, by_torch_epochs(
        lambda o: torch_lr.CosineAnnealingLR(o, epochs, 0.001))
    yield "cosine-restarts", {"first_cycle_updates": 3, "cycle_mult": 2}, by_torch_epochs(
        lambda o: torch_lr.CosineAnnealingWarmRestarts(o, 3, 2))
    yield "one-cycle", {"max_lr": "0.5,0.2"}, by_torch_epochs(
        lambda o: torch_lr.OneCycleLR(o, [0.5, 0.2], epochs))
    yield "cyclic", {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 4}, by_torch_epochs(
        lambda o: torch_lr.CyclicLR(o, 0.01, 0.3, 4))
    yield "plateau", {"patience": 1, "factor": 0.5}, by_torch_epochs(
        lambda o: torch_lr.ReduceLROnPlateau(o, "min", 0.5, 1))


def composite_cases():
    yield "lambda", by_torch(lambda o: torch_lr.LambdaLR(
        o, [lambda n: 0.95**n, lambda n: 1 / (1 + n)]))
    yield "multiplicative", by_torch(lambda o: torch_lr.MultiplicativeLR(
        o, lambda n: 1 - 1 / (n + 10)))
    yield "sequential", by_torch(lambda o: torch_lr.SequentialLR(
        o, [torch_lr.LinearLR(o, 0.1, 1.0, 20), torch_lr.ExponentialLR(o, 0.99),
            torch_lr.StepLR(o, 15, 0.5)], [20, 120]))
    yield "chained", by_torch(lambda o: torch_lr.ChainedScheduler(
        [torch_lr.ConstantLR(o, 0.1, 20), torch_lr.ExponentialLR(o, 0.99),
         torch_lr.MultiStepLR(o, [100, 150], 0.3)]))
    yield "warm-up and timm cosine", by_timm(lambda o: CosineLRScheduler(
        o, 190, lr_min=1e-5, warmup_t=30, warmup_lr_init=1e-4, warmup_prefix=True,
        t_in_epochs=False))
    yield "warm-up and timm step", by_timm(lambda o: StepLRScheduler(
        o, 25, 0.7, warmup_t=12, warmup_lr_init=1e-3, t_in_epochs=False))
    yield "hidden warm-up and timm tanh", by_timm(lambda o: TanhLRScheduler(
        o, 220, lr_min=1e-5, warmup_t=15, warmup_lr_init=1e-4, t_in_epochs=False))
    yield "timm cosine in epochs", by_timm(lambda o: CosineLRScheduler(
        o, 5, lr_min=1e-5, cycle_mul=2.0, cycle_decay=0.5, cycle_limit=2, t_in_epochs=True))
    yield "warm-up and timm step in epochs", by_timm(lambda o: StepLRScheduler(
        o, 4, 0.5, warmup_t=3, warmup_lr_init=1e-3, t_in_epochs=True))


def timm_cases():
    yield "cosine-restarts", {"T_0": 40, "cycle_decay": 0.6, "eta_min": 1e-4}, by_timm(
        lambda o: CosineLRScheduler(o, 40, lr_min=1e-4, cycle_decay=0.6, cycle_limit=100,
                                    t_in_epochs=False))
    yield "cosine-restarts", {"T_0": 30, "T_mult": 1.5, "cycle_decay": 0.5, "cycle_limit": 3,
                              "k_decay": 1.5}, by_timm(
        lambda o: CosineLRScheduler(o, 30, cycle_mul=1.5, cycle_decay=0.5, cycle_limit=3,
                                    k_decay=1.5, t_in_epochs=False))
    yield "tanh", {"lr_min": 1e-5}, by_timm(
        lambda o: TanhLRScheduler(o, 220, lr_min=1e-5, t_in_epochs=False))
    yield "tanh", {"lb": -5, "ub": 4, "t_initial": 180}, by_timm(
        lambda o: TanhLRScheduler(o, 180, lb=-5, ub=4, t_in_epochs=False))
    yield "polynomial", {"power": 0.5, "lr_min": 1e-4, "k_decay": 1.5}, by_timm(
        lambda o: PolyLRScheduler(o, 220, power=0.5, lr_min=1e-4, k_decay=1.5, t_in_epochs=False))
    for theirs, ours in (("1-sqrt", "sqrt"), ("linear", "linear")):
        yield "wsd", {"num_warmup_steps": 20, "warmup_starting_lr": 1e-4, "decay": ours,
                      "decay_phase_ratio": 0.25, "lr_min": 0}, by_timm(
            lambda o, theirs=theirs: WSDLRScheduler(o, 200, 55, decay_fn=theirs, warmup_t=20,
                                                    warmup_lr_init=1e-4, t_in_epochs=False))


def upstream_cases():
    yield "cosine", {"k_decay": 2, "min_lr_ratio": 0.1, "num_cooldown_epochs": 4}, by_upstream(
        lambda o: CosineLrScheduler(o, 22, PER_EPOCH, k_decay=2, min_lr_ratio=0.1,
                                    num_cooldown_epochs=4))
    for inverse in (True, False):
        yield "wsd", {"num_warmup_steps": 15, "decay_phase_ratio": 0.2, "lr_min": 0.01,
                      "decay": "sqrt" if inverse else "inverse"}, by_upstream(
            lambda o, inverse=inverse: WSDLrScheduler(
                o, total_steps=UPDATES, num_warmup_steps=15, decay_phase_ratio=0.2, lr_min=0.01,
                use_inverse_sqrt_decay=inverse))
    # Three is the only number of checkpoints that pytorch-accelerated places correctly.
    yield "wsd", {"num_checkpoints": 3, "lr_min": 0.01}, by_upstream(
        lambda o: WSDLrScheduler(o, total_steps=UPDATES, num_checkpoints=3, lr_min=0.01))


def lines():
    yield {"torch": torch.__version__, "timm": timm.__version__,
           "pytorch-accelerated": "0.1.61", "updates": UPDATES, "base": BASE,
           "updates_per_epoch": PER_EPOCH,
           "plateau_metric": [plateau_metric(epoch) for epoch in range(UPDATES)]}
    for cases in (torch_cases, timm_cases, upstream_cases):
        for name, settings, recorder in cases():
            case = {"scheduler": name, "settings": {k: str(v) for k, v in settings.items()},
                    "lr": recorder.lr}
            if name in ("one-cycle", "cyclic"):
                case["momentum"] = recorder.momentum
                case["optimizer"] = type(recorder.optimizer).__name__
            yield case
    for name, settings, recorder in epoch_cases():
        case = {"scheduler": name, "epoch_settings": {k: str(v) for k, v in settings.items()},
                "lr": recorder.lr}
        if name in ("one-cycle", "cyclic"):
            case["momentum"] = recorder.momentum
        yield case
    for name, recorder in composite_cases():
        yield {"composite": name, "lr": recorder.lr}


def main():
    warnings.simplefilter("ignore")
    with open(sys.argv[1], "w") as file:
        for line in lines():
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
