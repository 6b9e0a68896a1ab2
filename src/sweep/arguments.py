"""A command line taken apart: Hydra's flags and the overrides, with an answer to the habits of other programs."""

import re
from argparse import Namespace
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from src.config.keys import choosable, condition, every_leaf, leaves, suggestion
from src.config.schema import OPTIONS, Config
from src.errors import ConfigError


def read_args(argv: Sequence[str], kind: type[Config] = Config) -> Namespace:
    """Hydra's own flags and the overrides, in any order; ``kind`` is the config whose keys are suggested.

    Raises:
        ConfigError: a flag that doesn't exist, flags that exclude each other or that this program doesn't support, or a word
            that is no override.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]  # argparse would print its usage, 20 lines without an answer
    _check_flags(argv, list(parser._option_string_actions), kind)
    args = parser.parse_intermixed_args(list(argv))
    modes = [name for name in ("run", "multirun", "cfg", "info", "shell_completion") if getattr(args, name)]
    if len(modes) > 1:
        raise ConfigError(f"--{modes[0]} and --{modes[1]} exclude each other")
    if args.resolve and not (args.cfg or args.help):
        raise ConfigError("--resolve needs --cfg or --help")
    if args.config_path is not None or args.config_name is not None:
        raise ConfigError("--config-path and --config-name are not supported; add a directory of your own options with --config-dir")
    if not args.shell_completion:
        _check_words(args.overrides, kind)
    return args


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def _check_flags(argv: Sequence[str], flags: list[str], kind: type[Config]) -> None:
    for number, text in enumerate(argv):
        flag, equals, value = text.partition("=")
        if flag in ("--", *flags) or not re.match(r"--?[^\W\d]", flag):
            continue
        close = get_close_matches(flag, flags, n=1, cutoff=0.7)
        options = leaves(kind, {group: next(iter(names)) for group, names in OPTIONS.items()})
        key = suggestion(flag.lstrip("-").replace("-", "_"), options)
        if key is None:
            hint = f"did you mean {close[0]}?" if close else "options are written KEY=VALUE; --help lists them"
            raise ConfigError(f"{flag} is not a flag; {hint}")
        following = argv[number + 1] if number + 1 < len(argv) else ""
        if not equals and following and "=" not in following and not following.startswith("--"):
            text, value = f"{text} {following}", following
        raise ConfigError(f"{text}: options are written KEY=VALUE; write {key}={value or 'VALUE'}{condition(key, options)}")


def _check_words(texts: Sequence[str], kind: type[Config]) -> None:
    """Refuse the first word that has no KEY=VALUE, and say what it belongs to."""
    for number, text in enumerate(texts):
        previous, following = texts[number - 1] if number else "", texts[number + 1] if number + 1 < len(texts) else ""
        split = [*texts[number : number + 2], *(texts[number + 2 : number + 3] if following == "=" else [])]
        if following and _is_split(text, following):
            raise ConfigError(f"{' '.join(split)}: no space belongs around =; write {''.join(split)}")
        if "=" in text or text.startswith("~"):  # whether it makes sense is judged later
            continue
        known = {*choosable(every_leaf(kind)), *OPTIONS}
        if text in known and following and "=" not in following and following not in known:
            raise ConfigError(f"{text} {following}: write {text}={following}")
        if "=" in previous and text not in known:
            hint = f'to sweep over values add -m and write {previous},{text}; quote a text with a space: "{previous} {text}"'
            raise ConfigError(f"{text} is not an override; {hint}")
        raise ConfigError(f"{text} is not an override; write {text if text in known else 'KEY'}=VALUE (--help lists the keys)")


def _is_split(text: str, following: str) -> bool:
    """Whether ``KEY = VALUE``, ``KEY =VALUE`` or ``KEY= VALUE`` was typed."""
    key = text.rstrip("=")
    return "=" not in key and ((text == key and following.startswith("=")) or (text == f"{key}=" and "=" not in following))
