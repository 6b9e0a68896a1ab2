"""Whether ``nn.DataParallel`` works on this machine, tried in a process of its own, since a stuck exchange can't be cancelled.

``python -m src.parallel.probe N`` trains a tiny network on the first N GPUs for two steps.
"""

import faulthandler
import re
import subprocess
import sys

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from src.errors import ConfigError

STEP_SECONDS = 15
"""For the two steps, which take well under a second each; the first also sets up NCCL."""
START_SECONDS = 60
"""For importing torch and opening the GPUs before them."""


def refuse_stuck_replicas(count: int) -> None:
    """Raise ``ConfigError`` with the reason unless a tiny network trains on ``count`` GPUs within seconds."""
    command = [sys.executable, "-m", "src.parallel.probe", str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS + STEP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        reason = f"no answer from {count} GPUs after {START_SECONDS + STEP_SECONDS} s"
    else:
        if done.returncode == 0:
            return
        reason = explain(done.stderr)
    raise ConfigError(f"parallel=dp does not work on this machine: {reason}; use parallel=ddp, which is faster too")


def explain(stderr: str) -> str:
    """One line out of a failed probe's last words: where it was stuck, or its error."""
    if stuck := re.search(r"^Timeout \(.*\)!$.*?most recent call first\):\n +File \"([^\"]*)\", line \d+ in (\w+)", stderr, re.M | re.S):
        return f"the GPUs did not exchange a tiny network's weights within {STEP_SECONDS} s (stuck in {stuck[2]})"
    return (stderr.strip().splitlines() or ["the probe died without a word"])[-1]


def replicate(count: int) -> None:
    """Two training steps on GPUs 0 to ``count - 1``; raises if the gradients are not those of one device."""
    devices = [torch.device("cuda", index) for index in range(count)]
    images = torch.randn(2 * count, 8, device=devices[0])
    for device in devices:
        torch.zeros(1, device=device)
    model = nn.Linear(8, 4, device=devices[0])
    wrapped = DataParallel(model, device_ids=devices)
    # The watchdog is a thread in C: it needs neither the interpreter nor the GPU to answer.
    faulthandler.dump_traceback_later(STEP_SECONDS, exit=True)
    try:
        first, second, expected = (_gradients(network, images, of=model) for network in (wrapped, wrapped, model))
        torch.testing.assert_close(first, expected)
        torch.testing.assert_close(second, expected)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _gradients(network: nn.Module, images: Tensor, *, of: nn.Module) -> list[Tensor | None]:
    of.zero_grad(set_to_none=True)
    network(images).square().mean().backward()
    return [parameter.grad for parameter in of.parameters()]


if __name__ == "__main__":
    replicate(int(sys.argv[1]))
