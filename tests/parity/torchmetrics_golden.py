"""The common part of classification_metrics_golden.py, regression_metrics_golden.py and sklearn_metrics_golden.py.

    SCRIPT FILE               the golden values
    SCRIPT --random SEED ...  the values of other inputs, to the standard output

Needs torchmetrics 1.9.0; prints {"missing": REASON} without it. Writes one JSON object per line: the versions, then
groups of batches and cases, with their seed if there is one. A case is a metric, its options, and the value over all
batches.
"""

import contextlib
import itertools
import json
import sys
import warnings

import torch

try:
    import torchmetrics
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit(0)

# By default, torchmetrics divides in single precision; the values are compared in double precision.
torch.set_default_dtype(torch.float64)
torch.Tensor.float = torch.Tensor.double


def number(value):
    """Returns NaN and infinities as strings, because JSON does not have them."""
    return value if value == value and abs(value) != float("inf") else str(value)


def tensor(value):
    if value is None:
        return None
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape),
            "data": [number(x) for x in value.flatten().tolist()]}


def case(name, options, value):
    # With few counts, the Matthews coefficient contains a single-precision epsilon.
    return {"metric": name, "options": options, "value": tensor(value.double()),
            "tolerance": 1e-6 if value.dtype == torch.float32 else 1e-12}


def group(title, batches, cases):
    """A group of cases with the same batches."""
    return {"title": title, "cases": list(cases),
            "batches": [{"outputs": tensor(outputs), "targets": tensor(targets)} for outputs, targets in batches]}


def main(groups, peer=torchmetrics):
    """Writes the groups that `groups` returns for each seed, or for None, which represents the golden values."""
    warnings.simplefilter("ignore")
    is_random = sys.argv[1] == "--random"
    versions = {"torch": torch.__version__, peer.__name__: peer.__version__}
    with contextlib.nullcontext(sys.stdout) if is_random else open(sys.argv[1], "w") as file:
        seeds = map(int, sys.argv[2:]) if is_random else [None]
        with_seed = ({**line, "seed": seed} if is_random else line for seed in seeds for line in groups(seed))
        for line in itertools.chain([versions], with_seed):
            print(json.dumps(line, separators=(",", ":")), file=file)
