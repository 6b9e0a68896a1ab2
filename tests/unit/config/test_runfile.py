"""run.yaml gives back exactly what was written, as typed dataclasses."""

import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from src.config.runfile import digest, flatten, load, save, to_config, to_dict
from src.config.schema import (
    AdamWConfig,
    Config,
    CosineConfig,
    DDPConfig,
    DigitsConfig,
    Dtype,
    EvaluateConfig,
    Mode,
    SGDConfig,
    Split,
)
from src.errors import ConfigError

HARD_TEXT = "a b, c=d | é & \"q\" 'p' ${x} \\ #: 1e-4 \u2028 漢🙂"


def test_each_group_gets_the_dataclass_of_its_name() -> None:
    config = to_config({"optim": {"name": "sgd", "momentum": 0.8}, "schedule": {"name": "cosine"}, "parallel": {"name": "ddp"}})
    assert config.optim == SGDConfig(momentum=0.8)
    assert config.schedule == CosineConfig()
    assert config.parallel == DDPConfig()
    assert type(config.data) is DigitsConfig  # absent: the default option, not its base class


def test_a_composed_node_is_typed_and_resolved() -> None:
    precision, objective = {"name": "amp", "dtype": "float16"}, {"mode": "min"}
    node = OmegaConf.create({"seed": 3, "name": "run ${seed}", "precision": precision, "objective": objective})
    config = to_config(node)
    assert (config.name, config.precision.dtype, config.objective.mode) == ("run 3", Dtype.float16, Mode.min)


def test_an_entry_point_may_have_its_own_config() -> None:
    config = to_config({"checkpoint": "a.pt", "split": "test"}, EvaluateConfig)
    assert (config.checkpoint, config.split) == ("a.pt", Split.test)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"optim": {"name": "adamw", "lrr": 1}}, "optim.lrr is not an option; did you mean optim.lr?"),
        ({"optim": {"name": "adamw", "momentum": 0.9}}, "optim.momentum belongs to optim=sgd; optim=adamw has no such option"),
        ({"optim": {"name": "lion"}}, "optim=lion is not an option of optim; use one of adamw, sgd"),
        ({"precision": {"scaler": {"init_scale": "x"}}}, "precision.scaler.init_scale=x is not a float"),
        ({"train": 5}, "train=5 is not a section; set one of its options, as in train.name=VALUE"),
        ({"checkpoint": "a.pt"}, "checkpoint is not an option; --help lists them all"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(data: dict[str, object], text: str) -> None:
    """C08, C09"""
    with pytest.raises(ConfigError) as caught:
        to_config(data)
    assert str(caught.value) == text


def test_an_interpolation_without_target_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="name can't be resolved"):
        to_config(OmegaConf.create({"name": "${nope}"}))


def test_what_is_saved_is_loaded_byte_for_byte(tmp_path: Path) -> None:
    """C06"""
    config = to_config({"name": HARD_TEXT, "tags": {"k é": HARD_TEXT, "n": [1, None, 2.5]}, "optim": {"name": "sgd", "lr": 1e-5}})
    path = tmp_path / "run é.yaml"
    save(config, path)
    assert load(path) == config
    assert load(path).name == HARD_TEXT
    assert "é" in path.read_text(encoding="utf-8")
    assert yaml.safe_load(path.read_text(encoding="utf-8")) == to_dict(config)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    assert list(tmp_path.iterdir()) == [path]  # no temporary file left


def _umask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failing_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.yaml"
    save(Config(), path)
    before = path.read_bytes()

    def full(self: Path, *args: object, **kwargs: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="space"):
        save(Config(seed=1), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"- a\n", b"\xff\xfe\x00", b"{a: ["])
def test_another_file_is_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        load(path)
    with pytest.raises(ConfigError, match="can't be read"):
        load(tmp_path / "missing.yaml")


def test_the_digest_is_sha256_of_canonical_json() -> None:
    config = Config(optim=AdamWConfig(lr=0.1))
    text = json.dumps(to_dict(config), sort_keys=True, separators=(",", ":"))
    assert digest(config) == hashlib.sha256(text.encode()).hexdigest()
    assert digest(config) == digest(to_config(to_dict(config) | {"optim": {"lr": 0.1, "name": "adamw"}}))
    assert digest(config) != digest(replace(config, seed=1))


def test_flat_params_have_dotted_keys_and_scalars() -> None:
    flat = flatten(Config(optim=AdamWConfig(), tags={"a": {"b": 1}}))
    assert flat["optim.betas"] == "[0.9,0.999]"
    assert flat["precision.dtype"] == "auto"
    assert flat["tags.a.b"] == 1
    assert all(value is None or isinstance(value, str | int | float) for value in flat.values())
