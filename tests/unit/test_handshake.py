"""Ranks that are not about to do the same are told apart, without any group: ``gather`` is handed what the others would say."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from src.config.schema import Config
from src.errors import ConfigError
from src.handshake import code_digest, differences, shake_hands, weights_digest
from src.parallel.single import Single
from src.runtime.rank import Rank

DATA = {"training images": 64, "class names": ["cat", "dog"]}


class Group(Single):
    """Rank 0 of a group whose other ranks answer as ``others`` say."""

    def __init__(self, *others: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__(Rank(world_size=1 + len(others)))
        self.others = others

    def gather(self, value: Any) -> list[Any]:
        return [value, *(other(value) for other in self.others)]


def same(facts: dict[str, Any]) -> dict[str, Any]:
    return deepcopy(facts)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Linear(3, 2, dtype=torch.float16))


def test_equal_ranks_go_on() -> None:
    shake_hands(Group(same, same), Config(), net(), data=DATA)


@pytest.mark.parametrize(
    ("name", "other", "shown"),
    [
        ("training images", 60, "64 on ranks 0, 1, 60 on rank 2"),
        ("class names", ["dog", "cat"], '["cat", "dog"] on ranks 0, 1, ["dog", "cat"] on rank 2'),
        ("torch version", "2.11.0", "2.11.0 on rank 2"),
        ("config", "0" * 64, "000000000000 on rank 2"),
        ("code", "0" * 64, "code ("),
        ("initial weights", "0" * 64, "initial weights ("),
    ],
)
def test_a_difference_is_named_with_its_ranks(name: str, other: Any, shown: str) -> None:
    """FAULTS row 27."""
    with pytest.raises(ConfigError) as error:
        shake_hands(Group(same, lambda facts: facts | {name: other}), Config(), net(), data=DATA)
    assert shown in str(error.value)
    for equal in {"training images", "class names", "torch version", "config", "code", "initial weights"} - {name}:
        assert f"{equal} (" not in str(error.value)


def test_all_differences_are_named() -> None:
    assert [text.split(" (")[0] for text in differences([{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 2, "c": 3}])] == ["b", "c"]


def test_the_ranks_facts_come_from_what_they_run() -> None:
    """Another config and other weights really lead to other facts."""
    other: list[dict[str, Any]] = []
    shake_hands(Group(lambda facts: other.append(facts) or facts), Config(), net(), data=DATA)
    changed = net()
    changed[0].bias.data[0] += 1e-7
    with pytest.raises(ConfigError, match=r"config \(.*initial weights \("):
        shake_hands(Group(lambda facts: other[0]), replace(Config(), seed=7), changed, data=DATA)


def test_one_process_compares_nothing() -> None:
    shake_hands(Single(Rank()), Config(), None, data={})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["0.weight", "1.running_mean", "1.num_batches_tracked", "2.bias"])
def test_every_tensor_counts_for_the_weights(key: str) -> None:
    model = net()
    before = weights_digest(model)
    state = model.state_dict()[key]
    state.copy_((state + 1).view_as(state))
    assert weights_digest(model) != before


def test_the_memory_format_does_not_count_for_the_weights() -> None:
    model = net()
    assert weights_digest(deepcopy(model).to(memory_format=torch.channels_last)) == weights_digest(model)


def test_names_and_contents_count_for_the_code(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    first = code_digest(tmp_path)
    (tmp_path / "note.txt").write_text("no code")
    assert code_digest(tmp_path) == first
    (tmp_path / "a.py").write_text("2")
    second = code_digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, code_digest(tmp_path)}) == 3
