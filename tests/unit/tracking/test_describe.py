"""The text on a run's page."""

import shlex

from src.config.schema import Config, EvaluateConfig, PrecisionConfig
from src.tracking.describe import description, is_generated

OVERRIDES = ["optim.lr=0.1", "+tags.note='two words'", "tracking.uri=postgresql://me:secret@host/db"]
RESULT = {
    "status": "FINISHED",
    "reason": None,
    "objective": {"name": "val/accuracy", "value": 0.98765},
    "best": {"epoch": 3, "step": 69},
    "precision": {"dtype": "bfloat16", "scaler": False},
    "device": "A Processor",
    "world_size": 2,
}


def test_it_holds_the_command_as_it_can_be_typed_without_a_password() -> None:
    text = description(Config(precision=PrecisionConfig(name="fp32")), overrides=OVERRIDES)
    command = text.split("```")[1].removeprefix("sh").strip()
    assert shlex.split(command) == ["python", "-m", "src.train", *OVERRIDES[:2], "tracking.uri=postgresql://host/db"]
    assert "| digits_cnn | digits | adamw | constant | fp32 | single |" in text
    assert "Computed" not in text
    assert "src.evaluate" in description(EvaluateConfig(), overrides=[])


def test_at_the_end_it_tells_what_came_out() -> None:
    text = description(Config(), overrides=[], result=RESULT)
    assert "Computed in bfloat16 on A Processor, without loss scaling, ranks: 2." in text
    assert "FINISHED: **val/accuracy 0.9877** at epoch 3, step 69" in text
    nothing = RESULT | {"status": "FAILED", "reason": "rank 0 was killed", "objective": {"name": "x", "value": None}, "precision": None}
    text = description(Config(), overrides=[], result=nothing)
    assert "FAILED (rank 0 was killed)" in text
    assert "Computed" not in text


def test_a_note_is_a_persons_once_the_last_line_is_gone() -> None:
    text = description(Config(), overrides=[])
    assert is_generated(None)
    assert is_generated(text)
    assert not is_generated(text.rpartition("\n")[0] + "\nmine")
