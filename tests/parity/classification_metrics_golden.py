#!/usr/bin/env python3
"""Writes values of torchmetrics' classification metrics for metrics_golden_test.cpp, as in torchmetrics_golden.py."""

import torch
import torchmetrics_golden
from torchmetrics import classification as tm
from torchmetrics.segmentation import DiceScore

AVERAGES = ["micro", "macro", "weighted", "none"]
NORMALIZE = {"none": None, "labels": "true", "predictions": "pred", "all": "all"}


def scores(shape):
    """Returns multiples of 1/8, with many ties."""
    return torch.randint(0, 9, shape) / 8


def distinct_scores(shape):
    """Returns scores without ties along dimension 1."""
    return torch.rand(shape, dtype=torch.float32).argsort(1) / 4


def scored(shapes, num_classes, make=scores):
    """Returns batches of scores [N, C, ...] with labels [N, ...]."""
    return [(make([n, num_classes, *rest]), torch.randint(num_classes, [n, *rest])) for n, *rest in shapes]


def indexed(shapes, num_classes, highest=None):
    """Returns batches of class indices below `highest`."""
    highest = highest or num_classes
    return [(torch.randint(highest, shape), torch.randint(highest, shape)) for shape in shapes]


def binary(sizes, low, high, column=False):
    """Returns batches of one score per sample. If low is negative, those of the last batch are outside of [0, 1]."""
    batches = []
    for size in sizes:
        outputs = torch.randint(low, high + 1, [size]) / 8
        if low < 0:
            outputs[-1] = low / 8 - 1
        batches.append((outputs.unsqueeze(1) if column else outputs, torch.randint(2, [size])))
    return batches


def with_label(batches, label):
    """Assigns the label to some samples, but not to the first of a batch."""
    for _, targets in batches:
        targets.view(-1)[1::3] = label
    return batches


def fixed(predictions, labels):
    return [(torch.tensor(predictions), torch.tensor(labels))]


def inputs():
    """Maps a name to (num_classes, batches, ignore_index, threshold or None)."""
    return {
        "scores": (4, scored([[5], [1], [7]], 4), None, None),
        "scores, no ties": (5, scored([[6], [9]], 5, distinct_scores), None, None),
        "images": (3, scored([[2, 4, 2], [1, 4, 2]], 3), None, None),
        "indexes, two classes absent": (6, indexed([[9], [4]], 6, 4), None, None),
        "index images": (3, indexed([[2, 2, 3], [1, 2, 3]], 3), None, None),
        "ignored -100": (4, with_label(scored([[8], [5]], 4), -100), -100, None),
        "ignored -100, no ties": (5, with_label(scored([[8], [5]], 5, distinct_scores), -100), -100, None),
        "ignored class": (4, with_label(scored([[8], [9]], 4), 2), 2, None),
        "ignored class, no ties": (4, with_label(scored([[8], [9]], 4, distinct_scores), 1), 1, None),
        "ignored class, images": (3, with_label(indexed([[2, 3, 2]], 3), 0), 0, None),
        "all ignored": (3, fixed([0, 1, 2], [-1, -1, -1]), -1, None),
        "one class, all right": (3, fixed([1, 1], [1, 1]), None, None),
        "one class, all wrong": (3, fixed([1, 1], [2, 2]), None, None),
        "two scores": (2, scored([[7], [6]], 2), None, None),
        "binary indexes": (2, indexed([[11], [3]], 2), None, None),
        "probabilities": (2, binary([9, 4], 0, 8), None, 0.5),
        "probabilities, high threshold": (2, binary([9, 4], 0, 8), None, 0.75),
        "probabilities in a column": (2, binary([9, 4], 0, 8, column=True), None, 0.5),
        "logits": (2, binary([9, 4], -16, 16), None, 0.0),
        "probabilities, ignored -1": (2, with_label(binary([9, 4], 0, 8), -1), -1, 0.5),
        "binary all right": (2, fixed([0, 1, 1], [0, 1, 1]), None, None),
        "binary all wrong": (2, fixed([0, 1, 1], [1, 0, 0]), None, None),
        "binary all predicted 1": (2, fixed([1, 1, 1], [1, 1, 0]), None, None),
        "binary all predicted 0": (2, fixed([0, 0, 0, 0], [1, 0, 1, 1]), None, None),
        "binary all are 1": (2, fixed([0, 1, 0], [1, 1, 1]), None, None),
        "binary all are 0": (2, fixed([0, 1, 0], [0, 0, 0]), None, None),
        "binary all ignored": (2, fixed([0, 1], [-1, -1]), -1, None),
    }


def random_inputs():
    sizes = [[int(n)] for n in torch.randint(1, 60, [int(torch.randint(1, 5, []))])]
    images = [[n, 3, 4] for [n] in sizes]
    flat = [n for [n] in sizes]
    num_classes = int(torch.randint(2, 12, []))
    ignored = int(torch.randint(num_classes, []))
    return {
        "scores": (num_classes, scored(sizes, num_classes), None, None),
        "scores, no ties": (num_classes, scored(images, num_classes, distinct_scores), None, None),
        "images, ignored -100": (num_classes, with_label(scored(images, num_classes), -100), -100, None),
        "indexes": (num_classes, indexed(images, num_classes), None, None),
        "ignored class": (num_classes, with_label(indexed(sizes, num_classes), ignored), ignored, None),
        "probabilities": (2, binary(flat, 0, 8), None, 0.5),
        "logits": (2, binary(flat, -16, 16, column=True), None, 0.0),
    }


class Dice:
    """DiceScore over all samples that are not ignored, as one image, because it does not have an
    ignore_index and needs a dimension in addition to that of the samples."""

    def __init__(self, num_classes, average, ignore_index):
        self.ignore_index = ignore_index
        self.dice = DiceScore(num_classes, average=average, input_format="index",
                              aggregation_level="global")

    def update(self, outputs, targets):
        if outputs.ndim > targets.ndim:
            outputs = outputs.argmax(1)
        counted = targets != self.ignore_index
        self.dice.update(outputs[counted].view(1, -1).long(), targets[counted].view(1, -1))

    def compute(self):
        return self.dice.compute()


def has_one_class(batches, ignore_index, threshold):
    """Whether only one class is predicted or only one class occurs as a label."""
    predictions, labels = set(), set()
    for outputs, targets in batches:
        if outputs.is_floating_point():
            outputs = outputs.argmax(1) if threshold is None else outputs.view_as(targets) > threshold
        counted = torch.ones_like(targets, dtype=bool) if ignore_index is None else targets != ignore_index
        predictions.update(outputs[counted].tolist())
        labels.update(targets[counted].tolist())
    return len(predictions) < 2 or len(labels) < 2


def cases(num_classes, ignore_index, threshold, has_distinct_scores, has_matthews):
    """Yields (metric, options in addition to those of the input, torchmetrics' counterpart)."""
    common = {"ignore_index": ignore_index}
    multiclass = {"num_classes": num_classes, **common}
    for average in AVERAGES:
        options = {"average": average}
        yield "accuracy", options, tm.MulticlassAccuracy(average=average, **multiclass)
        yield "precision", options, tm.MulticlassPrecision(average=average, **multiclass)
        yield "recall", options, tm.MulticlassRecall(average=average, **multiclass)
        for beta in [1.0, 0.5]:
            f_beta = tm.MulticlassFBetaScore(beta, average=average, **multiclass)
            yield "f-beta", {**options, "beta": beta}, f_beta
        yield "iou", options, tm.MulticlassJaccardIndex(average=average, **multiclass)
        # torchmetrics does not exclude an ignored class.
        if ignore_index is None or ignore_index < 0:
            yield "dice", options, Dice(num_classes, average, ignore_index)
        for top_k in {2, num_classes} if has_distinct_scores else []:
            yield ("accuracy", {**options, "top_k": top_k},
                   tm.MulticlassAccuracy(average=average, top_k=top_k, **multiclass))
    for name, normalize in NORMALIZE.items():
        matrix = tm.MulticlassConfusionMatrix(normalize=normalize, **multiclass)
        yield "confusion-matrix", {"normalize": name}, matrix
    for weights in ["none", "linear", "quadratic"]:
        yield "cohen-kappa", {"weights": weights}, tm.MulticlassCohenKappa(weights=weights, **multiclass)
    if has_matthews:
        yield "matthews-corr-coef", {}, tm.MulticlassMatthewsCorrCoef(**multiclass)
    if threshold is not None:
        # torchmetrics needs probabilities.
        binary_options = {"threshold": threshold or 0.5, **common}
        options = {"average": "binary"}
        yield "accuracy", options, tm.BinaryAccuracy(**binary_options)
        yield "precision", options, tm.BinaryPrecision(**binary_options)
        yield "recall", options, tm.BinaryRecall(**binary_options)
        yield "f-beta", {**options, "beta": 2.0}, tm.BinaryFBetaScore(2.0, **binary_options)
        yield "iou", options, tm.BinaryJaccardIndex(**binary_options)
        matrix = tm.BinaryConfusionMatrix(normalize="true", **binary_options)
        yield "confusion-matrix", {"normalize": "labels"}, matrix
        yield "cohen-kappa", {"weights": "none"}, tm.BinaryCohenKappa(**binary_options)
        if has_matthews:
            yield "matthews-corr-coef", {}, tm.BinaryMatthewsCorrCoef(**binary_options)


def value_of(metric, batches, threshold):
    for outputs, targets in batches:
        if threshold is not None:
            outputs = outputs.view_as(targets)
            if not type(metric).__name__.startswith("Binary"):
                outputs = (outputs > threshold).long()
        metric.update(outputs, targets)
    return metric.compute()


def groups(seed):
    torch.manual_seed(8 if seed is None else seed)
    for name, (num_classes, batches, ignore_index, threshold) in (inputs() if seed is None else random_inputs()).items():
        common = {"num_classes": num_classes, "ignore_index": ignore_index, "threshold": threshold}
        common = {key: value for key, value in common.items() if value is not None}
        # If there is one class of two, torchmetrics' Matthews coefficient differs from scikit-learn's.
        has_matthews = num_classes > 2 or not has_one_class(batches, ignore_index, threshold)
        yield torchmetrics_golden.group(name, batches, (
            torchmetrics_golden.case(metric, {**common, **options}, value_of(theirs, batches, threshold))
            for metric, options, theirs in cases(num_classes, ignore_index, threshold, "no ties" in name, has_matthews)))


if __name__ == "__main__":
    torchmetrics_golden.main(groups)
