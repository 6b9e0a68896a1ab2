"""Optimizers from config."""

from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from src.config.schema import AdamWConfig, OptimConfig, SGDConfig

EPS = 1e-8
HALF_EPS = 1e-4
"""Where the second moments themselves are float16 (o3): those of gradients below 2e-4 are 0 there, and an update would divide by EPS."""


def build_optimizer(config: OptimConfig, model: nn.Module) -> Optimizer:
    """The optimizer over ``model``'s trainable parameters, fused unless told otherwise.

    Biases and normalisation weights (all parameters with one dimension or none) get no weight decay unless
    ``optim.decay_all`` is set. The fused kernels keep the update, its gate against inf and NaN and the learning rate on the
    device.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if config.decay_all:
        groups: list[dict[str, Any]] = [{"params": parameters}]
    else:
        groups = [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
    fused = config.fused == "auto" or bool(config.fused)
    lr = torch.tensor(config.lr, dtype=torch.float32, device=parameters[0].device) if fused else config.lr
    if isinstance(config, SGDConfig):
        optimizer = SGD(groups, lr=lr, momentum=config.momentum, nesterov=config.nesterov, weight_decay=config.weight_decay, fused=fused)
        if config.momentum:
            # Fused SGD leaves the buffers it makes in the first step uninitialised if that step is skipped for inf or NaN, and
            # uses them in the next. Starting from zeros gives the same first update.
            for parameter in parameters:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    assert isinstance(config, AdamWConfig)
    beta1, beta2 = config.betas
    eps = HALF_EPS if any(parameter.dtype == torch.float16 for parameter in parameters) else EPS
    return AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=config.weight_decay, fused=fused)
