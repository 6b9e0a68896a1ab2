"""What a run should be traceable to: code, versions, machine. Nothing here imports a large package or fails."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

_PACKAGES = ("torch", "torchvision", "hydra-core", "omegaconf", "mlflow", "numpy")
_PROJECT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 2.0


def run_tags() -> dict[str, str]:
    """Tags ``git.*``, ``version.*`` and ``host.*``; what can't be found out is left out."""
    tags = {"version.python": platform.python_version()}
    for package in _PACKAGES:
        try:
            tags[f"version.{package}"] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return tags | git_tags(_PROJECT) | {"host.name": platform.node(), "host.os": platform.platform(), "host.cpu": _cpu()}


def git_tags(folder: Path) -> dict[str, str]:
    """Commit, branch and whether tracked files were changed; empty outside a repository, without git and before the first commit."""
    # one call answers all three; without optional locks it can't get in the way of a git command of the user
    command = ["git", "--no-optional-locks", "-C", str(folder), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = answer.stdout.splitlines()
    header = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    if header.get("branch.oid", "(initial)") == "(initial)":
        return {}
    dirty = any(not line.startswith("# ") for line in lines)
    return {"git.commit": header["branch.oid"], "git.branch": header["branch.head"], "git.dirty": str(dirty).lower()}


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
