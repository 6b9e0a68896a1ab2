import pytest

from src.data import decoder
from src.data.decoder import Decoder, chunked


class Breaking:
    """Stands in for torch's loader."""

    def __init__(self, error, num_workers):
        self._error = error
        self.num_workers = num_workers

    def __iter__(self):
        yield "first"
        raise self._error


def stream(monkeypatch, error, *, num_workers):
    monkeypatch.setattr(decoder.time, "sleep", lambda seconds: None)
    found = Decoder(lambda chunk: chunk, num_workers=0, pin_memory=False)
    monkeypatch.setattr(found, "_loader", Breaking(error, num_workers))
    return found.stream(chunked(4, length=2))


@pytest.mark.parametrize(("num_workers", "forks"), [(0, 0), (2, 1)])
def test_workers_are_forked_before_there_are_threads_that_train(monkeypatch, num_workers, forks):
    """A fork beside a thread of gloo inherited one of Python's locks, taken, and hung in the first evaluation."""
    forked = []

    class Loader:
        def __init__(self, dataset, **settings):
            self.persistent = settings["persistent_workers"]

        def __iter__(self):
            forked.append(self)
            return iter(())

    monkeypatch.setattr(decoder, "DataLoader", Loader)
    Decoder(lambda chunk: chunk, num_workers=num_workers, pin_memory=False)
    assert len(forked) == forks
    assert all(loader.persistent for loader in forked)


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "Connection reset by peer"), EOFError(), RuntimeError("Pin memory thread exited unexpectedly")]
)
def test_a_worker_that_dies_while_it_hands_over_is_a_dead_worker(monkeypatch, error):
    results = stream(monkeypatch, error, num_workers=2)
    assert next(results) == "first"
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid unknown\) died"):
        next(results)


@pytest.mark.parametrize(
    ("error", "num_workers"),
    [(ConnectionResetError("a server"), 0), (EOFError("Caught it in DataLoader worker process 0."), 2)],
)
def test_a_source_that_loses_its_own_connection_tells_so_itself(monkeypatch, error, num_workers):
    results = stream(monkeypatch, error, num_workers=num_workers)
    next(results)
    with pytest.raises(type(error)):
        next(results)
