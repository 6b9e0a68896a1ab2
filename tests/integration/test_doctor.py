"""``python -m src.doctor``: what it shows, its exit codes, and that it leaves nothing behind."""

import pytest


def doctor(shell, *args: str) -> tuple[int, str, str]:
    process = shell.start("src.doctor", *args)
    out, err = process.communicate(timeout=240)
    assert list(shell.directory.iterdir()) == []
    return process.returncode, out, err


def test_the_machine(shell):
    """The question of the articles, "does my card support fp16 well?", has an answer on any machine."""
    code, out, err = doctor(shell)
    assert code == 0, err
    for word in ("CPU features", "\namp ", "\no3 ", "\nddp ", "the speed of float32"):
        assert word in out


def test_the_coverage(shell):
    code, out, err = doctor(shell, "doctor.check=coverage", "device=cpu", "data.image_size=8", "precision.overrides=['head=float32']")
    assert code == 0, err
    rows = {line.split()[0]: line.split()[1:3] for line in out.splitlines() if line}
    assert rows["conv2"] == ["convolution", "bfloat16"]
    assert rows["head"] == ["matmul", "float32"]
    assert "times as fast" in out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("doctor.check=coverge", "doctor.check"),
        ("precision.overrides=['layer9=float32']", "layer9"),
        ("data.image_size=7", "data.image_size=7"),
    ],
)
def test_a_mistake_is_the_users_to_fix(shell, typed, said):
    """Exit code 2 and a few lines, whether the pre-flight finds it or the network does."""
    code, _, err = doctor(shell, "doctor.check=coverage" if "doctor" not in typed else "device=cpu", typed)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 10
