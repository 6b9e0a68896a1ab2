"""Exact evaluation against torchmetrics, scikit-learn and float64, on one rank and on several."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, recall_score
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error, multiclass_confusion_matrix

from src.config.schema import Dtype, PrecisionConfig
from src.data.base import Batch
from src.data.sampler import eval_spans
from src.engine.evaluate import CALIBRATION_BINS, Evaluation, evaluate, measure_reliability
from src.parallel.single import Single
from src.precision import build_precision
from src.runtime.rank import Rank

FP32 = build_precision(PrecisionConfig(name="fp32"), device=torch.device("cpu"))


class Feed:
    """An ``EvalFeed`` of given inputs and labels."""

    def __init__(self, inputs: Tensor, labels: Tensor, *, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self.inputs, self.labels, self.size = inputs, labels, len(labels)
        self._spans = list(eval_spans(self.size, batch_size=batch_size, rank=rank, world_size=world_size))

    def batches(self) -> Iterator[Batch]:
        for span in self._spans:
            rows = torch.arange(span.start, span.stop)
            yield Batch(self.inputs[rows], self.labels[rows], rows, span.window, span.last)


class Recorded(Exception):
    """Ends an evaluation once its table is known."""


class Recorder(Single):
    """Keeps this rank's table instead of exchanging it."""

    def sum_(self, tensor: Tensor) -> Tensor:
        self.table = tensor.clone()
        raise Recorded


class Group(Single):
    """Adds the tables that the other ranks would send, in a rank's own order."""

    def __init__(self, rank: Rank, others: list[Tensor]) -> None:
        super().__init__(rank)
        self.others = others

    def sum_(self, tensor: Tensor) -> Tensor:
        for other in self.others:
            tensor += other
        return tensor


def alone(inputs: Tensor, labels: Tensor, *, num_classes: int, batch_size: int = 4, model: nn.Module | None = None) -> Evaluation:
    feed = Feed(inputs, labels, batch_size=batch_size)
    return evaluate(model or nn.Identity(), feed, num_classes=num_classes, precision=FP32, parallel=Single(Rank()))


def on_ranks(inputs: Tensor, labels: Tensor, *, num_classes: int, batch_size: int, world_size: int) -> list[Evaluation]:
    """What each rank of a group would return."""
    feeds = [Feed(inputs, labels, batch_size=batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    ranks = [Rank(rank=rank, world_size=world_size) for rank in range(world_size)]
    recorders = [Recorder(rank) for rank in ranks]
    for recorder, feed in zip(recorders, feeds, strict=True):
        with pytest.raises(Recorded):
            evaluate(nn.Identity(), feed, num_classes=num_classes, precision=FP32, parallel=recorder)
    found = []
    for rank, feed in zip(ranks, feeds, strict=True):
        group = Group(rank, [recorder.table for recorder in recorders if recorder.rank != rank])
        found.append(evaluate(nn.Identity(), feed, num_classes=num_classes, precision=FP32, parallel=group))
    return found


def sample(size: int, num_classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(size, num_classes, generator=generator), torch.randint(num_classes, (size,), generator=generator)


@pytest.mark.parametrize("num_classes", [6, 10, 100])
def test_metrics_equal_torchmetrics_and_scikit_learn(num_classes):
    logits, labels = sample(237, num_classes)
    found = alone(logits, labels, num_classes=num_classes, batch_size=32)
    probabilities = logits.double().softmax(dim=1).numpy()
    assert found.count == 237
    assert found.loss == pytest.approx(log_loss(labels, probabilities, labels=range(num_classes)), rel=1e-6)
    assert found.loss == pytest.approx(F.cross_entropy(logits.double(), labels).item(), rel=1e-6)
    assert found.accuracy == pytest.approx(accuracy_score(labels, probabilities.argmax(axis=1)), abs=1e-12)
    for name, top_k in (("accuracy", 1), ("top5", 5)):
        expected = multiclass_accuracy(logits, labels, num_classes=num_classes, top_k=top_k, average="micro")
        assert getattr(found, name) == pytest.approx(expected.item(), abs=1e-7)
    expected = multiclass_calibration_error(logits.double().softmax(dim=1), labels, num_classes=num_classes, n_bins=15, norm="l1")
    assert found.reliability.error == pytest.approx(expected.item(), abs=1e-6)
    assert torch.equal(found.confusion, multiclass_confusion_matrix(logits, labels, num_classes=num_classes))
    assert np.array_equal(found.confusion, confusion_matrix(labels, probabilities.argmax(axis=1), labels=range(num_classes)))
    assert found.confusion.dtype == torch.int64


@pytest.mark.parametrize("size", range(1, 18))
@settings(max_examples=5, deadline=None)
@given(st.integers(2, 12), st.integers(0, 1000))
def test_any_number_of_ranks_and_any_batch_gives_the_same_bits(size, num_classes, seed):
    """Every image is counted once; the numbers do not even differ in the last bit, nor between ranks."""
    logits, labels = sample(size, num_classes, seed)
    expected = alone(logits, labels, num_classes=num_classes, batch_size=size)
    assert expected.count == size == expected.confusion.sum()
    assert expected.loss == pytest.approx(F.cross_entropy(logits.double(), labels).item(), rel=1e-5, abs=1e-6)
    # probabilities: torchmetrics takes logits that happen to lie between 0 and 1 for them
    ece = multiclass_calibration_error(logits.double().softmax(dim=1), labels, num_classes=num_classes, n_bins=15, norm="l1")
    assert expected.reliability.error == pytest.approx(ece.item(), abs=1e-6)
    everywhere = [
        found
        for world_size, batch_size in product(range(1, 4), range(1, size + 1))
        for found in on_ranks(logits, labels, num_classes=num_classes, batch_size=batch_size, world_size=world_size)
    ]
    assert len(everywhere) == 6 * size
    for found in everywhere:
        assert (found.count, *found.metrics().values()) == (size, *expected.metrics().values())
        assert torch.equal(found.confusion, expected.confusion)
        assert found.reliability.to_dict() == expected.reliability.to_dict()


@given(st.lists(st.tuples(st.integers(0, 2**40), st.booleans()), min_size=1, max_size=40))
def test_the_bins_are_those_of_scikit_learn(sample):
    """Mean confidence and accuracy of each bin that is not empty, with confidences that are no edge of a bin."""
    confidence = torch.tensor([(2 * number + 1) / 2**42 for number, _ in sample], dtype=torch.float64)
    correct = torch.tensor([right for _, right in sample])
    found = measure_reliability(confidence, correct)
    accuracies, confidences = calibration_curve(correct.numpy(), confidence.numpy(), n_bins=CALIBRATION_BINS)
    bins = found.to_dict()
    assert sum(bins["count"]) == len(sample)
    assert [value for value in bins["accuracy"] if value is not None] == pytest.approx(accuracies.tolist())
    assert [value for value in bins["confidence"] if value is not None] == pytest.approx(confidences.tolist())
    assert [count == 0 for count in bins["count"]] == [value is None for value in bins["accuracy"]]


def test_an_edge_belongs_to_the_bin_below_it():
    """As in the paper, so that a confidence of 1 is in the last bin; values and bins worked out by hand."""
    found = measure_reliability(torch.tensor([1 / 15, 3 / 15, 1.0, 1.0, 0.5], dtype=torch.float64), torch.tensor([1, 0, 1, 0, 1]).bool())
    assert found.count.nonzero().flatten().tolist() == [0, 2, 7, 14]
    assert found.count.sum() == 5
    assert found.error == pytest.approx((14 / 15 + 3 / 15 + 0.5 + 1.0) / 5)


def test_ten_images_on_one_two_and_three_ranks():
    """Padding would make 12 of 10."""
    labels = torch.arange(10) % 6
    predictions = labels.clone()
    predictions[[2, 5, 9]] = (labels[[2, 5, 9]] + 1) % 6
    logits = 4.0 * F.one_hot(predictions, 6)
    for world_size in (1, 2, 3):
        for found in on_ranks(logits, labels, num_classes=6, batch_size=4, world_size=world_size):
            assert found.count == 10
            assert found.accuracy == 0.7
            assert found.loss == pytest.approx(np.log(np.exp(4) + 5) - 4 * 0.7, rel=1e-6)


def test_an_image_seen_twice_or_never_is_noticed():
    logits, labels = sample(6, 3)
    feed = Feed(logits, labels, batch_size=2)
    feed._spans.pop()
    with pytest.raises(AssertionError, match="exactly once"):
        evaluate(nn.Identity(), feed, num_classes=3, precision=FP32, parallel=Single(Rank()))
    whole = Group(Rank(world_size=2), [])
    recorder = Recorder(Rank())
    with pytest.raises(Recorded):
        evaluate(nn.Identity(), Feed(logits, labels, batch_size=2), num_classes=3, precision=FP32, parallel=recorder)
    whole.others = [recorder.table]
    with pytest.raises(AssertionError, match="exactly once"):
        evaluate(nn.Identity(), Feed(logits, labels, batch_size=2), num_classes=3, precision=FP32, parallel=whole)


@pytest.mark.parametrize("num_classes", [2, 3, 4, 5])
def test_up_to_five_classes_are_all_among_the_five_best(num_classes):
    logits, labels = sample(23, num_classes)
    found = alone(logits, labels, num_classes=num_classes)
    assert found.top5 == 1.0
    assert torch.equal(found.confusion, multiclass_confusion_matrix(logits, labels, num_classes=num_classes))


def test_a_head_wider_than_the_data():
    """Classes that no image has get empty rows, and no accuracy of their own."""
    logits, labels = sample(40, 7)
    labels = labels % 4
    found = alone(logits, labels, num_classes=7)
    names = [f"c{number}" for number in range(7)]
    per_class = found.to_dict(names)["per_class_accuracy"]
    expected = recall_score(labels, logits.argmax(dim=1), labels=range(4), average=None)
    assert [per_class[name] for name in names[:4]] == pytest.approx(expected.tolist())
    assert [per_class[name] for name in names[4:]] == [None] * 3
    assert found.to_dict(names)["confusion"] == found.confusion.tolist()


def test_nan_logits_spoil_the_loss_and_nothing_else():
    logits, labels = sample(12, 6)
    logits[5] = float("nan")
    found = alone(logits, labels, num_classes=6)
    others = torch.arange(12) != 5
    assert np.isnan([found.loss, found.reliability.error]).all()
    assert found.count == found.confusion.sum() == 12
    difference = found.confusion - multiclass_confusion_matrix(logits[others], labels[others], num_classes=6)
    assert difference.sum() == difference[labels[5]].sum() == 1


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_evaluated_in_eval_mode_without_gradients_and_given_back_as_it_was(training):
    logits, labels = sample(9, 6)
    seen = []
    net = nn.Sequential(nn.Dropout(0.9), nn.Linear(6, 6))
    net.register_forward_hook(lambda module, args, output: seen.append((module.training, output.requires_grad)))
    net.train(training)
    first = alone(logits, labels, num_classes=6, model=net)
    assert net.training is net[0].training is training
    assert set(seen) == {(False, False)}
    assert alone(logits, labels, num_classes=6, model=net).loss == first.loss  # no dropout, so no chance


@pytest.mark.parametrize("dtype", [Dtype.bfloat16, Dtype.float16])
def test_the_forward_pass_runs_in_half_and_the_loss_in_full_precision(dtype):
    inputs, labels = sample(33, 8)
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    precision = build_precision(PrecisionConfig(name="amp", dtype=dtype), device=torch.device("cpu"))
    found = evaluate(net, Feed(inputs, labels, batch_size=5), num_classes=8, precision=precision, parallel=Single(Rank()))
    half = getattr(torch, dtype.name)
    with torch.no_grad():
        logits = torch.cat([F.linear(rows.to(half), net.weight.to(half), net.bias.to(half)) for rows in inputs.split(5)])
    assert found.loss == pytest.approx(F.cross_entropy(logits.double(), labels).item(), rel=1e-6)
    assert found.accuracy == pytest.approx((logits.argmax(dim=1) == labels).double().mean().item())
