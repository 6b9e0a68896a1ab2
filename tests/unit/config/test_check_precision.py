"""Precision, and what it can't be combined with."""

from .conftest import DDP, passes, refusal


def test_precision() -> None:
    assert "has no effect with precision=fp32" in refusal(precision={"name": "fp32", "dtype": "float16"})
    assert "needs float16, but precision=fp32" in refusal(precision={"name": "fp32", "scaler": {"enabled": True}})
    assert "computes in bfloat16 on a CPU" in refusal(0, precision={"name": "amp", "scaler": {"enabled": True}})
    assert "precision.dtype=bfloat16" in refusal(1, precision={"name": "amp", "dtype": "bfloat16", "scaler": {"enabled": True}})
    passes(1, precision={"name": "amp", "scaler": {"enabled": True}})
    passes(None, precision={"name": "amp", "scaler": {"enabled": True}})
    passes(0, precision={"name": "amp", "dtype": "float16", "scaler": {"enabled": True}})  # forced fp16 on a CPU
    passes(0, precision={"name": "fp32", "scaler": {"enabled": False}})


def test_modes_that_spread_weights_have_no_casts_of_their_own() -> None:
    for name in ("dp", "fsdp"):
        parallel = {"name": name}
        for precision in ("o2", "o3"):
            assert f"parallel={name} can't spread over devices; use precision=amp" in refusal(
                parallel=parallel, precision={"name": precision}
            )
        overrides = {"overrides": ["conv1=float32"]}
        assert f"can't be kept with parallel={name}" in refusal(parallel=parallel, precision=overrides)
        for precision in ("fp32", "tf32", "amp", "bf16", "o0", "o1"):
            passes(parallel=parallel, precision={"name": precision})
    passes(parallel=DDP, precision={"name": "o2", "overrides": ["conv1=float32"]})
