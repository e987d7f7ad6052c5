#!/usr/bin/env python3
"""Golden values of the metrics in extensions/metrics/, which scikit-learn (1.9.1) computes.

    metrics_golden.py write FOLDER     writes FOLDER/scikit_learn.json (FOLDER: extensions/metrics/tests/golden)
    metrics_golden.py check FOLDER     computes the values of that file again, with the scikit-learn that is installed

The file has sets of predictions and targets, and rows: a metric, its options, its value. extensions/metrics/tests/scikit_learn_test.cpp
compares our metrics with them. All predictions are multiples of 1/64, which f32 holds exactly. The check ends with "N passed, N failed".
Skipped (exit code 77) without scikit-learn; $PYTHON names an interpreter that has it.
"""
import json
import math
import pathlib
import random
import sys
import warnings

from checks import need

need("sklearn", "numpy")
import numpy as np  # noqa: E402
import sklearn  # noqa: E402
from sklearn import metrics as sk  # noqa: E402

warnings.filterwarnings("ignore")  # scikit-learn warns of 0 / 0
AVERAGES = ["micro", "macro", "weighted", "none"]
IGNORED = -100


def area(scores, positive):
    """NaN without samples of the class, or without others, where scikit-learn gives an error or NaN, by its version."""
    return sk.roc_auc_score(positive, scores) if 0 < positive.sum() < len(positive) else math.nan


def value(metric, options, scores, targets):
    """What scikit-learn computes, as a list of numbers."""
    o = {"classes": 2, "average": "binary", "zero_division": 0, **options}
    counts = targets != IGNORED
    scores, targets = scores[counts], targets[counts]
    every = range(o["classes"])
    predicted = scores
    if "threshold" in o:
        predicted = (scores > o["threshold"]).astype(int)
    elif scores.ndim == 2:
        predicted = scores.argmax(1)
    if metric == "Accuracy":
        return [sk.accuracy_score(targets, predicted)]
    if metric == "TopKAccuracy":
        return [sk.top_k_accuracy_score(targets, scores, k=o["k"], labels=range(scores.shape[1]))]
    if metric == "ConfusionMatrix":
        divisors = {"none": None, "targets": "true", "predictions": "pred", "all": "all"}
        return sk.confusion_matrix(targets, predicted, labels=every, normalize=divisors[o.get("normalize", "none")]).ravel().tolist()
    if metric in ("Precision", "Recall", "F1Score", "FBetaScore"):
        # Without `labels`, means are over the classes that occur in targets or predictions.
        more = dict(labels=every, average=None) if o["average"] == "none" else dict(average=o["average"])
        if metric == "FBetaScore":
            more["beta"] = o["beta"]
        function = {"Precision": sk.precision_score, "Recall": sk.recall_score, "F1Score": sk.f1_score, "FBetaScore": sk.fbeta_score}[metric]
        return np.ravel(function(targets, predicted, zero_division=o["zero_division"], **more)).tolist()
    if metric == "AUROC":
        if o["classes"] == 2:
            return [area(scores if scores.ndim == 1 else scores[:, 1], targets == 1)]
        areas = [area(scores[:, c], targets == c) for c in every]
        if o["average"] == "none":
            return areas
        if not any(map(math.isnan, areas)):
            return [sk.roc_auc_score(targets, scores, multi_class="ovr", average=o["average"])]
        kept = [c for c in every if not math.isnan(areas[c])]
        return [np.average([areas[c] for c in kept], weights=[(targets == c).sum() for c in kept] if o["average"] == "weighted" else None)]
    if metric == "MeanSquaredError":
        error = sk.mean_squared_error(targets, scores)
        return [math.sqrt(error) if o.get("root") else error]
    if metric == "MeanAbsoluteError":
        return [sk.mean_absolute_error(targets, scores)]
    if metric == "Perplexity":
        odds = np.exp(scores)
        return [math.exp(sk.log_loss(targets, odds / odds.sum(1, keepdims=True), labels=range(scores.shape[1])))]
    raise ValueError(metric)


def class_scores(classes, **options):
    """Rows of precision, recall and F scores with all averages."""
    rows = []
    for average in (["binary"] if classes == 2 else []) + AVERAGES:
        shared = {"classes": classes, "average": average, **options}
        rows += [("Precision", shared), ("Recall", shared), ("F1Score", shared), ("FBetaScore", {"beta": 0.5, **shared}), ("FBetaScore", {"beta": 2, **shared})]
    return rows


def matrices(classes, **options):
    return [("ConfusionMatrix", {"classes": classes, "normalize": normalize, **options}) for normalize in ("none", "targets", "predictions", "all")]


def areas(classes):
    return [("AUROC", {"classes": classes, "average": average}) for average in ("macro", "weighted", "none")]


def sets():
    """(name, predictions, targets, rows of metric and options)."""
    draw = random.Random(50)

    def several(count, of):
        return [of() for _ in range(count)]

    def guesses(targets, classes, right=0.6):
        return [t if draw.random() < right else draw.choice(classes) for t in targets]

    def close(targets, classes, steps):
        """Probabilities in parts of 1/steps, so with ties; each row's sum is 1."""
        rows = []
        for t in targets:
            parts = [0] * classes
            for _ in range(steps):
                parts[t if draw.random() < 0.3 and t >= 0 else draw.randrange(classes)] += 1
            rows.append([part / steps for part in parts])
        return rows

    binary = several(40, lambda: int(draw.random() < 0.3))
    yield "two classes", guesses(binary, [0, 1]), binary, [("Accuracy", {}), *class_scores(2), *matrices(2)]
    yield "class 1 never occurs", [0] * 5, [0] * 5, [row for zero in (0, 1, math.nan) for row in class_scores(2, zero_division=zero)] + matrices(2)
    yield "class 1 is never predicted", [0] * 6, [0, 1, 0, 1, 1, 0], class_scores(2) + class_scores(2, zero_division=1)
    yield "all are wrong", [1, 0, 1, 1], [0, 1, 0, 0], [("Accuracy", {}), *class_scores(2), *matrices(2)]
    probabilities = several(40, lambda: draw.randrange(17) / 16)
    yield "a threshold", probabilities, guesses([int(p > 0.5) for p in probabilities], [0, 1]), [
        ("Accuracy", {"threshold": 0.5}), *class_scores(2, threshold=0.5), *matrices(2, threshold=0.5), ("AUROC", {})]

    # Class 4 has no target, class 3 no prediction, class 5 neither.
    targets = several(60, lambda: draw.choice([0, 0, 0, 1, 1, 2, 3]))
    yield "absent classes", guesses([0 if t == 3 else t for t in targets], [0, 1, 2, 4]), targets, [
        ("Accuracy", {}), *class_scores(6), *class_scores(6, zero_division=1), *class_scores(6, zero_division=math.nan), *matrices(6)]

    targets = several(50, lambda: draw.randrange(5))
    rows = [("Accuracy", {}), *class_scores(5), *matrices(5), *(("TopKAccuracy", {"k": k}) for k in range(1, 6)), *areas(5)]
    yield "scores of five classes", close(targets, 5, 64), targets, rows
    yield "scores of five classes, with many ties", close(targets, 5, 4), targets, rows
    targets = [IGNORED if draw.random() < 0.2 else t for t in targets]
    yield "targets that do not count", close(targets, 5, 8), targets, rows
    targets = several(30, lambda: draw.choice([0, 1, 3]))
    yield "a class without targets", close(targets, 4, 16), targets, [*areas(4), ("TopKAccuracy", {"k": 2})]
    yield "scores of two classes", close(binary, 2, 16), binary, [("Accuracy", {}), ("AUROC", {}), *class_scores(2)]
    for name, score in (("apart", lambda t: t + draw.randrange(64) / 64), ("mixed", lambda t: (t + draw.randrange(-128, 128)) / 64),
                        ("in few steps", lambda t: t + draw.randrange(3)), ("equal", lambda t: 1), ("reversed", lambda t: -t)):
        yield f"areas, scores {name}", [score(t) for t in binary], binary, [("AUROC", {})]
    logits = several(30, lambda: several(7, lambda: draw.randrange(-256, 257) / 64))
    yield "logits", logits, several(30, lambda: draw.randrange(7)), [("Perplexity", {})]
    errors = [("MeanSquaredError", {}), ("MeanSquaredError", {"root": True}), ("MeanAbsoluteError", {})]
    numbers = several(50, lambda: draw.randrange(-640, 640) / 64)
    yield "numbers", [x + draw.randrange(-64, 65) / 64 for x in numbers], numbers, errors
    yield "large numbers", [x * 4096 + 1 for x in numbers], [x * 4096 for x in numbers], errors
    yield "equal numbers", numbers, numbers, errors


def write(path):
    lines = []
    for name, predictions, targets, rows in sets():
        values = [json.dumps({"metric": metric, "options": options, "value": value(metric, options, np.array(predictions), np.array(targets))}) for metric, options in rows]
        head = {"name": name, "shape": np.shape(predictions), "predictions": np.ravel(predictions).tolist(), "targets": targets}
        lines.append(json.dumps(head)[:-1] + ', "rows": [\n' + ",\n".join(values) + "]}")
    made_with = f"scikit-learn {sklearn.__version__}, tests/interop/metrics_golden.py"
    path.write_text('{"made_with": ' + json.dumps(made_with) + ', "sets": [\n' + ",\n".join(lines) + "]}\n")


def check(path):
    passed = failed = older = 0
    for one in json.loads(path.read_text())["sets"]:
        predictions, targets = np.array(one["predictions"]).reshape(one["shape"]), np.array(one["targets"])
        for row in one["rows"]:
            try:
                found = value(row["metric"], row["options"], predictions, targets)
            except ValueError as error:
                if not math.isnan(row["options"].get("zero_division", 0)):
                    raise
                older += 1  # scikit-learn 1.3 is the first that takes NaN here
                continue
            same = np.allclose(found, row["value"], rtol=1e-12, atol=0, equal_nan=True)
            passed, failed = passed + same, failed + (not same)
            if not same:
                print(f"FAIL {one['name']}: {row['metric']} {row['options']}: {row['value']} in the file, {found} by scikit-learn {sklearn.__version__}")
    if older:
        print(f"{older} rows left out: scikit-learn {sklearn.__version__} refuses NaN for zero_division")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit(__doc__)
    path = pathlib.Path(sys.argv[2]) / "scikit_learn.json"
    sys.exit(write(path) if sys.argv[1] == "write" else check(path))


if __name__ == "__main__":
    main()
