"""Starting from weights of another run or of somebody else."""

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torchvision import models as zoo

from src.errors import CheckpointError
from src.models.pretrained import head_layer, load_pretrained


def net(num_classes: int = 10, *, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(1, 4, 3), norm=nn.BatchNorm2d(4), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(4, num_classes)
        )
    )


def with_child(name: str, *, seed: int) -> nn.Module:
    """A network whose only child has the name of a wrapper."""
    return nn.Sequential(OrderedDict([(name, net(seed=seed))]))


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def assert_equal(model: nn.Module, state: dict[str, Tensor]) -> None:
    own = model.state_dict()
    assert own.keys() == state.keys()
    assert all(own[name].equal(tensor) for name, tensor in state.items())


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module.", "model.module."])
def test_wrappers_leave_names_that_load(prefix: str) -> None:
    """E03."""
    state, model = net(seed=1).state_dict(), net()
    assert load_pretrained(model, prefixed(state, prefix), reset_head=False, source="file") == []
    assert_equal(model, state)


@pytest.mark.parametrize("child", ["module", "model", "_orig_mod"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
def test_a_child_with_a_wrappers_name_loads(child: str, prefix: str) -> None:
    """E03: bare and wrapped, and the names really are those that torch's own wrappers give."""
    source, model = with_child(child, seed=1), with_child(child, seed=0)
    if prefix == "module.":
        assert prefixed(source.state_dict(), prefix).keys() == nn.DataParallel(source).state_dict().keys()
    assert load_pretrained(model, prefixed(source.state_dict(), prefix), reset_head=False, source="file") == []
    assert_equal(model, source.state_dict())


def test_a_prefix_of_some_names_stays() -> None:
    """E03: cutting seven characters off every name would damage the others."""
    state = net(seed=1).state_dict()
    mixed = {("module." if name.startswith("conv") else "") + name: tensor for name, tensor in state.items()}
    with pytest.raises(CheckpointError, match=r"conv\.weight is missing; conv\.bias is missing; module\.conv\.weight is unknown here"):
        load_pretrained(net(), mixed, reset_head=False, source="file")


def test_another_number_of_classes_is_one_line_with_both_shapes() -> None:
    """H03."""
    model = net(3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError) as error:
        load_pretrained(model, net(10, seed=1).state_dict(), reset_head=False, source="ten.pt")
    assert str(error.value).startswith("ten.pt: fc.weight has shape [10, 4], here it is [3, 4]; set model.reset_head=true")
    assert "\n" not in str(error.value)
    assert_equal(model, before)


@pytest.mark.parametrize("classes", [3, 10])
def test_a_fresh_head_is_kept_and_named(classes: int) -> None:
    """H03: everything else is loaded."""
    model, state = net(classes), net(10, seed=1).state_dict()
    head = {name: tensor.clone() for name, tensor in model.state_dict().items() if name.startswith("fc.")}
    assert load_pretrained(model, state, reset_head=True, source="file") == ["fc.weight", "fc.bias"]
    assert_equal(model, state | head)


def test_weights_without_a_head_need_reset_head() -> None:
    state = {name: tensor for name, tensor in net(seed=1).state_dict().items() if not name.startswith("fc.")}
    with pytest.raises(CheckpointError, match=r"fc\.weight is missing; fc\.bias is missing"):
        load_pretrained(net(), state, reset_head=False, source="file")
    assert load_pretrained(net(), state, reset_head=True, source="file") == ["fc.weight", "fc.bias"]


@pytest.mark.parametrize("reset_head", [False, True])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"conv.weight": torch.zeros(4, 3, 3, 3)}, r"conv\.weight has shape \[4, 3, 3, 3\], here it is \[4, 1, 3, 3\]"),
        ({"conv.bias": None}, r"conv\.bias is missing"),
        ({"norm.running_mean": None}, r"norm\.running_mean is missing"),
        ({"extra.weight": torch.zeros(1)}, r"extra\.weight is unknown here"),
    ],
)
def test_only_the_head_may_differ(change: dict[str, Tensor | None], problem: str, reset_head: bool) -> None:
    state = {name: tensor for name, tensor in (net(seed=1).state_dict() | change).items() if tensor is not None}
    model = net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=rf"^file does not fit this network.*: {problem}; use weights"):
        load_pretrained(model, state, reset_head=reset_head, source="file")
    assert_equal(model, before)


def test_many_problems_are_counted() -> None:
    with pytest.raises(CheckpointError, match=r"does not fit .* and \d+ more; ") as error:
        load_pretrained(zoo.resnet18(), net().state_dict(), reset_head=False, source="file")
    assert str(error.value).count(" is ") == 5
    with pytest.raises(CheckpointError, match=r"conv\.weight is missing"):
        load_pretrained(net(), {}, reset_head=False, source="file")


def test_old_files_lack_batch_counters() -> None:
    """torch's own strict loading forgives that too."""
    state = {name: tensor for name, tensor in net(seed=1).state_dict().items() if "num_batches" not in name}
    net().load_state_dict(dict(state))
    assert load_pretrained(net(), state, reset_head=False, source="file") == ["norm.num_batches_tracked"]


def test_half_precision_weights_become_the_models() -> None:
    model = net()
    state = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in net(seed=1).state_dict().items()}
    load_pretrained(model, state, reset_head=False, source="file")
    assert_equal(model, {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()})


@pytest.mark.parametrize(
    ("arch", "head"),
    [
        ("alexnet", "classifier.6"),
        ("resnet18", "fc"),
        ("vit_b_32", "heads.head"),
        ("convnext_tiny", "classifier.2"),
        ("squeezenet1_1", "classifier.1"),
        ("swin_t", "head"),
        ("maxvit_t", "classifier.5"),
    ],
)
def test_heads_of_torchvision(arch: str, head: str) -> None:
    with torch.device("meta"):
        model = zoo.get_model(arch, weights=None, num_classes=7)
    assert head_layer(model) == head
    assert model.get_parameter(f"{head}.weight").shape[0] == 7


def test_a_network_without_layers_has_no_head() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    assert head_layer(model) is None
    assert load_pretrained(model, nn.Sequential(nn.BatchNorm1d(3)).state_dict(), reset_head=True, source="file") == []
