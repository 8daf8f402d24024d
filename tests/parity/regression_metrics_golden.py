#!/usr/bin/env python3
"""Writes values of torchmetrics' regression, perplexity and ranking metrics for metrics_golden_test.cpp, as in
torchmetrics_golden.py."""

import torch
import torchmetrics_golden
from torchmetrics import functional as F
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import (BinaryAUROC, BinaryAveragePrecision, MulticlassAUROC,
                                         MulticlassAveragePrecision)
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError, R2Score
from torchmetrics.text import Perplexity
from torchmetrics_golden import group


def case(name, options, metric, batches, to_theirs=lambda *batch: batch, functional=None):
    """Updates `metric` with the batches, and checks that `functional` returns the same value for all batches."""
    theirs = [to_theirs(*batch) for batch in batches]
    for batch in theirs:
        metric.update(*[x for x in batch if x is not None])
    value = metric.compute()
    if functional is not None:
        whole = functional(*[torch.cat(column) for column in zip(*theirs)])
        assert torch.allclose(value, whole, rtol=1e-12, atol=1e-12, equal_nan=True), (name, value, whole)
    return torchmetrics_golden.case(name, options, value)


class Inputs:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def integer(self, low, high, shape=()):
        drawn = torch.randint(low, high, shape, generator=self.generator)
        return drawn if shape else drawn.item()

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape):
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def sizes(self):
        """Returns the sizes of three batches, the last of which has one sample."""
        return [self.integer(3, 15), self.integer(3, 15), 1]


def doubles(*batch):
    return tuple(None if x is None else x.double() for x in batch)


def mean_groups(inputs):
    # In torchmetrics 1.9.0, "disable" ignores the weights.
    for nans, strategy in [(False, "error"), (False, "warn"), (True, "warn")]:
        batches = []
        for size in inputs.sizes():
            values = inputs.normal(size, 3)
            if nans:
                values[0, 1] = float("nan")
            batches += [(values, None), (values.to(torch.float32), inputs.uniform(size, 3)), (values, inputs.uniform(3)),
                        (values[0, 2], inputs.uniform(1)[0])]
        yield group("with NaN" if nans else "numbers", batches,
                    [case("mean", {"ignore_nan": strategy == "warn"}, MeanMetric(nan_strategy=strategy), batches, doubles)])


def pairs(inputs, *shape, dtype=torch.float64):
    batches = []
    for size in inputs.sizes():
        targets = inputs.normal(size, *shape)
        batches.append(((targets + inputs.normal(size, *shape) * 0.5).to(dtype), targets.to(dtype)))
    return batches


def error_cases(batches, num_outputs):
    for squared in [True, False]:
        yield case("mean-squared-error", {"squared": squared, "num_outputs": num_outputs},
                   MeanSquaredError(squared=squared, num_outputs=num_outputs), batches, doubles,
                   lambda o, t: F.mean_squared_error(o, t, squared=squared, num_outputs=num_outputs))
    yield case("mean-absolute-error", {"num_outputs": num_outputs}, MeanAbsoluteError(num_outputs=num_outputs), batches, doubles,
               lambda o, t: F.mean_absolute_error(o, t, num_outputs=num_outputs))


def error_groups(inputs):
    for shape, num_outputs in [((), 1), ((3,), 1), ((2, 2), 1), ((3,), 3), ((1,), 1)]:
        for dtype in [torch.float64, torch.float32, torch.bfloat16]:
            batches = pairs(inputs, *shape, dtype=dtype)
            yield group(f"{dtype} {shape}", batches, error_cases(batches, num_outputs))


def r2_cases(batches, num_outputs, all_adjusted):
    averages = {"uniform": "uniform_average", "variance_weighted": "variance_weighted", "none": "raw_values"}
    for average, multioutput in averages.items():
        for adjusted in all_adjusted:
            # If all targets are constant, torchmetrics divides by 0.
            if average == "variance_weighted" and all((t == 2.0).all() or (t == 1.0).all() for _, t in batches):
                continue
            yield case("r2-score", {"num_outputs": num_outputs, "average": average, "adjusted": adjusted},
                       R2Score(multioutput=multioutput, adjusted=adjusted), batches, doubles,
                       lambda o, t: F.r2_score(o, t, adjusted=adjusted, multioutput=multioutput))


def r2_groups(inputs):
    kinds = {
        "double": pairs(inputs, 3),
        "float": pairs(inputs, 3, dtype=torch.float32),
        "constant targets": [(o, torch.full_like(t, 2.0)) for o, t in pairs(inputs, 3)],
        "an exact output and a constant one": [(torch.cat([o[:, :1], t[:, 1:]], 1), torch.cat([t[:, :2], torch.ones_like(t[:, 2:])], 1))
                                               for o, t in pairs(inputs, 3)],
        "exact and constant": [(torch.ones_like(o), torch.ones_like(t)) for o, t in pairs(inputs, 3)],
    }
    for title, batches in kinds.items():
        yield group(title, batches, r2_cases(batches, 3, [0, 2, 1000]))
    batches = pairs(inputs)
    count = sum(len(t) for _, t in batches)
    yield group("one output", batches, r2_cases(batches, 1, [0, 3, count - 2, count - 1, count]))


def perplexity_groups(inputs):
    for ignore_index in [None, -100, 0]:
        batches = []
        for size in inputs.sizes():
            logits, labels = inputs.normal(size, 2, 7) * 3, inputs.integer(0, 7, (size, 2))
            if ignore_index is not None:
                labels[0, :] = ignore_index
            batches.append((logits, labels))
        options = {} if ignore_index is None else {"ignore_index": ignore_index}

        def cases(batches, class_dim, to_theirs):
            return [case("perplexity", {"class_dim": class_dim, **options}, Perplexity(ignore_index=ignore_index), batches,
                         to_theirs, lambda o, t: F.text.perplexity(o, t, ignore_index=ignore_index))]

        flat = [(o[:, 0], t[:, 0]) for o, t in batches[:2]]
        turned = [(o.transpose(1, 2), t) for o, t in batches]
        yield group("[N, T, C]", batches, cases(batches, -1, lambda o, t: (o, t)))
        yield group("[N, C, T]", turned, cases(turned, 1, lambda o, t: (o.transpose(1, 2), t)))
        yield group("[N, C]", flat, cases(flat, -1, lambda o, t: (o[:, None], t[:, None])))


def binary_batches(inputs):
    """Maps a descriptive name to each list of batches."""
    sizes = inputs.sizes()
    scores = [inputs.uniform(size) for size in sizes]
    labels = [inputs.integer(0, 2, (size,)) for size in sizes]
    tied = [(s * 10).round() / 10 for s in scores]
    ends = [s.where(s > 0.5, s.round()) for s in tied]
    logits = [torch.cat([torch.tensor([4.0]), inputs.normal(size - 1) * 4]) for size in sizes]
    yield "random", list(zip(scores, labels)), False
    yield "ties", list(zip(tied, labels)), False
    yield "ties in float", [(s.to(torch.float32), t) for s, t in zip(tied, labels)], False
    yield "bfloat16", [(s.bfloat16(), t) for s, t in zip(scores, labels)], False
    yield "zeros and ones", list(zip(ends, labels)), False
    yield "equal scores", [(torch.full_like(s, 0.25), t) for s, t in zip(scores, labels)], False
    yield "positive only", [(s, torch.ones_like(t)) for s, t in zip(tied, labels)], False
    yield "negative only", [(s, torch.zeros_like(t)) for s, t in zip(tied, labels)], False
    yield "one sample", [(scores[2], torch.ones_like(labels[2]))], False
    yield "logits", list(zip(logits, labels)), True
    yield "large logits", [(s.to(torch.float32) * 30, t) for s, t in zip(logits, labels)], True
    yield "two dimensions", [(torch.stack([s, s.flip(0)], 1), torch.stack([t, t], 1)) for s, t in zip(tied, labels)], False


def multiclass_batches(inputs, num_classes):
    sizes = inputs.sizes()
    logits = [inputs.normal(size, num_classes) * 2 for size in sizes]
    for batch in logits:
        batch[0, 0] = 3.0
    scores = [batch.softmax(1) for batch in logits]
    tied = [(s * 10).round() / 10 for s in scores]
    labels = [inputs.integer(0, num_classes, (size,)) for size in sizes]
    yield "random", list(zip(scores, labels)), False
    yield "ties", list(zip(tied, labels)), False
    yield "ties in float", [(s.to(torch.float32), t) for s, t in zip(tied, labels)], False
    yield "logits", list(zip(logits, labels)), True
    yield "three dimensions", [(torch.stack([s, s.flip(0)], 2), torch.stack([t, t], 1)) for s, t in zip(tied, labels)], False


# In single precision, which is torchmetrics' default.
THRESHOLDS = {count: torch.linspace(0, 1, count, dtype=torch.float32) for count in [2, 5, 11, 100]}


def has_all_classes(batches, num_classes):
    """Whether each class occurs. torchmetrics' other values differ from those of scikit-learn."""
    return len({label for _, targets in batches for label in targets.flatten().tolist()}) == num_classes


def binary_cases(batches, from_logits):
    for name, metric, functional in [
        ("auroc", BinaryAUROC, F.classification.binary_auroc),
        ("average-precision", BinaryAveragePrecision, F.classification.binary_average_precision),
    ]:
        if name == "auroc" and not has_all_classes(batches, 2):
            continue
        for count in [None, *THRESHOLDS]:
            options = {} if count is None else {"thresholds": count}
            thresholds = THRESHOLDS.get(count)
            yield case(name, {"from_logits": from_logits, **options}, metric(thresholds=thresholds), batches,
                       functional=lambda o, t: functional(o, t, thresholds=thresholds))


def multiclass_cases(batches, num_classes, from_logits):
    for name, metric, functional in [
        ("auroc", MulticlassAUROC, F.classification.multiclass_auroc),
        ("average-precision", MulticlassAveragePrecision, F.classification.multiclass_average_precision),
    ]:
        for count in [None, *THRESHOLDS]:
            for average in ["macro", "weighted", "none"]:
                options = {"num_classes": num_classes, "average": average}
                theirs = options | {"thresholds": THRESHOLDS.get(count)}
                ours = options | {"from_logits": from_logits} | ({} if count is None else {"thresholds": count})
                yield case(name, ours, metric(**theirs), batches, functional=lambda o, t: functional(o, t, **theirs))


def ranking_groups(inputs):
    for title, batches, from_logits in binary_batches(inputs):
        yield group(title, batches, binary_cases(batches, from_logits))
    for num_classes in [2, 4]:
        for title, batches, from_logits in multiclass_batches(inputs, num_classes):
            if not has_all_classes(batches, num_classes):
                continue
            yield group(title, batches, multiclass_cases(batches, num_classes, from_logits))


def groups(seed):
    inputs = Inputs(seed or 0)
    for make in mean_groups, error_groups, r2_groups, perplexity_groups, ranking_groups:
        yield from make(inputs)


if __name__ == "__main__":
    torchmetrics_golden.main(groups)
