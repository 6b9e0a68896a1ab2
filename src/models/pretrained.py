"""Starting from weights that were trained before."""

from collections.abc import Mapping

from torch import Tensor, nn

from src.errors import CheckpointError

_WRAPPERS = ("module.", "_orig_mod.", "model.")
"""What DataParallel and DDP, torch.compile, and Lightning put before names."""
_SHOWN = 5


def load_pretrained(model: nn.Module, weights: Mapping[str, Tensor], *, reset_head: bool, source: str) -> list[str]:
    """Copy ``weights`` into ``model``; returns the names of its tensors that were not loaded.

    Those are the head's with ``reset_head``, and batch counters, which old files lack. ``source`` names the weights in errors. A
    wrapper's prefix is dropped where it covers every name and the model knows the names without it.

    Raises:
        CheckpointError: any other tensor is missing, unknown or of another shape.
    """
    own: dict[str, Tensor] = model.state_dict()
    found = without_wrappers(weights, own)
    head = head_layer(model)

    def in_head(name: str) -> bool:
        return name.rpartition(".")[0] == head

    if reset_head:
        found = {name: tensor for name, tensor in found.items() if not in_head(name)}
    missing = [name for name in own if name not in found]
    unknown = [name for name in found if name not in own]
    other_shape = [name for name in own if name in found and own[name].shape != found[name].shape]
    allowed = [name for name in missing if name.endswith("num_batches_tracked") or (reset_head and in_head(name))]
    if other_shape and not unknown and missing == allowed and all(in_head(name) for name in other_shape):
        name = other_shape[0]
        raise CheckpointError(
            f"{source}: {name} has shape {_shape(found[name])}, here it is {_shape(own[name])}; "
            "set model.reset_head=true to start with a fresh head, or model.num_classes to that of the weights"
        )
    problems = [f"{name} is missing" for name in missing if name not in allowed]
    problems += [f"{name} is unknown here" for name in unknown]
    problems += [f"{name} has shape {_shape(found[name])}, here it is {_shape(own[name])}" for name in other_shape]
    if problems:
        more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        kept = f" beside the head ({head})" if reset_head else ""
        raise CheckpointError(
            f"{source} does not fit this network{kept}: {'; '.join(problems[:_SHOWN])}{more}; use weights of the same network, built alike"
        )
    model.load_state_dict(found, strict=False)
    return missing


def without_wrappers(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """``weights`` without wrappers' prefixes: of all ways to drop those that cover every name, the first that knows most of ``own``."""
    ways = [weights]
    while prefix := next((prefix for prefix in _WRAPPERS if ways[-1] and all(name.startswith(prefix) for name in ways[-1])), None):
        ways.append({name.removeprefix(prefix): tensor for name, tensor in ways[-1].items()})
    return max(ways, key=lambda way: len(way.keys() & own.keys()))


def head_layer(model: nn.Module) -> str | None:
    """The head's name, as in ``fc``: the last layer whose weight is a matrix or a kernel."""
    weights = [name for name, parameter in model.named_parameters() if name.endswith(".weight") and parameter.ndim > 1]
    return weights[-1].removesuffix(".weight") if weights else None


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)
