#!/usr/bin/env python3
"""Does the work of benchmarks/image_folder.cpp with torchvision's ImageFolder in a torch DataLoader.

    image_folder.py FOLDER [num_workers, default 2] [--train] [--seconds 3]
    image_folder.py FOLDER --make      writes 400 JPEG files of 500 x 375 into ten class folders

For each line "go" on standard input, the script runs complete epochs for at least --seconds, and prints a
line of JSON. "quit" ends it. The workers persist between epochs, so their start is not timed.
"""

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

NUM_IMAGES = 400
BATCH_SIZE = 32


def make_images(folder):
    """Writes smooth images with some noise, like photographs, of about 66 KB each at quality 90."""
    noise = np.random.default_rng(0)
    for i in range(NUM_IMAGES):
        small = Image.fromarray(noise.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        values = np.asarray(small.resize((500, 375), Image.BICUBIC)) + noise.integers(-12, 13, (375, 500, 3))
        path = folder / f"class_{i % 10}" / f"{i:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def make_transform(train):
    first = [transforms.Resize(256), transforms.CenterCrop(224)]
    if train:
        first = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    return transforms.Compose([*first, transforms.ToTensor(),
                               transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])


def run_epoch(loader):
    num_samples = 0
    for images, _ in loader:
        num_samples += len(images)
    return num_samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("num_workers", type=int, nargs="?", default=2)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--make", action="store_true")
    arguments = parser.parse_args()
    if arguments.make:
        make_images(arguments.folder)
        return
    torch.manual_seed(0)
    loader = DataLoader(ImageFolder(arguments.folder, make_transform(arguments.train)), batch_size=BATCH_SIZE,
                        shuffle=True, num_workers=arguments.num_workers,
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
