"""The whole way through Hydra, in this process, with a task that only notes what it got."""

from collections.abc import Callable
from pathlib import Path

import pytest

from src.checkpoint import manifest
from src.config.runfile import load, save, to_dict
from src.config.schema import Config
from src.launch.result import JobResult
from src.sweep import app
from src.sweep.app import Job, run_app
from src.sweep.directory import claim_given


class Task:
    """Writes run.yaml like a real one and ends as the tag ``end`` says."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __call__(self, job: Job) -> JobResult:
        self.jobs.append(job)
        save(job.config, job.run_dir / "run.yaml")
        match job.config.tags.get("end"):
            case "raise":
                raise RuntimeError("boom")
            case "data":
                return JobResult("FAILED", 3, "no images", None, job.run_dir)
            case "ctrl-c":
                raise KeyboardInterrupt
            case "sigterm":
                return JobResult("KILLED", 143, "SIGTERM", None, job.run_dir)
        return JobResult("FINISHED", 0, None, 0.5, job.run_dir)


@pytest.fixture
def task() -> Task:
    return Task()


@pytest.fixture
def run(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    here = tmp_path / "it's é, =x"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(*argv: str) -> int:
        monkeypatch.setattr("sys.argv", ["src/train.py", *argv])
        return run_app(task, config_name="config")

    return run


def files(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*")}


def test_a_run_gets_its_config_and_its_own_directory(run: Callable[..., int], task: Task) -> None:
    """C06, fault 26: the path of this test holds a quote, a comma, an equals sign and a letter outside ASCII"""
    assert run('name="a b, c=d | é"', "optim=sgd", "+tags.k=v") == 0
    (first,) = task.jobs
    assert load(first.run_dir / "run.yaml") == first.config
    assert first.config.name == "a b, c=d | é"
    assert first.overrides == ['name="a b, c=d | é"', "optim=sgd", "+tags.k=v"]
    assert first.run_dir.name.endswith("-a-b-c-d-é")
    assert first.run_dir.is_relative_to(Path.cwd() / "outputs")
    assert ".hydra/config.yaml" in files(first.run_dir)


def test_a_mistake_costs_exit_2_one_line_and_nothing_else(run: Callable[..., int], task: Task, capfd: pytest.CaptureFixture[str]) -> None:
    """C08, C09, H01"""
    for argv in (["optim.lrr=0.1"], ["tags=[a,b"], ["-m", "model=alexnet,huge"], ["hydra.run.dir=x", "seed=-1"]):
        assert run(*argv) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
    assert not task.jobs
    assert not files(Path.cwd())


def test_a_given_directory(run: Callable[..., int], task: Task, capfd: pytest.CaptureFixture[str]) -> None:
    """C03, fault 25"""
    where = "hydra.run.dir='o p, =é/run'"
    assert run(where) == 0
    assert task.jobs[0].run_dir == Path.cwd() / "o p, =é/run"
    assert run(where) == 2
    assert "already holds a run" in capfd.readouterr().err
    assert run(where, "resume=auto") == 0
    assert task.jobs[1].config.resume == "auto"
    with claim_given(Path("busy").absolute(), resuming=False, key="test"):
        assert run("hydra.run.dir=busy") == 2
    assert "is in use" in capfd.readouterr().err
    assert len(task.jobs) == 2


def test_the_exit_code_of_a_single_run_is_the_jobs(run: Callable[..., int], caplog: pytest.LogCaptureFixture) -> None:
    assert run("+tags.end=sigterm") == 143
    assert run("+tags.end=ctrl-c") == 130
    assert not caplog.records
    assert run("+tags.end=raise") == 1
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "boom" in str(record.exc_info[1])


def test_a_failed_job_does_not_stop_a_sweep(
    run: Callable[..., int], task: Task, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C02, C11, fault 28; the sweeper gets each job's objective, and nan for a failed one"""
    call_hydra, objectives = app._call_hydra, []

    def spy(job: Callable[[object], object], *args: object) -> int:
        def noting(node: object) -> object:
            objectives.append(job(node))
            return objectives[-1]

        return call_hydra(noting, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(app, "_call_hydra", spy)
    assert run("-m", "+tags.end=data,raise,ok") == 1
    assert [job.run_dir.name for job in task.jobs] == ["0", "1", "2"]
    assert {job.run_dir.parent.parent.parent for job in task.jobs} == {Path.cwd() / "multirun"}
    assert [load(job.run_dir / "run.yaml").tags["end"] for job in task.jobs] == ["data", "raise", "ok"]
    assert str(objectives) == "[nan, nan, 0.5]"
    out = capfd.readouterr().out
    assert "2 of 3 jobs failed" in out
    assert "job 0 (+tags.end=data): exit 3, no images" in out
    assert "job 1 (+tags.end=raise): exit 1, RuntimeError: boom" in out


def test_a_sweep_over_nothing_is_said(run: Callable[..., int], task: Task, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("-m", "seed=1") == 0
    assert capfd.readouterr().err.count("-m runs a single job") == 1
    assert run("-m", "seed=1,2") == 0
    assert "single job" not in capfd.readouterr().err
    assert len(task.jobs) == 3


def test_a_stop_ends_the_sweep(run: Callable[..., int], task: Task, capfd: pytest.CaptureFixture[str]) -> None:
    """Fault 28"""
    assert run("-m", "+tags.end=ctrl-c,ok") == 130
    assert len(task.jobs) == 1
    assert "1 of 2 jobs did not start" in capfd.readouterr().out


def test_jobs_of_a_sweep_never_share_a_directory(run: Callable[..., int], task: Task, capfd: pytest.CaptureFixture[str]) -> None:
    """C03"""
    assert run("-m", "seed=1,2", "hydra.sweep.subdir=same") == 1
    assert len(task.jobs) == 1
    assert "already holds a run" in capfd.readouterr().out


def test_relative_paths_do_not_follow_a_changed_directory(run: Callable[..., int], task: Task) -> None:
    """C04"""
    here = Path.cwd()
    with (here / "c.pt").open("wb+") as file:  # the smallest whole checkpoint: an empty archive
        writer = manifest.HashingWriter(file)
        writer.write(b"PK\x05\x06" + bytes(18))
        manifest.append(file, sha256=writer.sha256.hexdigest(), size=writer.size, about={"step": 1, "config": to_dict(Config())})
    assert run("-m", "data=image_folder", "data.root=./d", "resume=./c.pt", "hydra.job.chdir=true") == 0
    (job,) = task.jobs
    assert job.config.data.root == str(here / "d")  # type: ignore[attr-defined]
    assert job.config.resume == str(here / "c.pt")


def test_looking_at_the_config_creates_nothing(run: Callable[..., int], task: Task, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--cfg", "job", "optim.lr=0.5") == 0
    assert "lr: 0.5" in capfd.readouterr().out
    assert run("--help", "-m", "model=resnet18,alexnet") == 0
    assert "optim.lr" in capfd.readouterr().out
    assert not task.jobs
    assert not files(Path.cwd())
