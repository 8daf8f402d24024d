"""The Python side of checkpoint_python_test.cpp: reads files of linkboy and writes files for it.

Usage: checkpoint_peer.py COMMAND PATH [PATH ...]; raises an exception on failure.
"""

import argparse
import collections
import copy
import pathlib
import pickle
import struct
import sys

import torch


def read(path):
    """Checks every value of the file that the test writes, without and with mmap."""
    for mmap in (False, True):
        data = torch.load(path, weights_only=True, mmap=mmap)
        assert list(data) == ["epoch", "lr", "flag", "none", "name", "tuple", "list", "by_index",
                              "empty", "weight", "transposed", "half", "scalar",
                              "unsigned", "float8"], list(data)
        assert data["epoch"] == 3 and type(data["epoch"]) is int
        assert data["lr"] == 0.125 and data["flag"] is True and data["none"] is None
        assert data["name"] == "gr\u00fcn" and data["tuple"] == (1, "two")
        assert data["list"] == [1, 2.5] and data["by_index"] == {7: "seven"}
        assert data["empty"].shape == (0, 3) and data["scalar"].item() == 2.5
        expected = torch.arange(6, dtype=torch.float32).view(2, 3)
        assert torch.equal(data["weight"], expected)
        assert torch.equal(data["transposed"], expected.t())
        assert data["transposed"].data_ptr() == data["weight"].data_ptr()
        assert torch.equal(data["half"], torch.ones(2, dtype=torch.bfloat16))
        assert data["unsigned"].dtype is torch.uint16
        assert torch.equal(data["unsigned"].int(), expected.int().t())
        assert data["float8"].dtype is torch.float8_e5m2
        assert torch.equal(data["float8"].float(), torch.arange(6).to(torch.float8_e5m2).float())


def step(kind, fused, source, target):
    """Loads parameters and optimizer state, makes one step and writes the parameters."""
    data = torch.load(source, weights_only=True, mmap=True)
    parameters = [torch.nn.Parameter(value.clone()) for value in data["parameters"]]
    groups = [{"params": [parameters[i] for i in group["params"]]}
              for group in data["optimizer"]["param_groups"]]
    optimizer = getattr(torch.optim, kind)(groups, lr=1.0)
    own_keys = list(optimizer.state_dict()["param_groups"][0])
    saved_keys = list(data["optimizer"]["param_groups"][0])
    assert own_keys == saved_keys, (own_keys, saved_keys)
    optimizer.load_state_dict(data["optimizer"])
    for group in optimizer.param_groups:
        assert group.get("fused") is None and group["foreach"] is None
        if fused == "fused":
            group["fused"] = True
        else:
            group["foreach"] = False
    for parameter, gradient in zip(parameters, data["gradients"], strict=True):
        parameter.grad = gradient
    optimizer.step()
    torch.save({"parameters": [parameter.detach() for parameter in parameters],
                "optimizer": optimizer.state_dict()}, target)


TRAINED = {
    "sgd": ("SGD", {"lr": 0.1, "momentum": 0.9},
            {"lr": 0.2, "momentum": 0.5, "nesterov": True, "weight_decay": 0.01}),
    "adam": ("Adam", {"lr": 0.1, "betas": (0.8, 0.95)}, {"lr": 0.2, "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.1, "weight_decay": 0.2}, {"lr": 0.2, "eps": 1e-6}),
    "adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.2}, {"lr": 0.2, "weight_decay": 0.01}),
    "rmsprop": ("RMSprop", {"lr": 0.1, "alpha": 0.8},
                {"lr": 0.2, "momentum": 0.5, "weight_decay": 0.01}),
    "rmsprop_centered": ("RMSprop", {"lr": 0.1, "centered": True},
                         {"lr": 0.2, "centered": True, "momentum": 0.5}),
}


def train(folder):
    """For each entry of TRAINED, writes the state of a run with two groups before and after a step."""
    for name, (kind, first, second) in TRAINED.items():
        torch.manual_seed(5)
        parameters = [torch.nn.Parameter(torch.rand(2, 3)), torch.nn.Parameter(torch.rand(4))]
        optimizer = getattr(torch.optim, kind)(
            [{"params": parameters[:1], **first}, {"params": parameters[1:], **second}],
            lr=1.0, foreach=False)
        for i in range(3):
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
            if i == 0:  # has another count of steps
                parameters[1].grad = None
                optimizer.step()
        before = [parameter.detach().clone() for parameter in parameters]
        gradients = [torch.randn_like(parameter) for parameter in parameters]
        state = copy.deepcopy(optimizer.state_dict())
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        torch.save({"parameters": before, "gradients": gradients, "optimizer": state,
                    "after": [parameter.detach() for parameter in parameters]},
                   f"{folder}/{name}.pt")

    capturable = torch.optim.RMSprop(parameters, capturable=True)
    torch.save(capturable.state_dict(), f"{folder}/rmsprop_capturable.pt")
    maximizing = torch.optim.Adagrad(parameters, maximize=True)
    torch.save(maximizing.state_dict(), f"{folder}/adagrad_maximize.pt")


def write_like_python_2(path):
    """Writes a parameter and a view of its storage as PyTorch 0.1 to 0.3 did in Python 2."""
    def text(value):
        return b"U" + bytes([len(value)]) + value.encode()

    def tensor(view, offset, size, stride):
        storage = (b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("7") + text("cpu")
                   + b"K\x06" + view + b"tQ")
        return (b"ctorch._utils\n_rebuild_tensor\n(" + storage
                + b"K%cK%c\x85K%c\x85tR" % (offset, size, stride))

    parameter = (b"ctorch.nn.parameter\nParameter\n" + tensor(b"N", 1, 2, 3)
                 + b"\x85\x81(\x88\x89ccollections\nOrderedDict\n)Rtb")
    view = tensor(b"(" + text("8") + b"K\x02K\x04t", 0, 4, 1)
    value = (b"\x80\x02ccollections\nOrderedDict\n](](" + text("w") + parameter + b"e]("
             + text("v") + view + b"ee\x85R.")
    data = b"".join(pickle.dumps(part, 2) for part in (
        torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION,
        {"little_endian": True}))
    data += value + pickle.dumps(["7"], 2) + struct.pack("<q6f", 6, *range(6))
    pathlib.Path(path).write_bytes(data)
    state = torch.load(path, weights_only=True)
    assert list(state) == ["w", "v"]
    assert state["w"].tolist() == [1, 4] and state["v"].tolist() == [2, 3, 4, 5]


def write(folder):
    """Writes the files that the test reads."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(6).view(2, 3))
    torch.save(model.state_dict(), f"{folder}/model.pt")

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, betas=(0.8, 0.9))
    torch.save({"new": optimizer.state_dict()}, f"{folder}/new_optimizer.pt")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    base = torch.arange(6, dtype=torch.float64)
    everything = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3,
        "tup": (1, 2), "none": None, "flag": True, "large": 2**40, "negative": -7,
        "size": torch.Size([2, 3]), "nested": [{"a": [1.5]}, []], "base": base,
        "view": base.view(2, 3)[:, 1], "parameter": torch.nn.Parameter(torch.ones(2)),
        "complex": torch.tensor([1 + 2j]), "bool": torch.tensor([True, False]),
        "unsigned": torch.tensor([65535], dtype=torch.uint16), "empty": torch.zeros(0, 3),
        "ordered": collections.OrderedDict(z=1, a=2),
    }
    torch.save(everything, f"{folder}/everything.pt")
    torch.save(everything, f"{folder}/protocol_4.pt", pickle_protocol=4)
    for protocol in (2, 4):
        torch.save(everything, f"{folder}/legacy_{protocol}.pt", pickle_protocol=protocol,
                   _use_new_zipfile_serialization=False)
    write_like_python_2(f"{folder}/python_2.pt")
    torch.save({"model": model}, f"{folder}/object.pt")
    torch.save([1, 2], f"{folder}/list.pt")
    torch.save({"long": 2**70}, f"{folder}/long.pt")
    maximizing = torch.optim.AdamW(model.parameters(), maximize=True)
    torch.save(maximizing.state_dict(), f"{folder}/maximize.pt")
    plain = torch.optim.SGD(model.parameters(), lr=0.5)
    plain.step()
    torch.save(plain.state_dict(), f"{folder}/sgd.pt")


def with_attribute(value):
    value.attribute = "text"
    return value


def value(path, expression, instead=""):
    """Writes the value of an expression, alone and, in the format before PyTorch 1.6, in a dict. If `instead` is
    given, the file in that format contains its value, where x is the first value."""
    x = eval(expression)
    torch.save(x, f"{path}.pt")
    if instead:
        x = eval(instead, {"torch": torch, "x": x})
    torch.save({"value": x}, f"{path}_legacy.pt", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"read": read, "step": step, "train": train, "value": value, "write": write}[sys.argv[1]](*sys.argv[2:])
