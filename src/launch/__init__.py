"""From a checked config to a finished run: directory, tracker, ranks, true ending. Never imports engine, models or data."""
