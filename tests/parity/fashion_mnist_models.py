"""The models of examples/programs/fashion_mnist in Python, with the same names and the same weights for a seed."""

from torch import nn


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, images):
        return super().forward(images.flatten(1))


def cnn():
    def block(inside, outside):
        return (
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    return nn.Sequential(
        *block(1, 16),
        *block(16, 32),
        nn.Flatten(),
        nn.Linear(1568, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def conv(inside, outside, kernel, stride):
    return nn.Conv2d(inside, outside, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = conv(inside, outside, 3, stride)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = conv(outside, outside, 3, 1)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if inside != outside:
            self.downsample = nn.Sequential(
                conv(inside, outside, 1, stride), nn.BatchNorm2d(outside)
            )

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu_()
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return y.relu_()


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()

        def layer(inside, outside, stride):
            return nn.Sequential(Block(inside, outside, stride), Block(outside, outside, 1))

        self.conv1 = conv(1, 64, 3, 1)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = layer(64, 64, 1)
        self.layer2 = layer(64, 128, 2)
        self.layer3 = layer(128, 256, 2)
        self.layer4 = layer(256, 512, 2)
        self.fc = nn.Linear(512, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images):
        x = self.bn1(self.conv1(images)).relu_()
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


MODELS = {"mlp": Mlp, "cnn": cnn, "resnet18": ResNet18}
