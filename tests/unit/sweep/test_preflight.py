"""Whole command lines, composed by Hydra and checked; nothing is created."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from src.config.schema import OPTIONS, AdamWConfig, CosineConfig, DDPConfig, EvaluateConfig, ExportConfig, PredictConfig, SGDConfig
from src.errors import CheckpointError, ConfigError
from src.sweep import inherit
from src.sweep.overrides import quote
from src.sweep.preflight import Plan, preflight
from src.sweep.request import App

TRAIN = App("config")
EVALUATE = App("evaluate", EvaluateConfig, inherits=True)


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    here = tmp_path / "here é, =x"
    here.mkdir()
    monkeypatch.chdir(here)
    yield here
    assert not list(here.iterdir()), "the pre-flight created something"


def plan(*argv: str, app: App = TRAIN) -> Plan:
    return preflight(argv, app)


def refusal(*argv: str, app: App = TRAIN) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(*argv, app=app)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_the_main_job() -> None:
    (job,) = plan().jobs
    config = job.config
    assert (config.model.name, config.data.name, config.precision.name, config.parallel.name) == ("digits_cnn", "digits", "amp", "single")
    assert isinstance(config.optim, AdamWConfig)
    assert isinstance(config.schedule, CosineConfig)
    assert config.name == "digits_cnn-digits-amp-single"


def test_options_bring_their_own_fields() -> None:
    config = plan("optim=sgd", "optim.momentum=0.8", "schedule=plateau", "schedule.patience=1").jobs[0].config
    assert isinstance(config.optim, SGDConfig)
    assert (config.optim.momentum, config.optim.lr) == (0.8, 0.05)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["optim.lrr=0.1"], "optim.lrr is not an option; did you mean optim.lr?"),
        (["++train.epoch=1"], "train.epoch is not an option; did you mean train.epochs?"),
        (["optim.lr=abc"], "optim.lr=abc is not a float (above 0)"),
        (["optim.lr=-1"], "optim.lr=-1.0 must be above 0"),
        (["model=huge"], f"model=huge is not an option of model; use one of {', '.join(sorted(OPTIONS['model']))}"),
        (["tags.a=1"], "tags.a=1: tags.a is not set yet; write +tags.a=1 to add it"),
        (["name=${nope}"], "name can't be resolved: Interpolation key 'nope' not found"),
        (["hydra/sweeper=zz"], "hydra/sweeper=zz is not an option of hydra/sweeper; use one of basic"),
        (["hydra.rn.dir=x"], "hydra.rn is not an option of Hydra; did you mean hydra.run?"),
        (["hydra.foo=1"], "hydra.foo is not an option of Hydra; --cfg hydra lists them all"),
        (["hydra.run.dir="], "hydra.run.dir must not be empty"),
        (["optim.lr=1,2"], "optim.lr=1,2 has several values: add -m to sweep over them, or write optim.lr=[1,2] for a list"),
        (["optim=sgd,adamw"], "optim=sgd,adamw has several values: add -m to sweep over them"),
        (["-m", "optim.lr=1,-2"], "job 1 (optim.lr=-2): optim.lr=-2.0 must be above 0"),
        (["-m", "optim.lrr=1,2"], "job 0 (optim.lrr=1): optim.lrr is not an option; did you mean optim.lr?"),
        (["-m", "hydra.verbose=true,false"], "options of Hydra itself can't be swept; quote a value that holds commas"),
        (["seed=1", "-m", "seed=1,2"], "seed is given twice, as seed=1 and seed=1,2; keep one"),
        (["num_processes=4"], "num_processes is not an option; did you mean parallel.num_processes (with parallel=ddp)?"),
        (["epochs=3"], "epochs is not an option; did you mean train.epochs?"),
        (["lr=1e-3"], "lr is not an option; did you mean optim.lr?"),
        (["batch_size=8"], "batch_size is not an option; did you mean train.batch_size?"),
        (["-m", "seed=range(3,3)"], "the sweep has no job: one of its lists of values is empty"),
    ],
)
def test_mistakes(argv: list[str], text: str) -> None:
    """C08, C09, H01"""
    assert refusal(*argv) == text


def test_an_interval_cannot_be_listed() -> None:
    assert "list the values, as in KEY=A,B" in refusal("-m", "seed=interval(0,1)")


@pytest.mark.parametrize(
    "argv", [["--cfg", "job", "-m"], ["--resolve"], ["--config-path", "x"], ["--config-name", "x"], ["--config-dir", "/nowhere"]]
)
def test_flags_that_do_not_work(argv: list[str]) -> None:
    assert argv[0].lstrip("-") in refusal(*argv)


def test_a_sweep_has_every_job_and_its_own_values() -> None:
    """C02"""
    swept = plan("-m", "optim.lr=0.1,0.01", "parallel=ddp", "name='a,b'")
    assert swept.multirun
    assert [job.config.optim.lr for job in swept.jobs] == [0.1, 0.01]
    assert {job.config.name for job in swept.jobs} == {"a,b"}
    assert [job.overrides[0] for job in swept.jobs] == ["optim.lr=0.1", "optim.lr=0.01"]
    assert not any("-m" in text for job in swept.jobs for text in job.overrides)


def test_a_sweep_may_come_from_hydras_own_options() -> None:
    assert [job.config.seed for job in plan("hydra.mode=MULTIRUN", "seed=1,2").jobs] == [1, 2]


def test_text_arrives_unchanged(in_empty_directory: Path) -> None:
    """C06"""
    text = 'it\'s "a b", c=d | é ${x} back\\slash\\'
    (job,) = plan(f"+tags.t={quote(text)}", "data=image_folder", f"data.root={quote(text)}").jobs
    assert job.config.tags == {"t": text}
    assert job.config.data.root == str(in_empty_directory / text)  # type: ignore[attr-defined]


def test_directories(in_empty_directory: Path) -> None:
    generated = plan().directory
    assert generated.generated
    assert generated.pattern.relative_to(in_empty_directory).parts[0] == "outputs"
    assert plan("-m").directory.pattern.relative_to(in_empty_directory).parts[0] == "multirun"
    given = plan("hydra.run.dir='a b,=é'").directory
    assert (given.pattern, given.generated) == (in_empty_directory / "a b,=é", False)


@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra.sweep.dir"])
def test_a_given_directory_has_no_way_back_in_it(in_empty_directory: Path, key: str) -> None:
    """Creating ``x/../y`` would leave an empty ``x``."""
    argv = [f"{key}=x/../y/./z", *(["-m"] if "sweep" in key else [])]
    assert plan(*argv).directory.pattern == in_empty_directory / "y" / "z"


@pytest.mark.parametrize("subdir", ["../x", "/x", "a/../../x", "${hydra:job.override_dirname}"])
def test_a_job_stays_in_its_sweeps_directory(subdir: str) -> None:
    assert "leads out of hydra.sweep.dir; use a directory below it" in refusal(
        "-m", "name=a,b", "+tags.x='../../../x'", f"hydra.sweep.subdir='{subdir}'"
    )


@pytest.mark.parametrize("subdir", ["${hydra:job.num}", "a/${hydra:job.id}", "x/../${hydra:job.num}", "..x"])
def test_other_directories_of_jobs_are_fine(subdir: str) -> None:
    assert len(plan("-m", "seed=1,2", f"hydra.sweep.subdir='{subdir}'").jobs) == 2


@pytest.fixture
def experiments(tmp_path: Path) -> list[str]:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "e1.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /optim: sgd\n  - override /model: resnet18\n"
        "optim:\n  lr: 0.5\ntrain:\n  epochs: 99\n  label_smoothing: 0.3\n"
    )
    (folder / "sweep.yaml").write_text("# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 3,4\n")
    (folder / "typo.yaml").write_text("# @package _global_\noptim:\n  lrr: 0.5\n")
    (tmp_path / "mine" / "optim").mkdir()
    (tmp_path / "mine" / "optim" / "heavy.yaml").write_text("defaults:\n  - /optim_sgd_schema@_here_\nmomentum: 0.99\n")
    return ["--config-dir", str(tmp_path / "mine")]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["experiment=e1"], ("resnet18", "sgd", 0.5, 99, 0.3)),
        (["experiment=e1", "train.epochs=16"], ("resnet18", "sgd", 0.5, 16, 0.3)),
        (["experiment=e1", "model=digits_cnn", "optim.lr=.2"], ("digits_cnn", "sgd", 0.2, 99, 0.3)),
        (["experiment=e1", "optim=adamw", "train.label_smoothing=0.4"], ("resnet18", "adamw", 0.5, 99, 0.4)),
        (["optim.lr=.2", "experiment=e1"], ("resnet18", "sgd", 0.2, 99, 0.3)),
        (["experiment=null"], ("digits_cnn", "adamw", 0.002, 20, 0.1)),
    ],
)
def test_group_then_config_file_then_experiment_then_command_line(
    experiments: list[str], argv: list[str], expected: tuple[Any, ...]
) -> None:
    """C16. The smoothing is 0 in the schema, 0.1 in config.yaml, 0.3 in the experiment."""
    config = plan(*argv, *experiments).jobs[0].config
    assert (config.model.name, config.optim.name, config.optim.lr, config.train.epochs, config.train.label_smoothing) == expected


def test_an_experiments_choice_decides_which_keys_exist(experiments: list[str]) -> None:
    assert plan("experiment=e1", "optim.momentum=0.8", *experiments).jobs[0].config.optim == SGDConfig(lr=0.5, momentum=0.8)


def test_an_experiment_may_be_a_sweep(experiments: list[str]) -> None:
    assert [job.config.seed for job in plan("experiment=sweep", *experiments).jobs] == [3, 4]


def test_a_wrong_key_in_an_experiment_names_the_file(experiments: list[str]) -> None:
    """H01"""
    text = refusal("experiment=typo", *experiments)
    assert "experiment/typo.yaml" in text
    assert "lrr" in text


def test_an_option_file_of_the_users_own(experiments: list[str]) -> None:
    assert plan("optim=heavy", "optim.lr=1", *experiments).jobs[0].config.optim == SGDConfig(lr=1.0, momentum=0.99)


SAVED = {
    "optim": {"name": "sgd", "lr": 0.3, "momentum": 0.7},
    "schedule": {"name": "plateau", "patience": 9},
    "data": {"name": "synthetic", "pixels": 8},
    "precision": {"name": "amp", "dtype": "bfloat16"},
    "train": {"epochs": 7},
    "name": "trained",
    "tags": {"of": "training"},
}


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(reference: str | None, *, base: Path, uri: str | None) -> tuple[Path, dict[str, Any]]:
        if reference is None:
            raise ConfigError("checkpoint is not set")
        saved = SAVED if not reference.endswith("other.pt") else SAVED | {"optim": {"name": "adamw", "lr": 0.4}}
        return base / reference, saved

    monkeypatch.setattr(inherit, "saved_config", read)


@pytest.mark.usefixtures("checkpoints")
class TestEvaluate:
    """C19: the config of the checkpoint, with the command line on top."""

    def test_it_starts_from_the_checkpoint(self, in_empty_directory: Path) -> None:
        (job,) = plan("checkpoint=c.pt", app=EVALUATE).jobs
        config = job.config
        assert isinstance(config, EvaluateConfig)
        assert config.checkpoint == str(in_empty_directory / "c.pt")
        assert config.optim == SGDConfig(lr=0.3, momentum=0.7)
        assert (config.train.epochs, config.name, config.tags) == (7, "evaluate-digits_cnn-synthetic-amp-single", {})
        assert job.differences == []

    def test_a_value_replaces_that_value_only(self) -> None:
        """The key belongs to the checkpoint's schedule, not to evaluate's default one."""
        (job,) = plan("checkpoint=c.pt", "schedule.factor=0.5", "precision.dtype=float16", app=EVALUATE).jobs
        assert (job.config.schedule.factor, job.config.schedule.patience) == (0.5, 9)  # type: ignore[attr-defined]
        assert [(d.key, d.saved, d.used) for d in job.differences] == [
            ("precision.dtype", "bfloat16", "float16"),
            ("schedule.factor", 0.1, 0.5),
        ]

    def test_a_group_replaces_the_whole_group(self) -> None:
        (job,) = plan("checkpoint=c.pt", "precision=fp32", app=EVALUATE).jobs
        assert (job.config.precision.name, job.config.precision.dtype.name) == ("fp32", "auto")
        assert [(d.key, d.saved, d.used) for d in job.differences] == [
            ("precision", "amp", "fp32"),
            ("precision.dtype", "bfloat16", "auto"),
        ]

    def test_free_arguments_of_the_checkpoints_own_data_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        saved = SAVED | {"data": {"name": "custom", "factory": "a.b:c", "kwargs": {"n": 1, "k": 2}}}
        saved |= {"model": {"name": "custom", "factory": "a.b:d"}}
        monkeypatch.setattr(inherit, "saved_config", lambda reference, **_: (Path("/c.pt"), saved))
        (job,) = plan("checkpoint=c.pt", "++data.kwargs.n=5", "trust_code=true", app=EVALUATE).jobs
        assert job.config.data.kwargs == {"n": 5, "k": 2}  # type: ignore[attr-defined]
        assert job.config.trust_code is True  # type: ignore[attr-defined]
        assert [(d.key, d.saved, d.used) for d in job.differences] == [("data.kwargs.n", 1, 5)]
        assert "can't be changed" in refusal("checkpoint=c.pt", "+model.kwargs.width=1", app=EVALUATE)

    def test_a_key_of_another_option_is_refused(self) -> None:
        assert "belongs to schedule=cosine" in refusal("checkpoint=c.pt", "schedule.min_factor=0.1", app=EVALUATE)

    def test_a_checkpoint_is_needed(self) -> None:
        assert "checkpoint is not set" in refusal(app=EVALUATE)

    def test_an_experiment_does_not_apply(self) -> None:
        assert "experiment does not apply here" in refusal("checkpoint=c.pt", "experiment=x", app=EVALUATE)

    def test_a_sweep_over_checkpoints(self) -> None:
        swept = plan("-m", "checkpoint=c.pt,other.pt", "schedule.factor=0.5", app=EVALUATE)
        assert [job.config.optim.name for job in swept.jobs] == ["sgd", "adamw"]
        assert "optim=sgd" not in swept.inherited  # the checkpoints disagree
        assert "schedule=plateau" in swept.inherited
        assert swept.jobs[1].overrides == ["checkpoint=other.pt", "schedule.factor=0.5"]

    def test_an_export_is_one_process_whatever_trained_the_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        saved = SAVED | {"parallel": {"name": "ddp", "num_processes": 2}}
        monkeypatch.setattr(inherit, "saved_config", lambda reference, **_: (Path("/c.pt"), saved))
        export, predict = App("export", ExportConfig, inherits=True), App("predict", PredictConfig, inherits=True)
        assert plan("checkpoint=c.pt", "export.formats=[pt2]", app=export).jobs[0].config.parallel.name == "single"
        assert plan("checkpoint=c.pt", "predict.input=x", app=predict).jobs[0].config.parallel == DDPConfig(num_processes=2)
        assert "an export is the work of one process" in refusal("checkpoint=c.pt", "parallel=ddp", "export.formats=[pt2]", app=export)

    def test_inherited_choices_are_not_the_users(self) -> None:
        single = plan("checkpoint=c.pt", "optim.lr=0.9", app=EVALUATE)
        assert single.jobs[0].overrides == ["checkpoint=c.pt", "optim.lr=0.9"]
        assert single.overrides[: len(single.inherited)] == single.inherited


def test_a_missing_checkpoint_is_named(in_empty_directory: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere\.pt"):
        plan("checkpoint=nowhere.pt", app=EVALUATE)


@pytest.mark.parametrize("group", ["model", "data"])
def test_free_arguments(group: str) -> None:
    argv = (f"{group}=custom", f"{group}.factory=a.b:c", f"+{group}.kwargs.width=16", f"++{group}.kwargs.deep.er=x")
    (job,) = plan(*argv).jobs
    assert getattr(job.config, group).kwargs == {"width": 16, "deep": {"er": "x"}}
    assert f"write +{group}.kwargs.width=16 to add it" in refusal(*argv[:2], f"{group}.kwargs.width=16")


def test_nothing_heavy_is_imported() -> None:
    """The only process of this file: what is imported can't be seen in one that has torch already."""
    code = (
        "import sys; from src.sweep.preflight import preflight; from src.sweep.request import App\n"
        "import src.train, src.evaluate, src.predict, src.export\n"
        "preflight(['-m', 'seed=1,2'], App('config'))\n"
        "print(sorted({'torch', 'torchvision', 'mlflow', 'numpy', 'sklearn', 'PIL'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[3]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(("typed", "meant"), [("precison=fp32", "precision"), ("paralell=ddp", "parallel"), ("optimm=sgd", "optim")])
def test_a_mistyped_group_is_named(typed: str, meant: str) -> None:
    """C08"""
    with pytest.raises(ConfigError, match=f"is not an option; did you mean {meant}\\?"):
        plan(typed)
