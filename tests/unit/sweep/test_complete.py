"""Values that Hydra's completion can't know."""

import pytest

from src.config.schema import EvaluateConfig
from src.sweep.complete import complete
from src.sweep.request import App


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("x precision.dtype=", "precision.dtype=auto precision.dtype=float16 precision.dtype=bfloat16"),
        ("x precision.dtype=b", "precision.dtype=bfloat16"),
        ("x seed=1 deterministic=", "deterministic=true deterministic=false"),
        ("x parallel.backend=g", "parallel.backend=gloo"),
        ("x split=v", "split=val"),
        ("x model.num_classes=", "model.num_classes=auto"),
    ],
)
def test_values_are_listed(line: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert complete(App("evaluate", EvaluateConfig))
    assert capsys.readouterr().out.split() == answer.split()


@pytest.mark.parametrize("line", ["x", "x ", "x optim.lr=", "x model=", "x nope=", "x precision.dt", "x precision.dtype= "])
def test_the_rest_is_left_to_hydra(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert not complete(App("evaluate", EvaluateConfig))
    assert capsys.readouterr().out == ""
