"""Real signals to this very process."""

import signal

import pytest

from src.errors import Stopped
from src.launch.signals import StopSignals

CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)]
NUMBERS = [number for number, _ in CODES]


@pytest.fixture(autouse=True)
def harmless():
    """A signal that is not handled must not end the tests."""
    seen = []
    previous = {number: signal.signal(number, lambda number, frame: seen.append(number)) for number in NUMBERS}
    yield seen
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), CODES)
def test_the_first_is_noted_and_the_second_obeyed_at_once(harmless, number, code):
    with StopSignals() as signals:
        signals.graceful = True
        assert signals.requested == 0
        signal.raise_signal(number)
        assert signals.requested == code
        with pytest.raises(Stopped, match=f"at once by {number.name}") as error:
            signal.raise_signal(number)
    assert error.value.exit_code == code
    assert not harmless


@pytest.mark.parametrize(("number", "code"), CODES)
def test_before_training_the_first_ends_it(number, code):
    with pytest.raises(Stopped) as error, StopSignals():
        signal.raise_signal(number)
    assert error.value.exit_code == code


def test_the_second_may_be_another():
    with StopSignals() as signals:
        signals.graceful = True
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(Stopped) as error:
            signal.raise_signal(signal.SIGINT)
        assert signals.requested == error.value.exit_code == 130


@pytest.mark.parametrize("fails", [False, True])
def test_the_handlers_of_before_come_back(harmless, fails):
    before = [signal.getsignal(number) for number in NUMBERS]
    try:
        with StopSignals():
            assert all(signal.getsignal(number) not in before for number in NUMBERS)
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    assert [signal.getsignal(number) for number in NUMBERS] == before
    for number in NUMBERS:
        signal.raise_signal(number)
    assert harmless == NUMBERS


def test_a_rank_whose_peer_has_failed_does_not_wait_for_a_second_one():
    """FAULTS row 3: there is nobody left to agree with on a checkpoint."""
    failed = []
    with StopSignals(peer_failed=lambda: bool(failed)) as signals:
        signals.graceful = True
        signal.raise_signal(signal.SIGTERM)
        signals.requested = 0
        failed.append(1)
        with pytest.raises(Stopped, match="at once by SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
