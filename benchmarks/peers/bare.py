"""A minimal hand-written training loop with Python's PyTorch, and its optimizer alone."""

import torch

from models import check_loss, make_dataset, make_loader, make_loss_function, make_model, make_optimizer
from turns import serve


def train(arguments, turns):
    dataset = make_dataset(arguments.work, arguments.steps)
    loader = make_loader(arguments.work, dataset, arguments.workers)
    model = make_model(arguments.work)
    optimizer = make_optimizer(model.parameters(), fused=not arguments.not_fused)
    loss_function = make_loss_function(arguments.work)
    model.train()
    forward = torch.compile(model) if arguments.compile else model
    turns.ready()
    while True:
        turns.begin()
        for inputs, targets in loader:
            loss = loss_function(forward(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        turns.end(lambda: check_loss(model, dataset))


def step(arguments, turns):
    torch.manual_seed(0)
    parameters = []
    for _ in range(1000):
        parameter = torch.randn(16, 16).requires_grad_()
        parameter.grad = torch.randn(16, 16)
        parameters.append(parameter)
    optimizer = make_optimizer(parameters, fused=not arguments.not_fused)
    turns.ready()
    while True:
        turns.begin()
        for _ in range(arguments.steps):
            optimizer.step()
        turns.end(lambda: sum(float(p.detach().square().mean()) for p in parameters) / len(parameters))


if __name__ == "__main__":
    serve(lambda arguments, turns: (step if arguments.work == "step" else train)(arguments, turns))
