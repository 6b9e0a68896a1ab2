"""The Dockerfile where there is no Docker: its own steps, in a plain shell under a temporary root.

Left out is what only a build can do: the base image, its packages and its users. Dependencies are installed in the slow test alone.
"""

import json
import os
import re
import shlex
import signal
import string
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

import pytest
from docker.utils import exclude_paths

from .conftest import PROJECT, TINY
from .test_ends import LONG, wait_for

NEEDS_ROOT = ("apt-get", "useradd")
IMAGE_PATHS = re.compile(r"/(?=(?:app|build|opt/halfstep|workspace)\b)")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def instructions() -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction, continued lines joined."""
    lines = [line for line in (PROJECT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def arguments(keyword: str) -> list[str]:
    return [rest for name, rest in instructions() if name == keyword]


def context(directory: Path) -> list[str]:
    """The files that .dockerignore lets into a build, as Docker's own client finds them."""
    patterns = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    paths = exclude_paths(str(directory), patterns) - {"Dockerfile", ".dockerignore"}  # always sent, for the builder itself
    return sorted(path for path in paths if (directory / path).is_file())


@dataclass
class Image:
    """What a build leaves, with every path of the image under ``root``."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path = Path()
    entrypoint: list[str] = field(default_factory=list)

    def inside(self, text: str) -> str:
        return IMAGE_PATHS.sub(f"{self.root}/", text)

    def build(self, *, torch: str, install: bool) -> "Image":
        """Follow the Dockerfile; without ``install`` this interpreter's packages stand for the dependencies."""
        python = self.root / "usr" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(Path(sys.executable).resolve())
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name in ("HOME", "LANG")}
        self.env = kept | {"PATH": f"{python.parent}:/usr/bin:/bin"}
        for keyword, rest in instructions():
            words = shlex.split(rest)
            match keyword:
                case "ARG":
                    name, _, default = rest.partition("=")
                    self.env[name] = torch if name == "TORCH" else default
                case "ENV":
                    self.env |= {k: string.Template(self.inside(v)).substitute(self.env) for k, _, v in (w.partition("=") for w in words)}
                case "WORKDIR":
                    self.cwd = Path(self.inside(rest))
                    self.cwd.mkdir(parents=True, exist_ok=True)
                case "COPY" if not words[0].startswith("--from"):  # both stages share the root
                    self.copy(words[:-1])
                case "RUN" if not any(word in rest for word in NEEDS_ROOT):
                    if "requirements.txt" in rest and not install:
                        self.borrow_packages()
                    else:
                        self.run(rest).check_returncode()
                case "ENTRYPOINT":
                    self.entrypoint = json.loads(rest)
        return self

    def copy(self, sources: list[str]) -> None:
        for path in context(PROJECT):
            if "." in sources or path in sources:
                (self.cwd / path).parent.mkdir(parents=True, exist_ok=True)
                copyfile(PROJECT / path, self.cwd / path)

    def run(self, line: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = self.inside(re.sub(r"--mount=\S+\s+", "", line))
        return subprocess.run(["sh", "-c", command], cwd=self.cwd, env=self.env | env, capture_output=True, text=True)

    def borrow_packages(self) -> None:
        """All but this project, which the image installs itself; ahead of what a new venv brings."""
        folder = self.root / "borrowed"
        folder.mkdir()
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if "halfstep" not in path.name:
                (folder / path.name).symlink_to(path)
        [own] = (self.root / "opt/halfstep/lib").glob("python*/site-packages")
        (own / "borrowed.pth").write_text(f"import sys; sys.path.insert(0, {str(folder)!r})\n")

    def start(self, command: Iterable[str], *args: str) -> subprocess.Popen[str]:
        """``docker run``; without tini, which adds nothing to a process that isn't the first of a container."""
        words = [word for word in command if word not in ("tini", "--")]
        env = self.env | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return subprocess.Popen(
            ["/usr/bin/env", *words, *args], cwd=self.cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def files(self, folder: str) -> set[str]:
        return {str(path) for path in (self.root / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image")).build(torch="cpu", install=False)


@pytest.fixture
def dependencies(tmp_path):
    """Runs the dependency step with a pip that only writes down its arguments."""
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    pip.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > pip-arguments\n')
    pip.chmod(0o755)
    (pip.parent / "python").symlink_to(sys.executable)
    for name in ("pyproject.toml", "constraints.txt"):
        copyfile(PROJECT / name, tmp_path / name)
    [step] = [line for line in arguments("RUN") if "requirements.txt" in line]
    shell = Image(tmp_path, env={"PATH": f"{pip.parent}:/usr/bin:/bin"}, cwd=tmp_path)
    return lambda torch: shell.run(step, TORCH=torch)


def test_the_base_is_pinned_the_user_is_not_root_and_sources_exist():
    names = {rest.split()[2] for rest in arguments("FROM") if " AS " in rest}
    for base in {rest.split()[0] for rest in arguments("FROM")} - names:
        assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", base), f"{base} names no version"
    user = arguments("USER")[-1]
    assert user not in ("root", "0")
    assert any(line.split()[0] == "useradd" and line.split()[-1] == user for line in arguments("RUN"))
    assert not arguments("ADD")
    for rest in arguments("COPY"):
        if not rest.startswith("--from"):
            assert all((PROJECT / source).exists() for source in shlex.split(rest)[:-1]), rest


def test_tini_is_the_first_process_and_its_exec_form_passes_arguments_on():
    """A shell form would swallow both the arguments of ``docker run`` and SIGTERM."""
    [entrypoint] = arguments("ENTRYPOINT")
    assert json.loads(entrypoint)[:2] == ["tini", "--"]
    assert any("apt-get install" in line and "tini" in line for line in arguments("RUN"))


def test_only_what_the_image_needs_gets_in(tmp_path):
    wanted = {"LICENSE", "README.md", "conf/config.yaml", "constraints.txt", "pyproject.toml", "src/config/schema.py", "src/train.py"}
    junk = {
        ".env",
        ".git/config",
        ".venv/bin/python",
        "benchmarks/runs.py",
        "datasets/cifar.tar",
        "halfstep.egg-info/PKG-INFO",
        "mlartifacts/1/model.pt",
        "mlflow.db",
        "multirun/README.md",
        "outputs/2026-01-01/run.yaml",
        "src/__pycache__/train.pyc",
        "src/config/__pycache__/schema.pyc",
        "tests/integration/conftest.py",
    }
    for name in wanted | junk:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert set(context(tmp_path)) == wanted


def test_the_choice_of_torch_is_a_choice_of_index(dependencies, tmp_path):
    for torch, extra in (("cpu", ["--extra-index-url", CPU_INDEX]), ("cuda", [])):
        dependencies(torch).check_returncode()
        assert (tmp_path / "pip-arguments").read_text().splitlines() == [
            "install",
            "--disable-pip-version-check",
            "-c",
            "constraints.txt",
            *extra,
            "-r",
            "requirements.txt",
        ]
    requirements = (tmp_path / "requirements.txt").read_text().splitlines()
    for package in ("setuptools", "torch", "torchvision", "hydra-core", "mlflow"):
        assert any(re.match(rf"{package}[>=]", line) for line in requirements), package


def test_another_choice_of_torch_is_refused(dependencies, tmp_path):
    end = dependencies("rocm")
    assert end.returncode == 2
    assert "TORCH=rocm" in end.stderr
    assert not (tmp_path / "pip-arguments").exists()


def test_pip_takes_the_cpu_build_under_the_same_constraints(tmp_path):
    """constraints.txt stays the one place of versions: its ``==`` admits the +cpu build, which is the higher version."""
    pins = dict(re.findall(r"^(torch|torchvision)==(\S+)$", (PROJECT / "constraints.txt").read_text(), re.MULTILINE))
    assert set(pins) == {"torch", "torchvision"}
    for name, version in pins.items():
        for build in (version, f"{version}+cpu"):
            info = f"{name}-{build}.dist-info"
            with zipfile.ZipFile(tmp_path / f"{name}-{build}-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {build}\n")
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    only_here = ["--isolated", "--disable-pip-version-check", "--no-index", "--find-links", str(tmp_path)]
    end = subprocess.run([*pip, *only_here, "-c", str(PROJECT / "constraints.txt"), *pins], capture_output=True, text=True, check=True)
    taken = {item["metadata"]["name"]: item["metadata"]["version"] for item in json.loads(end.stdout)["install"]}
    assert taken == {name: f"{version}+cpu" for name, version in pins.items()}


def trains(image: Image) -> None:
    """``docker run halfstep ...`` trains the image's own copy and writes to the volume alone; then ``--entrypoint halfstep-evaluate``."""
    before = image.files("app")
    process = image.start(image.entrypoint, *TINY, "precision=amp", "tracking.log_model=false", "hydra.run.dir=outputs/tiny")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert "Warning" not in out + err
    workspace = image.root / "workspace"
    result = json.loads((workspace / "outputs/tiny/result.json").read_text())
    assert result["status"] == "FINISHED"
    assert result["tracking"]["uri"] == f"sqlite:///{workspace}/mlflow.db"
    assert (workspace / "mlflow.db").is_file()
    assert (workspace / "mlartifacts").is_dir()
    assert image.files("app") == before  # belongs to root in the image
    assert (image.root / "app/datasets").resolve() == (workspace / "datasets").resolve(strict=True)  # where downloads go by default
    process = image.start(["halfstep-evaluate"], "checkpoint=outputs/tiny", "hydra.run.dir=outputs/again")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    again = json.loads((workspace / "outputs/again/result.json").read_text())
    assert again["metrics"]["val/accuracy"] == result["objective"]["value"]


@pytest.mark.slow
def test_the_image_trains_and_evaluates(image):
    trains(image)


@pytest.mark.slow
def test_its_code_is_its_own(image):
    """Not the checkout's, which is installed for the tests."""
    process = image.start(["python", "-c", "import src.launch.locate as here; print(here.PROJECT_ROOT)"])
    assert process.communicate(timeout=60)[0].strip() == str(image.root / "app")


@pytest.mark.slow
def test_docker_stop_ends_with_a_checkpoint(image):
    """D08: SIGTERM, exit 143, status KILLED."""
    process = image.start(image.entrypoint, *LONG, "tracking.log_model=false", "hydra.run.dir=outputs/stopped")
    run_dir = image.root / "workspace/outputs/stopped"
    wait_for(lambda: list(run_dir.glob("checkpoints/step-*.pt")) or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 143, out + err
    result = json.loads((run_dir / "result.json").read_text())
    assert result["status"] == "KILLED"
    assert (run_dir / result["checkpoint"]["last"]).is_file()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_image_with_installed_dependencies_trains():
    """The same with every pip step for real; the CUDA wheels, because they come from pip's own index."""
    with TemporaryDirectory() as folder:  # pytest would keep its 6 GB
        trains(Image(Path(folder)).build(torch="cuda", install=True))
