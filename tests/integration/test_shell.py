"""The shell's side: help and tab completion of the installed commands, from a directory that is not the project's."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@pytest.fixture
def shell(tmp_path: Path):
    """Runs a bash script with the commands on PATH in an empty directory, which must stay empty."""

    def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"} | variables
        return subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)

    yield run
    assert not list(tmp_path.iterdir())


ANSWERS = {
    "halfstep-train preci": "precision. precision=",
    "halfstep-train model=resnet18": "model=resnet18 model=resnet18_cifar",
    "halfstep-train optim=sgd optim.mom": "optim.momentum=",
    "halfstep-train precision.dtype=": "precision.dtype=auto precision.dtype=float16 precision.dtype=bfloat16",
    "halfstep-train name=[a,b optim.l": "",
    "halfstep-evaluate split=t": "split=train split=test",
}


@pytest.mark.skipif(" " in str(BIN), reason="Hydra's bash function knows scripts by a python shebang, which needs a path without spaces")
def test_tab_completion_as_bash_asks_for_it(shell) -> None:
    """Groups, keys, options and values; a line that can't be read is met with silence."""
    script = 'eval "$(halfstep-train -sc install=bash)"\n' + "\n".join(
        f"COMP_LINE='{line}' COMP_CWORD={len(line.split()) - 1}; hydra_bash_completion; echo \"${{COMPREPLY[@]}}\"" for line in ANSWERS
    )
    done = shell(script)
    assert done.stderr == ""
    assert dict(zip(ANSWERS, done.stdout.splitlines(), strict=True)) == ANSWERS


def test_a_query_is_fast_and_imports_nothing_heavy(shell) -> None:
    started = time.monotonic()
    done = shell("PYTHONPROFILEIMPORTTIME=1 halfstep-train -sc query=bash 2>&1", COMP_LINE="halfstep-train optim.l")
    assert time.monotonic() - started < 5  # a tenth of that on an idle machine
    assert "optim.lr=" in done.stdout
    assert not {"torch", "mlflow", "numpy", "rich"} & {line.rpartition("|")[2].strip() for line in done.stdout.splitlines()}


def test_help_goes_through_a_pipe_that_closes(shell) -> None:
    done = shell("set -o pipefail; halfstep-evaluate --help | head -1")
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
