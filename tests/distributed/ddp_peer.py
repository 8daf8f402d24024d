"""The Python side of python_ddp_test.cpp: one rank that trains each case with Python's DDP or FSDP2.

    ddp_peer.py FOLDER CASE...

RANK and WORLD_SIZE are in the environment; the ranks find each other through a file in FOLDER. Writes
FOLDER/CASE-RANK.pt, which contains the losses of all steps, the final parameters and buffers, and the
number of gradient buckets. Data and weights are computed with integer arithmetic and exact float
operations, so that the C++ side has the same values.
"""

import contextlib
import os
import pathlib
import sys

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS_PER_EPOCH, EPOCHS, BATCH = 15, 2, 4
BUCKET_CAP_MB = 1 / 4096


def sequence(count, start):
    """Returns multiples of 2**-15 in [-1, 1), which are exact in float32."""
    index = torch.arange(start, start + count, dtype=torch.int64)
    return ((index * 40503 + 12345) % 65536 - 32768).to(torch.float32) / 32768


class Branches(nn.Module):
    """The sign of a batch's first number selects the branch, so that the ranks use different branches."""

    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(64, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        hidden = torch.relu(self.trunk(x))
        branch = self.left if x[0, 0].item() > 0 else self.right
        return self.head(torch.relu(branch(hidden)))


def make_model(name):
    if name == "branches":
        model = Branches()
    elif name == "batchnorm":
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16),
                              nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    else:
        model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(),
                              nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            values = sequence(parameter.numel(), start).reshape(parameter.shape)
            parameter.copy_(values * 0.25 if parameter.dim() > 1 else values * 0.125 + 0.5)
            start += parameter.numel()
    return model


def train(case, rank, num_ranks):
    model_name, optimizer_name, accumulation, extra = case.split("-")
    accumulation = int(accumulation)
    model = make_model(model_name)
    is_sharded = extra == "fsdp"
    if is_sharded:
        fully_shard(model)
        model.set_force_sum_reduction_for_comms(True)  # Gloo has no mean
    # Fused SGD does not accept a group in which only some parameters have had a gradient.
    groups = [{"params": list(layer.parameters())} for layer in model.children()]
    if optimizer_name == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=3e-3, fused=True)
    else:
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
    ddp = model if is_sharded else DistributedDataParallel(model, bucket_cap_mb=BUCKET_CAP_MB,
                                  find_unused_parameters=model_name == "branches",
                                  static_graph=extra == "static",
                                  gradient_as_bucket_view=extra == "view")
    samples = STEPS_PER_EPOCH * num_ranks * BATCH
    x = sequence(samples * 64, 7).reshape(samples, 64)
    y = torch.arange(samples) * 7 % 10
    losses = []
    model.train()
    for _ in range(EPOCHS):
        for i in range(STEPS_PER_EPOCH):
            first = i // accumulation * accumulation
            window = min(accumulation, STEPS_PER_EPOCH - first)
            ends_window = i + 1 == first + window
            begin = (i * num_ranks + rank) * BATCH
            rows = slice(begin, begin + BATCH)
            # FSDP2 reduces in each micro-step, because no rank has room for whole gradients.
            with contextlib.nullcontext() if ends_window or is_sharded else ddp.no_sync():
                loss = nn.functional.cross_entropy(ddp(x[rows]), y[rows])
                losses.append(loss.item())
                (loss / window).backward()
            if ends_window:
                optimizer.step()
                optimizer.zero_grad()
    if is_sharded:
        tensors = {name: getattr(tensor, "full_tensor", lambda tensor=tensor: tensor)()
                   for name, tensor in model.state_dict().items()}
        return {"losses": losses, "tensors": tensors, "num_buckets": 0}
    told = ddp._get_ddp_logging_data()
    sizes = told.get("rebuilt_bucket_sizes") or told["bucket_sizes"]
    return {"losses": losses, "tensors": dict(model.state_dict()),
            "num_buckets": len(sizes.split(","))}


def main():
    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[1])
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                   world_size=num_ranks)
    for case in sys.argv[2:]:
        torch.save(train(case, rank, num_ranks), folder / f"{case}-{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
