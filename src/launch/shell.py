"""What a shell tells a program that it asks for completions."""

import os


def completion_line() -> str:
    """The command line typed so far, as bash and its kin pass it."""
    return os.environ.get("COMP_LINE", "")
