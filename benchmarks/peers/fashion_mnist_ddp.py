"""Python's side of compare_launchers.py: examples/programs/fashion_mnist as users write it, up to the first update.

    torchrun ... fashion_mnist_ddp.py DATA FILE

Rank 0 writes FILE after its first update.
"""

import gzip
import math
import pathlib
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def read_idx(file):
    contents = gzip.decompress(file.read_bytes())
    num_dimensions = contents[3]
    sizes = torch.frombuffer(bytearray(contents[4:4 + 4 * num_dimensions]), dtype=torch.uint8).view(-1, 4).tolist()
    shape = [int.from_bytes(bytes(size)) for size in sizes]
    values = torch.frombuffer(bytearray(contents[4 + 4 * num_dimensions:]), dtype=torch.uint8)
    assert values.numel() == math.prod(shape)
    return values.view(shape)


def main(folder, file):
    distributed.init_process_group("gloo")
    images = read_idx(folder / "train-images-idx3-ubyte.gz").flatten(1).float() / 255
    dataset = TensorDataset(images, read_idx(folder / "train-labels-idx1-ubyte.gz").long())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
                                                  nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function = nn.CrossEntropyLoss()
    for inputs, targets in DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset)):
        loss_function(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if distributed.get_rank() == 0:
            file.write_text("updated\n")
        break
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
