"""Writing in the background: whole files, the newest and the best, and failures that are told."""

import threading

import pytest
import torch

from src.checkpoint import find, load, writer as writers
from src.checkpoint.writer import Writer
from src.config.schema import SaveConfig


class Gate:
    """Holds every write until it is opened, and notes the steps in the order in which writing began."""

    def __init__(self, monkeypatch):
        self.open = threading.Event()
        self.began = threading.Event()
        self.steps = []
        original = writers.write_checkpoint

        def write(directory, payload, *, about, **kwargs):
            self.steps.append(about["step"])
            self.began.set()
            assert self.open.wait(20)
            return original(directory, payload, about=about, **kwargs)

        monkeypatch.setattr(writers, "write_checkpoint", write)


def content(step):
    return {"config": {}, "weight": torch.full((10,), float(step))}


def put(writer, step, *, is_best=False):
    writer.put(content(step), about={"step": step}, is_best=is_best)


def steps(directory):
    return sorted(int(path.stem.removeprefix("step-")) for path in directory.glob("step-*.pt"))


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**settings):
        made.append(Writer(tmp_path, SaveConfig(**({"keep": 9} | settings))))
        return made[-1]

    yield build
    for writer in made:
        writer.close()


@pytest.mark.parametrize("background", [True, False])
def test_what_is_put_is_on_the_disk_after_a_wait(make, tmp_path, background):
    writer = make(background=background)
    put(writer, 1, is_best=True)
    put(writer, 2)
    writer.wait()
    assert load.load(tmp_path / "step-00000002.pt")["weight"][0] == 2
    assert load.load(tmp_path / find.BEST)["weight"][0] == 1
    assert not list(tmp_path.glob("*.tmp"))
    assert writer.problem(last=True) is None


def test_a_writer_that_never_had_to_write_ends(make, tmp_path):
    make(background=True)
    started = make(background=True)
    started.start(1_000)
    started.close()
    assert not list(tmp_path.iterdir())


def test_training_may_change_what_it_gave(make, tmp_path, monkeypatch):
    gate, writer = Gate(monkeypatch), make(background=True)
    given = content(1)
    writer.put(given, about={"step": 1}, is_best=False)
    given["weight"].fill_(99)
    gate.open.set()
    writer.wait()
    assert load.load(tmp_path / "step-00000001.pt")["weight"][0] == 1


def test_saving_faster_than_the_disk_keeps_the_newest_only(make, tmp_path, monkeypatch):
    gate, writer = Gate(monkeypatch), make(background=True)
    put(writer, 1)
    assert gate.began.wait(20)
    for step in (2, 3, 4):
        put(writer, step)
    gate.open.set()
    writer.wait()
    assert gate.steps == [1, 4]
    assert steps(tmp_path) == [1, 4]
    assert load.load(tmp_path / "step-00000004.pt")["weight"][0] == 4


def test_a_best_one_that_waits_is_not_replaced(make, tmp_path, monkeypatch):
    gate, writer = Gate(monkeypatch), make(background=True)
    put(writer, 1)
    assert gate.began.wait(20)
    put(writer, 2, is_best=True)
    later = threading.Thread(target=put, args=(writer, 3))
    later.start()
    later.join(0.2)
    assert later.is_alive()
    gate.open.set()
    later.join(20)
    writer.wait()
    assert gate.steps == [1, 2, 3]
    assert load.load(tmp_path / find.BEST)["weight"][0] == 2


def test_without_best_there_is_no_best(make, tmp_path):
    writer = make(best=False, background=False)
    put(writer, 1, is_best=True)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.pt"]


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed writing file")])
def test_failures_in_a_row_are_forgiven_up_to_a_number(make, tmp_path, monkeypatch, caplog, background, error):
    """I05: torch turns a full disk into a RuntimeError."""
    writer = make(background=background, max_failures=2)
    put(writer, 1)
    writer.wait()
    original = writers.write_checkpoint

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(writers, "write_checkpoint", fail)
    for step in (2, 3):
        put(writer, step)
        writer.wait()
        assert writer.problem(last=False) is None
        assert str(error) in (writer.problem(last=True) or "")
    assert f"the checkpoint of step 3 could not be written to {tmp_path}" in caplog.text
    put(writer, 4)
    writer.wait()
    problem = writer.problem(last=False)
    assert problem is not None
    assert "the last 3 checkpoints" in problem
    assert f"the newest good one is {tmp_path / 'step-00000001.pt'}" in problem
    monkeypatch.setattr(writers, "write_checkpoint", original)
    put(writer, 5)
    writer.wait()
    assert writer.problem(last=True) is None
    assert steps(tmp_path) == [1, 5]


def test_an_error_nobody_thought_of_is_a_failure_too_and_nobody_waits_for_ever(make, tmp_path):
    """What can't be pickled: the thread goes on, and so does the training."""
    writer = make(background=True, max_failures=0)
    writer.put({"config": {}, "weight": threading.Lock()}, about={"step": 1}, is_best=False)
    writer.wait()
    assert "pickle" in (writer.problem(last=False) or "")
    assert not list(tmp_path.iterdir())
    put(writer, 2)
    writer.wait()
    assert writer.problem(last=True) is None
    assert steps(tmp_path) == [2]


def test_no_memory_for_a_copy_is_a_failure_too(make, tmp_path, monkeypatch):
    writer = make(background=True, max_failures=1)
    for step in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "to", exhausted)
            put(writer, step)
        writer.wait()
        assert (writer.problem(last=False) is None) == (step == 1)
    assert "can't allocate memory" in (writer.problem(last=False) or "")
    put(writer, 3)
    writer.wait()
    assert writer.problem(last=True) is None
    assert steps(tmp_path) == [3]


def exhausted(*args, **kwargs):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
