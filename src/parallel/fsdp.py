"""torch's fully_shard (FSDP2): each rank keeps a share of weights, gradients and moments, and gathers the rest where it is needed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from src.config.schema import FSDPConfig
from src.errors import ConfigError
from src.parallel.base import Computing
from src.parallel.group import Group
from src.runtime.rank import Rank

UNIT_SHARE = 4
"""Modules with at most this part (a quarter) of the weights are gathered at once."""
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that are never called."""


class FSDP(Group):
    """The optimizer updates plain tensors, this rank's shares, so that fused kernels and their gate work as in any mode."""

    name = "fsdp"
    shares = True

    def __init__(self, config: FSDPConfig, *, rank: Rank) -> None:
        super().__init__(config, rank=rank)
        self._mesh: DeviceMesh | None = None
        self._skeletons: dict[nn.Module, nn.Module] = {}  # what a sharded module was, without memory
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []  # sharded parameter, this rank's share of it

    def enter(self) -> None:
        """Join the group over torchrun's rendezvous store."""
        super().enter()
        self._mesh = init_device_mesh(self.rank.device.type, (self.rank.world_size,))

    def wrap(self, model: nn.Module, precision: Computing) -> nn.Module:
        """``model`` itself, sharded in place.

        Where autocast would cast them in any case, weights are gathered in the half format: those of matmuls and convolutions.
        Modules with nothing but vectors (norms) and whatever lies outside the units are gathered in float32, and gradients are
        summed in float32, so the numbers are those of the other modes. Raises ``ConfigError`` for parameters without a dimension.
        """
        self._prepare(model)
        units = find_units(model)
        half = None if precision.dtype == torch.float32 else precision.dtype
        if half is not None and (vectors := [module for unit in units for module in unit.modules() if has_only_vectors(module)]):
            fully_shard(vectors, mesh=self._mesh, reshard_after_forward=False)
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for unit in units:
            if not isinstance(unit, FSDPModule):
                fully_shard(unit, mesh=self._mesh, mp_policy=policy)
        fully_shard(model, mesh=self._mesh)
        return model

    def shard(self, model: nn.Module) -> None:
        """Shard a module that is never called, in place."""
        self._prepare(model)
        fully_shard(model, mesh=self._mesh)

    def _prepare(self, model: nn.Module) -> None:
        if scalars := [name for name, parameter in model.named_parameters() if parameter.ndim == 0]:
            raise ConfigError(
                f"model: parameter {scalars[0]} is a single number without a dimension, which parallel=fsdp can't share among ranks; "
                "use parallel=ddp, or give it the shape [1]"
            )
        self._skeletons[model] = deepcopy(model).to("meta")
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()  # no other layout can be sharded; convolutions go by that of the images

    @contextmanager
    def accumulate(self, wrapped: nn.Module, *, last: bool) -> Iterator[None]:
        """Hold the exchange back until the last micro-batch, then hand this rank's gradients to the optimizer's parameters."""
        assert isinstance(wrapped, FSDPModule)
        wrapped.set_requires_gradient_sync(last)
        yield
        if last:
            for sharded, own in self._pairs:
                own.grad = None if sharded.grad is None else _local(sharded.grad)
                sharded.grad = None

    def sum_shares_(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        return self.sum_(tensor)

    def owned(self, model: nn.Module) -> nn.Module:
        """Plain parameters that share memory with this rank's share of each parameter of the wrapped ``model``."""
        self._pairs = [(parameter, nn.Parameter(_local(parameter), parameter.requires_grad)) for parameter in model.parameters()]
        return nn.ParameterList(own for _, own in self._pairs)

    @torch.no_grad()
    def whole(self, model: nn.Module) -> nn.Module:
        """A copy with all weights, as long as the caller keeps it."""
        copy = deepcopy(self._skeletons[model]).to_empty(device=self.rank.device)
        own, shared = ((*module.parameters(), *module.buffers()) for module in (copy, model))
        for target, source in zip(own, shared, strict=True):
            target.copy_(_gathered(source))
        return copy.train(model.training)

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Whole tensors on the CPU of rank 0, gathered one by one; nothing on the other ranks."""
        return self._gather_to_main(model.state_dict())

    def load_model(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Keep this rank's share of each whole tensor."""
        own = model.state_dict()
        model.load_state_dict({name: _shared(tensor, own[name]) if name in own else tensor for name, tensor in state.items()})

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Whole moments on the CPU of rank 0, gathered one by one; no state on the other ranks."""
        # torch's get_optimizer_state_dict takes a step to make missing state, which the schedule would count as an update.
        content = optimizer.state_dict()
        sharded = self._sharded_by_index(optimizer)
        for index, values in content["state"].items():
            like = sharded[index]
            shares = {key: _from_share(value, like) if _shaped(value, _local(like)) else value for key, value in values.items()}
            content["state"][index] = self._gather_to_main(shares)
        return content

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Keep this rank's share of each whole moment."""
        sharded = self._sharded_by_index(optimizer)
        shares = {
            index: {
                key: _local(_shared(value, sharded[index])).clone() if _shaped(value, sharded[index]) else value
                for key, value in values.items()
            }
            for index, values in state["state"].items()
        }
        optimizer.load_state_dict(state | {"state": shares})

    def _sharded_by_index(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """The sharded parameter behind each index of the optimizer's state dict."""
        sharded = {own: parameter for parameter, own in self._pairs}
        return [sharded[own] for group in optimizer.param_groups for own in group["params"]]

    def _gather_to_main(self, shares: Mapping[str, Any]) -> dict[str, Any]:
        content = {}
        for name, value in shares.items():
            whole = _gathered(value)
            if self.rank.is_main:
                content[name] = whole.cpu() if isinstance(whole, Tensor) else whole
        return content


def find_units(model: nn.Module) -> list[nn.Module]:
    """The modules whose weights are gathered together, in the order of the network: blocks of at most a quarter of all weights.

    A larger module is searched for such blocks, and is one itself if it has no parts. The other weights belong to the whole network.
    """
    limit = count(model) / UNIT_SHARE
    units: list[nn.Module] = []

    def search(module: nn.Module) -> None:
        for child in module.children():
            size, divisible = count(child), any(True for _ in child.children())
            if size > 0 and divisible == (size <= limit) and not isinstance(child, CONTAINERS):
                units.append(child)
            elif divisible:
                search(child)

    search(model)
    return list(dict.fromkeys(units))


def count(module: nn.Module) -> int:
    """Number of weights."""
    return sum(parameter.numel() for parameter in module.parameters())


def has_only_vectors(module: nn.Module) -> bool:
    """Whether the module's own parameters, if it has any, are all of one dimension, as those of norms are."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not isinstance(module, CONTAINERS) and all(parameter.ndim == 1 for parameter in own)


def _local(sharded: Any) -> Tensor:
    """This rank's share, in the same memory."""
    share: Tensor = sharded.detach().to_local()
    return share


def _gathered(value: Any) -> Any:
    """The whole tensor of a sharded one; anything else as it is. All ranks call it."""
    return value.detach().full_tensor() if isinstance(value, DTensor) else value  # type: ignore[attr-defined]


def _shared(tensor: Tensor, like: Any) -> Tensor:
    """The whole ``tensor``, which every rank has, sharded as ``like`` is."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def _from_share(share: Tensor, like: Any) -> DTensor:
    """The sharded tensor of which this rank holds ``share``."""
    return DTensor.from_local(share, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


def _shaped(value: Any, like: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == like.shape
