"""What a rank is built from, on the CPU in this process."""

from dataclasses import asdict, replace

import pytest
import torch

from src import build, network
from src.config.runfile import to_config
from src.config.schema import Config, Dtype, ModelConfig, PrecisionConfig, ScalerConfig
from src.engine.snapshot import snapshot
from src.engine.state import TrainState
from src.errors import ConfigError
from src.precision import build_precision
from src.runtime.rank import Rank

TINY = {
    "device": "cpu",
    "tracking": {"name": "none"},
    "data": {"name": "synthetic", "size": 40, "val_size": 20, "pixels": 8, "channels": 1, "classes": 3},
    "train": {"epochs": 3, "batch_size": 8},
}


@pytest.fixture(autouse=True)
def settings_restored():
    """Threads and kernels as they were."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def parts_of(tmp_path, *, rank=None, **sections):
    wanted = TINY | {name: TINY.get(name, {}) | section if isinstance(section, dict) else section for name, section in sections.items()}
    return build.train_parts(to_config(wanted), run_dir=tmp_path, rank=rank or Rank(), stop_requested=lambda: 0)


def test_every_auto_is_recorded(tmp_path):
    """What was computed, not what was asked for."""
    effective = parts_of(tmp_path, precision={"name": "amp"}).effective
    assert {key: effective[key] for key in ("device", "num_processes", "backend", "num_classes", "image_size", "loader")} == {
        "device": "cpu",
        "num_processes": 1,
        "backend": "none",
        "num_classes": 3,
        "image_size": 8,
        "loader": "resident",
    }
    assert (effective["computed_dtype"], effective["loss_scaling"], effective["channels_last"]) == ("bfloat16", False, False)
    assert effective["fused"] is True
    assert effective["threads_per_rank"] == torch.get_num_threads()


@pytest.mark.parametrize(
    ("precision", "computed", "scaled"),
    [
        ({"name": "fp32"}, "float32", False),
        ({"name": "amp", "dtype": "float16"}, "float16", True),
        ({"name": "amp", "dtype": "float16", "scaler": {"enabled": False}}, "float16", False),
        ({"name": "amp", "dtype": "bfloat16"}, "bfloat16", False),
    ],
)
def test_the_dtype_named_is_the_dtype_seen(tmp_path, precision, computed, scaled):
    """A10: read off the first layer's output."""
    parts = parts_of(tmp_path, precision=precision)
    assert (parts.effective["computed_dtype"], parts.effective["loss_scaling"]) == (computed, scaled)
    assert all(p.dtype == torch.float32 for p in parts.model.parameters())


def test_the_seed_decides_the_weights_whatever_came_before(tmp_path):
    first = parts_of(tmp_path).model.state_dict()
    torch.rand(100)
    again = parts_of(tmp_path, precision={"name": "fp32"}).model.state_dict()
    other = parts_of(tmp_path, seed=1).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_ranks_share_weights_and_not_their_noise(tmp_path):
    """The same weights before any broadcast, each rank's own batches and dropout."""
    built = []
    for rank in range(2):
        parts = parts_of(tmp_path / str(rank), rank=Rank(rank=rank, world_size=2, local_world_size=2))
        built.append((parts.model.state_dict(), torch.rand(3), next(parts.data.train.epoch(0)).index, parts.journal))
    assert all(torch.equal(built[0][0][name], built[1][0][name]) for name in built[0][0])
    assert not torch.equal(built[0][1], built[1][1])
    assert not set(built[0][2].tolist()) & set(built[1][2].tolist())
    assert built[0][3] is not None
    assert built[1][3] is None  # only rank 0 writes


@pytest.mark.parametrize(
    ("train", "steps"), [({}, 15), ({"max_steps": 7}, 7), ({"max_steps": 99}, 15), ({"batch_size": 12, "accumulate": 3}, 12)]
)
def test_planned_steps(tmp_path, train, steps):
    """40 images in steps of 8: five an epoch; of 12: three and a short one."""
    assert parts_of(tmp_path, train=train).planned_steps == steps


@pytest.mark.parametrize(("asked", "size"), [("auto", 3), (3, 3), (7, 7)])
def test_the_head_is_as_wide_as_asked_and_at_least_as_the_data(asked, size):
    config = Config(model=ModelConfig(num_classes=asked))
    assert build.head_size(config, ["a", "b", "c"]) == size
    with pytest.raises(ConfigError, match=r"model\.num_classes=2 is less than the 3 classes of the data; use auto"):
        build.head_size(Config(model=ModelConfig(num_classes=2)), ["a", "b", "c"])


@pytest.mark.parametrize(
    ("asked", "device", "expected"), [("auto", "cpu", False), ("auto", "cuda", True), (True, "cpu", True), (False, "cuda", False)]
)
def test_channels_last_is_for_gpus_unless_asked_for(asked, device, expected):
    config = Config()
    config.train.channels_last = asked
    place = build.placement(config, Rank(rank=1, world_size=4, local_rank=1, local_world_size=2, device=torch.device(device)))
    assert place.channels_last is expected
    assert (place.rank, place.world_size, place.local_world_size, place.device.type) == (1, 4, 2, device)


def test_memory_format_reaches_model_and_batches(tmp_path):
    parts = parts_of(tmp_path, train={"channels_last": True}, data={"channels": 3})
    batch = next(parts.data.train.epoch(0))
    for tensor in (batch.images, parts.model.conv2.weight):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    plain = parts_of(tmp_path, train={"channels_last": False}, data={"channels": 3})
    images = next(plain.data.train.epoch(0)).images
    torch.testing.assert_close(parts.model(batch.images), plain.model(images), rtol=1e-4, atol=1e-5)


def test_deterministic_is_torchs_own_switch(tmp_path):
    parts_of(tmp_path)
    assert not torch.are_deterministic_algorithms_enabled()
    parts_of(tmp_path, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()


def test_a_checkpoints_network_computes_what_the_run_computed(tmp_path):
    """Rebuilt from the payload alone, bare, in float32, for evaluation."""
    parts = parts_of(tmp_path, model={"num_classes": 5})
    payload = snapshot(parts, TrainState(**asdict(TrainState())))
    model = network.load_model(payload, trust_code=False)
    shape = network.example_shape(payload)
    assert shape == (2, 1, 8, 8)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert not model.training
    assert torch.equal(model(images), parts.model.eval()(images))
    assert model(images).shape == (2, 5)


def test_a_half_typed_scaler_is_not_built_for_bfloat16():
    """The scaler follows the dtype unless it is asked for by name."""
    config = PrecisionConfig(name="amp", dtype=Dtype.bfloat16)
    assert not build_precision(config, device=torch.device("cpu")).scaled
    assert build_precision(replace(config, scaler=ScalerConfig(enabled=True)), device=torch.device("cpu")).scaled
