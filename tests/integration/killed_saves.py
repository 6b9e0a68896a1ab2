"""``python -m tests.integration.killed_saves DIRECTORY``: writers of checkpoints are killed at random times, thirty in a row.

Each is a fork of this process, which has no threads, so that the thirtieth costs no more than the first. Prints what was found.
"""

import json
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

import torch

from src.checkpoint.find import newest_valid, remove_leftovers
from src.checkpoint.load import load
from src.checkpoint.save import write_checkpoint

REPEATS = 30
VALUES = 500_000


def write_forever(directory: Path, step: int, told: int) -> None:
    """Save step after step, and tell each as soon as it is saved."""
    while True:
        step += 1
        payload = {"config": {}, "state": {"step": step}, "model": {"w": torch.full((VALUES,), float(step))}}
        write_checkpoint(directory, payload, about={"step": step}, is_best=True, keep=1)
        os.write(told, struct.pack("q", step))


def main() -> None:
    """Kill, look, go on from what is there."""
    directory, chance, step, half_written = Path(sys.argv[1]), random.Random(0), 0, 0
    for _ in range(REPEATS):
        heard, told = os.pipe()
        if (writer := os.fork()) == 0:
            write_forever(directory, step, told)
        os.close(told)
        told_first = os.read(heard, 8)
        time.sleep(chance.uniform(0, 0.05))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        (saved,) = struct.unpack("q", (told_first + os.read(heard, 1 << 16))[-8:])
        os.close(heard)
        half_written += bool(list(directory.glob("*.tmp")))
        newest = newest_valid(directory)
        assert newest is not None
        payload = load(newest)
        step = payload["state"]["step"]
        assert saved <= step <= saved + 1, (saved, step)
        assert bool((payload["model"]["w"] == step).all())
        assert load(directory / "best.pt")["state"]["step"] in (step - 1, step)
        remove_leftovers(directory)
    sys.stdout.write(json.dumps({"steps": step, "half_written": half_written}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
