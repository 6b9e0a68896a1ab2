"""Errors as one line without secrets."""

from src.tracking.messages import brief, first_line, shown_uri


def test_no_password_is_shown() -> None:
    assert shown_uri("postgresql://me:s3cr@et@host/db") == "postgresql://host/db"
    assert shown_uri("request to http://me:s3cret@host/x failed: a@b") == "request to http://host/x failed: a@b"
    assert shown_uri("sqlite:////data/x.db") == "sqlite:////data/x.db"


def _nested() -> Exception:
    try:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError as error:
            raise RuntimeError("pages\nand pages") from error
    except RuntimeError:
        try:
            raise ValueError("request to http://me:s3cret@host failed" + "!" * 500)
        except ValueError as error:
            return error


def test_brief_is_the_bottom_of_an_error() -> None:
    assert brief(_nested()) == "[Errno 111] Connection refused"
    assert brief(ValueError("a\nb")) == "a"
    assert brief(TimeoutError()) == "TimeoutError"


def test_first_line_is_the_top_without_secrets() -> None:
    line = first_line(_nested())
    assert line.startswith("request to http://host failed")
    assert len(line) <= 200
