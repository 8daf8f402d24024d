"""The Python side of fine_tune_checkpoint.cpp: trains the base model and evaluates the tuned one.

    python3 python_side.py --pretrain base.pt    also writes few.pt, the data of the new task
    python3 python_side.py --check tuned.pt
"""

import argparse

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, num_classes)

    def forward(self, points):
        return self.head(self.body(points))


def update(net, optimizer, points, classes):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(points), classes).backward()
    optimizer.step()


def accuracy(net, points, classes):
    with torch.no_grad():
        return (net(points).argmax(1) == classes).double().mean().item()


def pretrain(path):
    """Trains a model to find the largest of the first 8 numbers; the new task uses only the first 3."""
    torch.manual_seed(0)
    net = Net(8)
    optimizer = torch.optim.AdamW(net.parameters(), 0.003)
    points = torch.randn(8192, 16)
    classes = points[:, :8].argmax(1)
    for _ in range(10):
        for chosen in torch.randperm(8192).split(64):
            update(net, optimizer, points[chosen], classes[chosen])
    torch.save(net.state_dict(), path)
    few = torch.randn(1300, 16)
    torch.save({"points": few, "classes": few[:, :3].argmax(1)}, "few.pt")
    print(f"accuracy of the base model: {accuracy(net, points, classes):.2f}")


def check(path):
    file = torch.load(path, weights_only=True)
    net = Net(3)
    net.load_state_dict(file["model_state_dict"])
    data = torch.load("few.pt", weights_only=True)
    print(f"{file['note']}, accuracy in Python: "
          f"{accuracy(net, data['points'][300:], data['classes'][300:]):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--pretrain", metavar="FILE", help="train the base model and write it to FILE")
    task.add_argument("--check", metavar="FILE", help="evaluate the fine-tuned model in FILE")
    arguments = parser.parse_args()
    if arguments.pretrain:
        pretrain(arguments.pretrain)
    else:
        check(arguments.check)


if __name__ == "__main__":
    main()
