"""What hardware is built for, from NVIDIA's and Linux's names for it."""

import pytest
import torch

from src.survey import formats
from src.survey.formats import cpu_flags, cpu_support, gpu_support, matmul_speeds, support


@pytest.mark.parametrize(
    ("name", "capability", "model", "native"),
    [
        ("float16", (6, 1), "NVIDIA GeForce GTX 1080", False),
        ("float16", (7, 0), "Tesla V100-SXM2-16GB", True),
        ("bfloat16", (7, 0), "Tesla V100-SXM2-16GB", False),
        ("tf32", (7, 5), "Tesla T4", False),
        ("float16", (7, 5), "Tesla T4", True),
        ("float16", (7, 5), "NVIDIA GeForce GTX 1650", False),
        ("tf32", (8, 0), "NVIDIA A100", True),
        ("bfloat16", (9, 0), "NVIDIA H200", True),
    ],
)
def test_tensor_cores(name, capability, model, native):
    """NVIDIA's tensor cores: float16 since Volta (7.0), TF32 and bfloat16 since Ampere (8.0), none in the GTX 16 cards."""
    found = gpu_support(name, capability, model=model)
    assert found.native is native
    assert ".".join(map(str, capability)) in found.why
    assert ("no tensor cores" in found.why) is not native


@pytest.mark.parametrize(
    ("kernels", "flags", "native", "word"),
    [
        (True, {"avx512f", "avx512_bf16"}, True, "avx512_bf16"),
        (True, {"avx512f"}, False, "no bfloat16 instructions"),
        (False, {"avx2"}, False, "no bfloat16 kernels"),
    ],
)
def test_a_cpu_needs_kernels_and_instructions(monkeypatch, kernels, flags, native, word):
    """oneDNN takes any AVX-512 CPU for one with bfloat16 and emulates the instructions that are missing."""
    monkeypatch.setattr(formats, "has_kernels", lambda name: kernels)
    found = cpu_support("bfloat16", frozenset(flags))
    assert found.native is native
    assert word in found.why


def test_a_cpu_has_no_tf32():
    assert not support("tf32", torch.device("cpu")).native


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\nflags\t\t: fpu avx2 amx_bf16\n", {"fpu", "avx2", "amx_bf16"}),
        ("processor : 0\nFeatures : fp asimd asimdhp bf16\n", {"fp", "asimd", "asimdhp", "bf16"}),
        ("processor : 0\n", set()),
    ],
)
def test_the_flags_of_a_cpu(tmp_path, text, expected):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert cpu_flags(path) == expected
    assert cpu_flags(tmp_path / "none") == frozenset()


def test_the_speed_of_a_matmul(monkeypatch):
    """The best repetition counts, 2 n^3 FLOPs in its time, and the formats take turns."""
    monkeypatch.setattr(formats, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(formats, "PROBE_TURNS", 3)
    clock = iter([5.0, 4.0, 0.25, 3.0, 0.5, 0.125])
    monkeypatch.setattr(formats, "_seconds", lambda a, b: next(clock))
    expected = {"float32": 2 * 8**3 / 0.25, "float16": 2 * 8**3 / 0.125}
    assert matmul_speeds(torch.device("cpu"), ["float32", "float16"], side=8) == expected
    assert not list(clock)


def test_a_matmul_runs_in_the_format_it_is_timed_in(monkeypatch):
    seen = []
    monkeypatch.setattr(formats, "_seconds", lambda a, b: seen.append((a.dtype, torch.backends.cuda.matmul.allow_tf32)) or 1.0)
    before = torch.backends.cuda.matmul.allow_tf32
    matmul_speeds(torch.device("cpu"), ["float32", "tf32", "float16"], side=8)
    assert list(dict.fromkeys(seen)) == [(torch.float32, False), (torch.float32, True), (torch.float16, False)]
    assert torch.backends.cuda.matmul.allow_tf32 is before


def test_what_torch_can_not_compute_is_left_out(monkeypatch):
    def seconds(a, b):
        if a.dtype == torch.bfloat16:
            raise RuntimeError("not implemented for 'BFloat16'")
        return 1.0

    monkeypatch.setattr(formats, "_seconds", seconds)
    assert list(matmul_speeds(torch.device("cpu"), ["float32", "bfloat16", "float16"], side=8)) == ["float32", "float16"]
