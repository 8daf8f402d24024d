"""The models and data of linkboy_workloads. The same seed produces exactly the same samples."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 10
NUM_CHECKED_SAMPLES = 256
BATCH_SIZES = {"mlp": 64, "cnn": 64, "resnet18": 32, "gpt": 8}
SHAPES = {"mlp": (784,), "cnn": (1, 28, 28), "resnet18": (3, 32, 32)}
# Of the GPT and its sequences.
NUM_BYTES, LENGTH, LAYERS, WIDTH, HEADS = 256, 64, 4, 128, 4
NUM_NOISE_VALUES = 4


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


class Block(nn.Module):
    """Creates its layers in the same order as byte_gpt::Block, so that they begin with the same values."""

    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def attend(self, x):
        parts = self.query_key_value(x).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = x + self.projection(self.attend(self.attention_norm(x)))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """byte_gpt::Gpt of examples/programs/byte_gpt."""

    def __init__(self):
        super().__init__()
        self.bytes = nn.Embedding(NUM_BYTES, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, NUM_BYTES)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        for embedding in (self.bytes, self.positions):
            nn.init.normal_(embedding.weight, 0.0, 0.1)

    def forward(self, tokens):
        positions = torch.arange(tokens.size(1), device=tokens.device)
        return self.head(self.norm(self.blocks(self.bytes(tokens) + self.positions(positions))))


def make_resnet18():
    from torchvision.models import resnet18  # imported here, because the import is slow

    model = resnet18(num_classes=NUM_CLASSES)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


def make_model(work):
    torch.manual_seed(0)
    return {"mlp": Mlp, "cnn": Cnn, "resnet18": make_resnet18, "gpt": Gpt}[work]()


def make_sequences(count):
    """Returns sequences in which each byte determines the next one, except for noise of four values."""
    tokens = torch.empty(count, LENGTH + 1, dtype=torch.int64)
    tokens[:, 0] = torch.randint(0, NUM_BYTES, (count,))
    noise = torch.randint(0, NUM_NOISE_VALUES, (count, LENGTH))
    for i in range(LENGTH):
        tokens[:, i + 1] = (tokens[:, i] * 5 + 17 + noise[:, i]).remainder(NUM_BYTES)
    return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def make_dataset(work, steps):
    """Returns the samples of `steps` full batches, so that an epoch has `steps` steps."""
    torch.manual_seed(0)
    count = steps * BATCH_SIZES[work]
    if work == "gpt":
        return make_sequences(count)
    shape = SHAPES[work]
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


def cross_entropy(outputs, targets):
    """The mean of the losses of all targets. The outputs have one more dimension, that of the classes."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def make_loss_function(work):
    return cross_entropy if work == "gpt" else nn.CrossEntropyLoss()


def check_loss(model, dataset):
    """Returns the check value, which is compared between all sides."""
    inputs, targets = dataset[:NUM_CHECKED_SAMPLES]
    with torch.no_grad():
        return float(cross_entropy(model(inputs), targets))
