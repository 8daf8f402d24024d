"""The models and data of linkboy_workloads. The same seed produces exactly the same samples."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 10
NUM_CHECKED_SAMPLES = 256
BATCH_SIZES = {"mlp": 64, "cnn": 64, "resnet18": 32}
SHAPES = {"mlp": (784,), "cnn": (1, 28, 28), "resnet18": (3, 32, 32)}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden1 = nn.Linear(784, 128)
        self.hidden2 = nn.Linear(128, 64)
        self.output = nn.Linear(64, NUM_CLASSES)

    def forward(self, x):
        return self.output(F.relu(self.hidden2(F.relu(self.hidden1(x)))))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.hidden = nn.Linear(64 * 4 * 4, 128)
        self.output = nn.Linear(128, NUM_CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.output(F.relu(self.hidden(x.flatten(1))))


def make_resnet18():
    from torchvision.models import resnet18  # imported here, because the import is slow

    model = resnet18(num_classes=NUM_CLASSES)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


def make_model(work):
    torch.manual_seed(0)
    return {"mlp": Mlp, "cnn": Cnn, "resnet18": make_resnet18}[work]()


def make_dataset(work, steps):
    """Returns the samples of `steps` full batches, so that an epoch has `steps` steps."""
    torch.manual_seed(0)
    count, shape = steps * BATCH_SIZES[work], SHAPES[work]
    inputs = torch.randn(count, *shape)
    if len(shape) == 1:
        patterns = torch.randn(NUM_CLASSES, *shape)
    else:
        patterns = torch.randn(NUM_CLASSES, shape[0], 4, 4)
        patterns = patterns.repeat_interleave(shape[1] // 4, 2).repeat_interleave(shape[2] // 4, 3)
    # Adds in place, because temporary tensors would count as memory of the run.
    whole = count // NUM_CLASSES * NUM_CLASSES
    inputs[:whole].view(-1, NUM_CLASSES, *shape).add_(patterns, alpha=0.1)
    return TensorDataset(inputs, torch.arange(count).remainder(NUM_CLASSES))


def make_loader(work, dataset, workers):
    # Persistent workers are faster than new ones in each epoch.
    return DataLoader(dataset, batch_size=BATCH_SIZES[work], shuffle=True, num_workers=workers,
                      persistent_workers=workers > 0)


def make_optimizer(parameters, fused=True):
    return torch.optim.AdamW(parameters, lr=1e-3, fused=fused)


def check_loss(model, dataset):
    """Returns the check value, which is compared between all sides."""
    inputs, targets = dataset[:NUM_CHECKED_SAMPLES]
    with torch.no_grad():
        return float(F.cross_entropy(model(inputs), targets))
