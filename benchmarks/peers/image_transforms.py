#!/usr/bin/env python3
"""Does the work of benchmarks/image_transforms.cpp with torchvision's v2 transforms in a torch DataLoader.

    image_transforms.py [num_workers, default 2] [--seconds 2]

For each line "go" on standard input, the script runs complete epochs for at least --seconds, and prints a
line of JSON. "quit" ends it. The workers persist between epochs, so their start is not timed.
"""

import argparse
import json
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

NUM_SAMPLES = 50_000
BATCH_SIZE = 128


class Images(Dataset):
    def __init__(self):
        self.images = torch.randint(256, (NUM_SAMPLES, 3, 32, 32), dtype=torch.uint8)
        self.labels = torch.randint(10, (NUM_SAMPLES,))
        self.transform = v2.Compose([
            v2.RandomCrop(32, padding=4),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ])

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return self.transform(self.images[index]), self.labels[index]


def run_epoch(loader):
    num_samples = 0
    for images, _ in loader:
        num_samples += len(images)
    return num_samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("num_workers", type=int, nargs="?", default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Images(), batch_size=BATCH_SIZE, shuffle=True,
                        num_workers=arguments.num_workers,
                        persistent_workers=arguments.num_workers > 0)
    run_epoch(loader)  # starts the workers
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        if line.strip() != "go":
            continue
        start = time.perf_counter()
        num_samples = 0
        while True:
            num_samples += run_epoch(loader)
            taken = time.perf_counter() - start
            if taken >= arguments.seconds:
                break
        print(json.dumps({"samples_per_second": round(num_samples / taken, 1)}), flush=True)


if __name__ == "__main__":
    main()
