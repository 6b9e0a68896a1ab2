"""Console lines for people, files with everything."""

import io
import logging

import pytest

from src.runtime import logs


@pytest.fixture
def root():
    """The root logger, given back with its handlers and levels; set_up may close only what it finds here."""
    logger, ours = logging.getLogger(), logging.getLogger("src")
    handlers, levels = list(logger.handlers), (logger.level, ours.level)
    logger.handlers.clear()
    yield logger
    for handler in list(logger.handlers):
        logs.remove(handler)
    logger.handlers[:] = handlers
    logger.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture
def screen(monkeypatch):
    """What the console shows."""
    screen = io.StringIO()
    monkeypatch.setattr(logs.console, "file", screen)
    return screen


def test_the_console_shows_ours_from_info_and_theirs_from_warning(root, screen):
    logs.set_up(on_console=True)
    logging.getLogger("src.engine").info("epoch 1 [bold]not markup[/bold] %s", "[/x]")
    logging.getLogger("src.engine").debug("hidden")
    logging.getLogger("elsewhere").info("hidden")
    logging.getLogger("elsewhere").warning("theirs")
    assert screen.getvalue().splitlines() == ["epoch 1 [bold]not markup[/bold] [/x]", "theirs"]


def test_long_lines_are_not_broken(root, screen):
    """A wrapped path or command can't be copied."""
    logs.set_up(on_console=True)
    line = "run directory /" + "long name/" * 60
    logging.getLogger("src").info(line)
    assert screen.getvalue() == line + "\n"


def test_other_ranks_are_quiet(root, screen):
    logs.set_up(on_console=False)
    logging.getLogger("src").error("seen in the rank's file only")
    assert screen.getvalue() == ""


def test_setting_up_again_does_not_double_lines(root, screen):
    for _ in range(3):
        logs.set_up(on_console=True)
    logging.getLogger("src").info("once")
    assert screen.getvalue() == "once\n"


def test_a_file_has_time_rank_level_name_and_trace(root, tmp_path):
    logs.set_up(on_console=False)
    path = tmp_path / "ranks" / "3" / "rank.log"
    handler = logs.add_file(path, rank=3)
    logging.getLogger("src.worker").info("größer")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("src.worker").exception("failed")
    logs.remove(handler)
    logging.getLogger("src.worker").info("after the end")
    text = path.read_text(encoding="utf-8")
    assert "rank 3 INFO src.worker: größer\n" in text
    assert text.startswith("20")
    assert text.rstrip().endswith("ValueError: why")
    assert "after" not in text


def test_a_second_run_in_the_same_place_appends(root, tmp_path):
    logs.set_up(on_console=False)
    for word in ("first", "second"):
        handler = logs.add_file(tmp_path / "train.log")
        logging.getLogger("src").info(word)
        logs.remove(handler)
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["first", "second"]
    assert " rank " not in lines[0]
