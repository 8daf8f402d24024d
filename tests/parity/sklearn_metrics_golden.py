#!/usr/bin/env python3
"""Writes values of scikit-learn's metrics in corner cases for metrics_golden_test.cpp, as in torchmetrics_golden.py.

Needs scikit-learn 1.9.1; prints {"missing": REASON} without it. If scikit-learn raises an error (all metrics without
samples), there is no case. docs/metrics.md lists the differences, each of which has a comment here.
"""

import json
import sys

import numpy as np
import torch
import torchmetrics_golden
from torchmetrics_golden import group

try:
    import sklearn
    from sklearn import metrics as sk
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit(0)

AVERAGES = ["micro", "macro", "weighted", "none"]
TINY, HUGE = 1e-12, 1e12


def cases(metric, options, reference, tolerance=1e-12):
    """Returns a case, or none if scikit-learn raises an error."""
    try:
        value = reference()
    except ValueError:
        return []
    expected = torch.as_tensor(np.asarray(value, dtype=np.float64))
    return [torchmetrics_golden.case(metric, options, expected) | {"tolerance": tolerance}]


def in_batches(outputs, targets):
    """Returns an empty batch, one of a single sample, and the rest."""
    return [(outputs[a:b], targets[a:b]) for a, b in [(0, 0), (0, 1), (1, None)] if a < len(targets) or a == 0]


def is_counted(targets, ignore_index):
    return torch.ones_like(targets, dtype=torch.bool) if ignore_index is None else targets != ignore_index


# ---- Classification


def predicted_classes(outputs, threshold):
    if not outputs.is_floating_point():
        return outputs
    return outputs.argmax(1) if threshold is None else (outputs > threshold).long()


def class_cases(outputs, targets, num_classes, ignore_index, threshold):
    counted = is_counted(targets, ignore_index)
    truth = targets[counted].numpy()
    predicted = predicted_classes(outputs, threshold)[counted].numpy()
    labels = list(range(num_classes))
    options = {"num_classes": num_classes, "ignore_index": ignore_index, "threshold": threshold}
    options = {key: value for key, value in options.items() if value is not None}

    def case(metric, function, more={}, **arguments):
        return cases(metric, options | more, lambda: function(truth, predicted, **arguments))

    yield from case("accuracy", sk.accuracy_score)
    for average in AVERAGES + (["binary"] if num_classes == 2 else []):
        chosen = {"average": average}
        theirs = {"average": None if average == "none" else average, "zero_division": 0}
        # A mean is over the classes that occur, which is scikit-learn's default.
        if average in ("micro", "none"):
            theirs["labels"] = labels
        if average != "binary":  # the accuracy of a class is its recall, not that of balanced_accuracy_score
            yield from case("accuracy", sk.recall_score, chosen, **theirs)
        yield from case("precision", sk.precision_score, chosen, **theirs)
        yield from case("recall", sk.recall_score, chosen, **theirs)
        for beta in [1.0, 0.5, 2.0]:
            yield from case("f-beta", sk.fbeta_score, chosen | {"beta": beta}, beta=beta, **theirs)
        # An ignored class is absent for linkboy, even if it is predicted.
        if ignore_index not in labels:
            yield from case("iou", sk.jaccard_score, chosen, **theirs)
            # A class that does not occur does not have a Dice coefficient.
            if average not in ("none", "binary") or set(labels) <= {*truth, *predicted}:
                yield from case("dice", sk.f1_score, chosen, **theirs)
    for name, normalize in {"none": None, "labels": "true", "predictions": "pred", "all": "all"}.items():
        yield from case("confusion-matrix", sk.confusion_matrix, {"normalize": name}, labels=labels, normalize=normalize)
    for weights in ["none", "linear", "quadratic"]:
        yield from case("cohen-kappa", sk.cohen_kappa_score, {"weights": weights},
                        weights=None if weights == "none" else weights, labels=labels)
    yield from case("matthews-corr-coef", sk.matthews_corrcoef)
    if outputs.is_floating_point() and threshold is None:
        scores = outputs[counted].numpy()
        for k in range(1, num_classes + 1):
            # scikit-learn's order of equal scores differs; it counts the last class first, even for k = 1.
            if (np.diff(np.sort(scores, axis=1)) != 0).all():
                yield from cases("accuracy", options | {"top_k": k},
                                 lambda: np.mean((np.argsort(-scores, axis=1)[:, :k] == truth[:, None]).any(axis=1))
                                 if num_classes == 2 else sk.top_k_accuracy_score(truth, scores, k=k, labels=labels))


def fixed(predictions, labels):
    return torch.tensor(predictions, dtype=torch.int64), torch.tensor(labels, dtype=torch.int64)


def class_inputs(generator):
    """Yields (title, outputs, targets, num_classes, ignore_index, threshold)."""
    def integers(high, count):
        return torch.randint(high, [count], generator=generator)

    def scores(count, columns):
        return torch.rand([count, columns], generator=generator, dtype=torch.float64)

    yield "no samples", *fixed([], []), 3, None, None
    for num_classes in [2, 3]:
        of = f", {num_classes} classes"
        yield "constant predictions" + of, *fixed([1] * 100, [1] * 99 + [0]), num_classes, None, None
        yield "constant targets" + of, *fixed([1] * 99 + [0], [1] * 100), num_classes, None, None
        yield "one class, all right" + of, *fixed([1, 1, 1], [1, 1, 1]), num_classes, None, None
        yield "one class, all wrong" + of, *fixed([1, 1, 1], [0, 0, 0]), num_classes, None, None
        yield "one sample, right" + of, *fixed([0], [0]), num_classes, None, None
        yield "one sample, wrong" + of, *fixed([1], [0]), num_classes, None, None
        yield "all wrong" + of, *fixed([0, 1, 1, 0], [1, 0, 0, 1]), num_classes, None, None
        yield "all ignored" + of, *fixed([0, 1], [-1, -1]), num_classes, -1, None
        some_ignored = integers(num_classes, 12).index_fill(0, torch.tensor([0, 5, 6]), -3)
        yield "ignored samples" + of, integers(num_classes, 12), some_ignored, num_classes, -3, None
        targets = integers(num_classes, 9)
        for scale in [TINY, 1.0, HUGE]:
            yield f"scores of {scale}" + of, scores(9, num_classes) * scale, targets, num_classes, None, None
        yield "equal scores" + of, torch.ones([9, num_classes], dtype=torch.float64), targets, num_classes, None, None
    yield "an absent class", integers(3, 20), integers(3, 20), 4, None, None
    yield "a class that is only predicted", *fixed([0, 2, 1, 2], [0, 1, 1, 0]), 3, None, None
    yield "a class that is never predicted", *fixed([0, 1, 1, 0], [0, 1, 2, 2]), 3, None, None
    yield "an ignored class", integers(4, 20), integers(4, 20), 4, 2, None
    yield "scores at the threshold", torch.tensor([0.5, 0.5, 0.25, 0.75]), integers(2, 4), 2, None, 0.5
    yield "random", integers(7, 60), integers(7, 60), 7, None, None


def class_groups(generator):
    for title, outputs, targets, num_classes, ignore_index, threshold in class_inputs(generator):
        yield group(title, in_batches(outputs, targets), class_cases(outputs, targets, num_classes, ignore_index, threshold))


# ---- Ranking


def ranking_cases(outputs, targets):
    num_classes = outputs.shape[1] if outputs.ndim == 2 else None
    truth, scores = targets.numpy(), outputs.numpy()
    if num_classes is None:
        yield from cases("auroc", {}, lambda: sk.roc_auc_score(truth, scores))
        yield from cases("average-precision", {}, lambda: sk.average_precision_score(truth, scores))
        return
    each = np.eye(num_classes, dtype=np.int64)[truth]
    for average in ["macro", "weighted", "none"]:
        options = {"num_classes": num_classes, "average": average}
        theirs = None if average == "none" else average
        # The mean excludes classes without a value; scikit-learn's macro mean is then NaN.
        auroc = (lambda: np.nanmean(sk.roc_auc_score(each, scores, average=None))) if average == "macro" else (
            lambda: sk.roc_auc_score(each, scores, average=theirs))
        yield from cases("auroc", options, auroc)
        yield from cases("average-precision", options, lambda: sk.average_precision_score(each, scores, average=theirs))


def ranking_groups(generator):
    def scores(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    bits = torch.randint(2, [12], generator=generator).index_fill(0, torch.tensor([3]), 1).index_fill(0, torch.tensor([4]), 0)
    labels = torch.arange(12) * 5 % 3
    for title, transform in {
        "scores": lambda s: s,
        "ties": lambda s: (s * 4).round() / 4,
        "constant scores": lambda s: torch.full_like(s, 0.25),
        "tiny scores": lambda s: s * TINY,
        "huge scores": lambda s: (s - 0.5) * HUGE,
        "nearly equal scores": lambda s: HUGE + s,
    }.items():
        for targets_title, targets, of_classes in [
            ("", bits, labels),
            (", one class", torch.ones_like(bits), torch.zeros_like(labels)),
            (", no positive sample", torch.zeros_like(bits), torch.full_like(labels, 2)),
            (", an absent class", None, labels % 2),
            (", one sample", bits[3:4], labels[1:2]),
        ]:
            if targets is not None:
                outputs = transform(scores(len(targets)))
                yield group(title + targets_title, in_batches(outputs, targets), ranking_cases(outputs, targets))
            outputs = transform(scores(len(of_classes), 3))
            yield group(f"{title} of 3 classes{targets_title}", in_batches(outputs, of_classes),
                        ranking_cases(outputs, of_classes))


# ---- Regression and text


def regression_cases(outputs, targets, num_outputs, tolerance):
    truth, predicted = targets.numpy(), outputs.numpy()
    options = {"num_outputs": num_outputs}
    raw = {"multioutput": "raw_values"} if num_outputs > 1 else {}
    # These have a unit, so an absolute tolerance would accept any tiny value.
    for squared, function in [(True, sk.mean_squared_error), (False, sk.root_mean_squared_error)]:
        yield from cases("mean-squared-error", options | {"squared": squared}, lambda: function(truth, predicted, **raw), 0.0)
    yield from cases("mean-absolute-error", options, lambda: sk.mean_absolute_error(truth, predicted, **raw), 0.0)
    for average, multioutput in {"uniform": "uniform_average", "variance_weighted": "variance_weighted",
                                 "none": "raw_values"}.items():
        def r2():
            values = np.asarray(sk.r2_score(truth, predicted, multioutput=multioutput))
            return values[0] if values.shape == (1,) else values
        # The value of a single sample is a scalar in scikit-learn.
        if average != "none" or len(truth) > 1:
            yield from cases("r2-score", options | {"average": average}, r2, tolerance)


def regression_groups(generator):
    for num_outputs in [1, 3]:
        shape = [11] if num_outputs == 1 else [11, num_outputs]
        targets = torch.randn(shape, generator=generator, dtype=torch.float64)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64) / 8
        mean = targets.mean(0).expand(shape)
        constant = torch.full(shape, 2.0, dtype=torch.float64)
        one_constant = targets.clone()
        one_constant.view(11, -1)[:, 0] = 2.0
        # The mean of the targets is rounded to a multiple of 1e-4.
        offset = (targets * 8).round() + HUGE
        for title, outputs, values, tolerance in [
            ("no samples", targets[:0], targets[:0], 0.0),
            ("one sample", (targets + noise)[:1], targets[:1], 0.0),
            ("two samples", (targets + noise)[:2], targets[:2], 0.0),
            ("exact", targets, targets, 0.0),
            ("constant predictions", constant, targets, 0.0),
            ("constant targets", targets, constant, 0.0),
            ("constant targets, exact", constant, constant, 0.0),
            ("a constant target", one_constant + noise, one_constant, 0.0),
            ("large and similar", offset + 1.0, offset, 1e-6),
            *[(f"{what} of {scale}", outputs * scale, targets * scale, tolerance)
              for scale in [TINY, 1e-3, 1.0, HUGE]
              for what, outputs, tolerance in [("targets", targets + noise, 0.0), ("mean of targets", mean, 1e-12)]],
        ]:
            yield group(f"{title}, {num_outputs} outputs", in_batches(outputs, values),
                        regression_cases(outputs, values, num_outputs, tolerance))


def perplexity_groups(generator):
    for title, scale, labels, ignore_index in [
        ("logits", 1.0, [0, 1, 2, 3, 0], None),
        ("an absent class", 1.0, [0, 1, 1, 0, 0], None),
        ("one label", 1.0, [2], None),
        ("tiny logits", TINY, [0, 1, 2, 3, 0], None),
        # scikit-learn raises probabilities to 2e-16, so larger logits would differ.
        ("large logits", 8.0, [0, 1, 2, 3, 0], None),
        ("ignored labels", 1.0, [0, -100, 2, -100, 1], -100),
        ("all ignored", 1.0, [-100, -100], -100),
    ]:
        targets = torch.tensor(labels)
        outputs = torch.rand([len(labels), 4], generator=generator, dtype=torch.float64) * scale
        counted = is_counted(targets, ignore_index)
        probabilities = outputs[counted].softmax(1).numpy()
        yield group(title, in_batches(outputs, targets), cases(
            "perplexity", {} if ignore_index is None else {"ignore_index": ignore_index},
            lambda: np.exp(sk.log_loss(targets[counted].numpy(), probabilities, labels=range(4)))))


def groups(seed):
    generator = torch.Generator().manual_seed(seed or 0)
    for make in class_groups, ranking_groups, regression_groups, perplexity_groups:
        yield from make(generator)


if __name__ == "__main__":
    torchmetrics_golden.main(groups, sklearn)
