"""Writes results of torchvision and Pillow for the same images and models, for tests/parity/vision_test.cpp.

    vision_peer.py images FOLDER   writes images of many formats and sizes into class folders of FOLDER/data, and
                                   FOLDER/expected.pt: their pixels, their sizes, and torchvision's results
    vision_peer.py resnet FOLDER   writes FOLDER/DEPTH-ZERO_INIT.pt: weights, an input and its scores

Prints {"missing": REASON} if torchvision is missing, otherwise its version.
"""

import json
import pathlib
import sys

import torch

try:
    import numpy as np
    import torchvision
    from PIL import Image
    from torchvision.transforms import CenterCrop, PILToTensor, Resize
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit(0)

# Sizes of the shorter side and of the centre crop. Some crops are larger than the images.
RESIZED = [(40, (33, 40)), (17, (16, 16)), (150, (100, 111)), (64, (1, 1))]


def picture(width, height, channels=3):
    """Returns a smooth picture with some noise, like a photograph."""
    noise = np.random.default_rng(width * 1000 + height)
    small = noise.integers(0, 256, (height // 8 + 2, width // 8 + 2, channels), dtype=np.uint8)
    planes = [np.asarray(Image.fromarray(small[..., c]).resize((width, height), Image.BICUBIC))
              for c in range(channels)]
    values = np.stack(planes, -1).astype(int) + noise.integers(-9, 10, (height, width, channels))
    return values.clip(0, 255).astype(np.uint8)


def write_jpegs(folder):
    folder.mkdir(parents=True)
    for width, height in [(97, 61), (64, 48), (16, 130), (1, 1), (50, 7)]:
        image = Image.fromarray(picture(width, height))
        name = f"{width}x{height}"
        for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
            for progressive in (False, True):
                image.save(folder / f"{name}-{subsampling.replace(':', '')}-{progressive}.jpg", quality=90,
                           subsampling=subsampling, progressive=progressive)
        image.save(folder / f"{name}-restart.JPEG", quality=75, restart_marker_blocks=2)
        image.save(folder / f"{name}-rgb.jpeg", quality=85, keep_rgb=True)
        image.convert("L").save(folder / f"{name}-grey.jpg", quality=60)
        Image.fromarray(picture(width, height, 4), "CMYK").save(folder / f"{name}-cmyk.jpg", quality=90)
    exif = Image.Exif()
    exif[0x0112] = 6  # requests a rotation, which is not applied
    image.save(folder / "turned.jpg", exif=exif)


def write_pngs(folder):
    folder.mkdir(parents=True)
    for width, height in [(97, 61), (3, 2), (120, 50)]:
        rgb, four = picture(width, height), picture(width, height, 4)
        image, name = Image.fromarray(rgb), f"{width}x{height}"
        palette = image.quantize(200)
        image.save(folder / f"{name}-rgb.png")
        Image.fromarray(four, "RGBA").save(folder / f"{name}-rgba.png")
        Image.fromarray(four[..., :2], "LA").save(folder / f"{name}-la.png")
        image.convert("L").save(folder / f"{name}-l.png")
        image.convert("L").save(folder / f"{name}-l-key.png", transparency=100)
        image.save(folder / f"{name}-rgb-key.png", transparency=(1, 2, 3))
        image.convert("1").save(folder / f"{name}-1.PNG")
        palette.save(folder / f"{name}-p.png")
        palette.save(folder / f"{name}-p-alpha.png", transparency=bytes(range(200)))
        for bits in (1, 2, 4):
            image.quantize(2**bits).save(folder / f"{name}-p{bits}.png", bits=bits)
        wide = rgb[..., 0].astype(np.uint16) * 3 - 40  # values below and above 256, and wrapped ones
        Image.fromarray(wide).save(folder / f"{name}-l16.png")


def images(folder):
    data = folder / "data"
    write_jpegs(data / "jpegs")
    write_pngs(data / "pngs")
    nested = data / "nested"
    for place in ("b", "a-b", "a/b", "a", "a/ü", "."):
        (nested / place).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(9, 8)).save(nested / place / "x.png")
        Image.fromarray(picture(8, 9)).save(nested / place / "B.jpg")
    (nested / "linked").symlink_to(data / "nested" / "b")
    (data / "jpegs" / "notes.txt").write_text("not an image")

    dataset = torchvision.datasets.ImageFolder(data)
    expected = {"paths": [path for path, _ in dataset.samples], "labels": dataset.targets, "classes": dataset.classes}
    for i, (image, _) in enumerate(dataset):
        expected[f"{i} pixels"] = PILToTensor()(image)
        for side, (height, width) in RESIZED:
            resized = Resize(side)(image)
            expected[f"{i} resized to {side}"] = PILToTensor()(resized)
            if resized.width >= width and resized.height >= height:
                expected[f"{i} cut out of {side}"] = PILToTensor()(CenterCrop((height, width))(resized))
    torch.save(expected, folder / "expected.pt")


def resnet(folder):
    for depth in (18, 34, 50):
        for zero_init_residual in (False, True):
            torch.manual_seed(3)
            model = getattr(torchvision.models, f"resnet{depth}")(num_classes=10, zero_init_residual=zero_init_residual)
            model.eval()
            images = torch.linspace(-1, 1, 2 * 3 * 64 * 64).reshape(2, 3, 64, 64)
            with torch.no_grad():
                scores = model(images)
            torch.save({"state": model.state_dict(), "images": images, "scores": scores},
                       folder / f"{depth}-{int(zero_init_residual)}.pt")


if __name__ == "__main__":
    {"images": images, "resnet": resnet}[sys.argv[1]](pathlib.Path(sys.argv[2]))
    print(json.dumps({"torchvision": torchvision.__version__}))
