"""Prints the golden values of tests/unit/vision/resnet_test.cpp.

Needs the Python packages torch, torchvision, numpy and pillow. Made with torch 2.11.0 and torchvision
0.26.0; the first line of the output contains the versions.
"""

import torch
import torchvision

NAMES = ("conv1.weight", "layer2.0.downsample.0.weight", "layer4.1.conv2.weight", "fc.weight")

print("torch", torch.__version__, "torchvision", torchvision.__version__)
for depth in (18, 34):
    torch.manual_seed(3)
    model = getattr(torchvision.models, f"resnet{depth}")(num_classes=10)
    parameters = dict(model.named_parameters())
    print(depth, len(parameters), len(model.state_dict()), sum(p.numel() for p in parameters.values()))
    for name in NAMES:
        print(f'{{"{name}", {parameters[name].detach().double().abs().sum().item()!r}}},')
    model.eval()
    images = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
    print("scores", model(images).tolist())
