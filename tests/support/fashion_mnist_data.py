"""Artificial images in the files of Fashion-MNIST."""

import gzip
import random
import struct

NUM_TRAIN = 700
NUM_TEST = 220


def idx(sizes, data):
    return struct.pack(f">I{len(sizes)}I", 0x0800 + len(sizes), *sizes) + data


def write_data(folder, num_train=NUM_TRAIN, num_test=NUM_TEST, has_bands=True):
    """Writes images whose class is the position of a bright band, or which are only noise. Only the training files are
    gzipped."""
    draw = random.Random(0)
    for prefix, count in (("train", num_train), ("t10k", num_test)):
        labels = bytes(draw.randrange(10) for _ in range(count))
        images = bytearray()
        for label in labels:
            image = bytearray(byte // 4 for byte in draw.randbytes(28 * 28))
            if has_bands:
                image[56 * label : 56 * (label + 1)] = bytes([255]) * 56
            images += image
        for name, content in (
            ("images-idx3-ubyte", idx([count, 28, 28], bytes(images))),
            ("labels-idx1-ubyte", idx([count], labels)),
        ):
            if prefix == "train":
                (folder / f"{prefix}-{name}.gz").write_bytes(gzip.compress(content, 1))
            else:
                (folder / f"{prefix}-{name}").write_bytes(content)
