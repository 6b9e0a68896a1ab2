import logging

import pytest
import torch
from torch import nn

from src.config.schema import Compile
from src.engine.forward import Forward
from src.errors import ConfigError, ExitCode, Stopped


@pytest.fixture
def broken_compiler(monkeypatch, tmp_path):
    """A machine without a C++ compiler; nothing that was compiled before is used again."""
    from torch._inductor import config

    torch.compiler.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        yield
    torch.compiler.reset()


def network():
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh())


def test_without_compilation_the_network_itself_is_called():
    plain = network()
    images = torch.randn(4, 3)
    assert torch.equal(Forward(plain, Compile.none, fallback=False)(images, last=True), plain(images))


def test_a_machine_that_cannot_compile_is_the_users_to_know(broken_compiler):
    forward = Forward(network(), Compile.default, fallback=False)
    with pytest.raises(ConfigError, match=r"train\.compile=default: compilation failed \(.*no-such-compiler.*\); set train") as caught:
        forward(torch.randn(4, 3), last=True)
    assert "\n" not in str(caught.value)


def test_a_fallback_goes_on_and_says_so_once(broken_compiler, caplog):
    plain = network()
    forward = Forward(plain, Compile.reduce_overhead, fallback=True)
    images = torch.randn(4, 3)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(forward(images, last=True), plain(images))
    (record,) = [record for record in caplog.records if record.name == "src.engine.forward"]
    assert record.message.startswith("train.compile=reduce_overhead: compilation failed, so the network runs as it is (")
    assert forward.mode is Compile.none


def test_an_error_of_the_network_is_not_taken_for_one_of_the_compiler():
    class Refusing(nn.Module):
        def forward(self, images):
            raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"):
        Forward(Refusing(), Compile.default, fallback=True)(torch.randn(4, 3), last=True)


def test_a_backward_pass_that_cannot_be_compiled_fails_in_the_forward_one(broken_compiler):
    """The product of a linear layer comes from a library; only the gradient of its bias is a sum that needs the compiler."""
    with pytest.raises(ConfigError, match="compilation failed"):
        Forward(nn.Linear(3, 2), Compile.default, fallback=False)(torch.randn(4, 3), last=True)


@pytest.mark.parametrize("came", [Stopped("by SIGINT", exit_code=ExitCode.INTERRUPTED), MemoryError(), torch.OutOfMemoryError("CUDA")])
@pytest.mark.parametrize("fallback", [False, True])
def test_what_only_comes_while_torch_compiles_is_not_its_failure(monkeypatch, came, fallback):
    def compile_graph(*args, **kwargs):
        raise came

    torch.compiler.reset()
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_graph)
    with pytest.raises(type(came)):
        Forward(network(), Compile.default, fallback=fallback)(torch.randn(4, 3), last=True)


@pytest.mark.slow  # two graphs compiled
def test_a_function_with_too_many_variants_is_told(monkeypatch):
    """torch alone would run the others as they are, and say nothing."""
    torch.compiler.reset()
    monkeypatch.setattr("src.engine.forward.RECOMPILE_LIMIT", 1)
    forward = Forward(network(), Compile.default, fallback=False)
    forward(torch.randn(4, 3), last=True)
    with pytest.raises(ConfigError, match=r"compilation failed \(Unsupported: Dynamo recompile limit exceeded"):
        forward(torch.randn(5, 3), last=True)
