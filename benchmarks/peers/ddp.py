"""Python's side of compare_ddp.py: one rank of a hand-written DDP loop. See ddp.cpp for the protocol.

"sharded" is FSDP2: each linear layer is a unit. The batches of "run" and "sharded" come from DataLoader and DistributedSampler. In addition there is "indexed", which
gathers each batch with one index_select, like linkboy. Users do not usually write this, but it is the
fastest way in Python. Each loop has a separate model.
"""

import json
import os
import sys
import time
import traceback

import torch
from models import check_loss, make_dataset, make_optimizer
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 64
MEBIBYTE = 1 << 20


class Mlp(nn.Module):
    def __init__(self, width1, width2):
        super().__init__()
        self.hidden1 = nn.Linear(784, width1)
        self.hidden2 = nn.Linear(width1, width2)
        self.output = nn.Linear(width2, 10)

    def forward(self, x):
        return self.output(F.relu(self.hidden2(F.relu(self.hidden1(x)))))


class Loop:
    def __init__(self, work, wrap, batches):
        torch.manual_seed(0)
        self.model = Mlp(128, 64) if work == "mlp" else Mlp(1024, 1024)
        self._wrapped = wrap(self.model)
        self._optimizer = make_optimizer(self.model.parameters())
        self._loss_function = nn.CrossEntropyLoss()
        self._batches, self._epoch = batches, 0

    def run(self):
        self._wrapped.train()
        self._epoch += 1
        for inputs, targets in self._batches(self._epoch):
            loss = self._loss_function(self._wrapped(inputs), targets)
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()


def from_loader(dataset, rank, num_ranks):
    sampler = DistributedSampler(dataset, num_ranks, rank)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)

    def batches(epoch):
        sampler.set_epoch(epoch)
        return loader

    return batches


def by_index(dataset, rank, num_ranks):
    inputs, targets = dataset.tensors

    def batches(epoch):
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch))
        for indices in order[rank::num_ranks].split(BATCH):
            yield inputs.index_select(0, indices), targets.index_select(0, indices)

    return batches


def make_buckets(model):
    """Returns tensors with the sizes of the gradient buckets; see ddp.cpp."""
    buckets, size, limit = [], 0, MEBIBYTE // 4
    parameters = list(model.parameters())[::-1]
    for parameter in parameters:
        size += parameter.numel()
        if size >= limit or parameter is parameters[-1]:
            buckets.append(torch.zeros(size))
            size, limit = 0, 25 * MEBIBYTE // 4
    return buckets


def serve(work, steps, say):
    distributed.init_process_group("gloo")
    rank, num_ranks = distributed.get_rank(), distributed.get_world_size()
    dataset = make_dataset("mlp", steps * num_ranks)
    mine = torch.utils.data.TensorDataset(*dataset[:steps * BATCH])

    def with_views(model):
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def sharded(model):
        for layer in model.children():
            fully_shard(layer)
        fully_shard(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # Gloo has no mean
        return model

    loops = {
        "run": Loop(work, DistributedDataParallel, from_loader(dataset, rank, num_ranks)),
        "view": Loop(work, with_views, from_loader(dataset, rank, num_ranks)),
        "sharded": Loop(work, sharded, from_loader(dataset, rank, num_ranks)),
        "indexed": Loop(work, DistributedDataParallel, by_index(dataset, rank, num_ranks)),
        "alone": Loop(work, lambda model: model, from_loader(mine, 0, 1)),
    }
    buckets = make_buckets(loops["alone"].model)
    say(torch=torch.__version__)
    for line in sys.stdin:
        word = line.strip()
        if word == "quit":
            break
        loop = loops.get(word, loops["run"])
        start = time.perf_counter()
        if word == "reduce":
            for _ in range(steps):
                for bucket in buckets:
                    distributed.all_reduce(bucket)
        else:
            loop.run()
        seconds = time.perf_counter() - start
        say(seconds=seconds, steps=steps, loss=check_loss(loop.model, dataset))
    distributed.destroy_process_group()


def main():
    torch.set_num_threads(1)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)

    def say(**values):
        replies.write(json.dumps(values) + "\n")

    try:
        serve(sys.argv[1], int(sys.argv[3]), say)
    except Exception:
        say(error=traceback.format_exc())


if __name__ == "__main__":
    main()
