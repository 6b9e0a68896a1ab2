"""Snapshots in page-locked memory: nothing shared, nothing overlapping, and no larger than what they hold."""

import io

import pytest
import torch

from src.checkpoint.host import ALIGNMENT, HostMemory, host_bytes, to_host

TENSORS = [
    torch.arange(7, dtype=torch.float32),
    torch.tensor([True, False, True]),
    torch.tensor(5, dtype=torch.int64),
    torch.ones(2, 3, dtype=torch.float16),
    torch.empty(0, 4),
    torch.arange(24, dtype=torch.float64).view(2, 3, 4),
]


def copies(memory):
    return [memory.empty_like(tensor).copy_(tensor) for tensor in TENSORS]


def locked(tensors, memory):
    """How many of them lie in the block."""
    begin = torch.frombuffer(memory._bytes, dtype=torch.uint8).data_ptr()
    return sum(begin <= tensor.data_ptr() < begin + len(memory._bytes) for tensor in tensors)


def test_tensors_lie_side_by_side_in_one_block():
    memory = HostMemory(sum(host_bytes(tensor) for tensor in TENSORS))
    found = copies(memory)
    for tensor, source in zip(found, TENSORS, strict=True):
        torch.testing.assert_close(tensor, source, check_dtype=source.dtype != torch.float16, rtol=0, atol=0)
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    assert found[3].dtype == torch.float32
    assert locked(found, memory) == len(TENSORS) - 1  # an empty one lies nowhere


def test_a_saved_tensor_takes_no_more_than_itself():
    memory = HostMemory(1_000_000)
    file = io.BytesIO()
    torch.save(copies(memory), file)
    assert file.tell() < 10_000


@pytest.mark.parametrize("size", [0, ALIGNMENT])
def test_what_does_not_fit_has_memory_of_its_own_until_the_block_has_grown(size):
    memory = HostMemory(size)
    first = copies(memory)
    assert [tensor.tolist() for tensor in first] == [tensor.tolist() for tensor in TENSORS]
    memory.recycle()
    second = copies(memory)
    assert locked(second, memory) == len(TENSORS) - 1


def test_memory_is_used_again():
    memory = HostMemory(10_000)
    first = memory.empty_like(TENSORS[0]).fill_(1)
    memory.recycle()
    second = memory.empty_like(TENSORS[0]).fill_(2)
    assert first.data_ptr() == second.data_ptr()


def test_no_memory_is_told_where_it_is_needed(monkeypatch):
    def exhausted(*args, **kwargs):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(torch, "empty", exhausted)
    memory = HostMemory(100)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        memory.empty_like(TENSORS[0])
    memory.recycle()


def test_a_run_on_a_cpu_leaves_the_gpu_alone(monkeypatch):
    """Locked memory or a wait would make a context on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("woken"))
    assert to_host(TENSORS, HostMemory(100))[0].tolist() == TENSORS[0].tolist()
    assert HostMemory(100).empty_like(TENSORS[0]).is_pinned() is False


def test_half_tensors_become_float32_and_nothing_is_shared():
    source = {"a": [torch.ones(3, dtype=torch.float16), 7], "b": torch.arange(4), "c": ("x", None)}
    copy = to_host(source, HostMemory())
    assert copy["a"][0].dtype == torch.float32
    assert copy["b"].dtype == torch.int64
    assert copy["b"].data_ptr() != source["b"].data_ptr()
    assert (copy["a"][1], copy["c"]) == (7, ["x", None])
    assert to_host(source)["b"].data_ptr() == source["b"].data_ptr()
