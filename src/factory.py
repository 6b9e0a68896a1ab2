"""Functions of the user's own, named as ``package.module:function`` on the command line."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from src.config.values import show
from src.errors import ConfigError


def import_factory(path: str | None, *, key: str) -> Callable[..., Any]:
    """The function that ``path`` names; ``key`` is the option it was given by, as in ``model.factory``.

    The current directory is importable, as it is for ``python -m``. An exception raised by the module itself comes as it is.

    Raises:
        ConfigError: no such module or function, or a text of another form.
    """
    if not path:
        raise ConfigError(f"{key} is not set; name your function: {key}=package.module:function")
    module_name, _, name = path.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise ConfigError(f"{key}={path} is not of the form package.module:function")
    directory = os.getcwd()
    if directory not in sys.path:  # stays there: the function may import more when it is called
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise ConfigError(f"{key}={path}: there is no module {error.name} in {directory} or among the installed packages") from None
    function = getattr(module, name, None)
    if function is None:
        close = get_close_matches(name, [other for other, value in vars(module).items() if callable(value)], n=1)
        hint = f"did you mean {module_name}:{close[0]}?" if close else "name one of its functions"
        raise ConfigError(f"{key}={path}: the module {module_name} has no {name}; {hint}")
    if not callable(function):
        raise ConfigError(f"{key}={path} is a {type(function).__name__}, not a function; name a function")
    return function  # type: ignore[no-any-return]


def call_factory(function: Callable[..., Any], *, offered: Mapping[str, Any], kwargs: Mapping[str, Any], key: str) -> Any:
    """``function`` called with those of ``offered`` that its signature names, and with the user's ``kwargs`` (the option ``key``).

    Raises:
        ConfigError: the arguments don't fit the signature. What the function itself raises comes as it is.
    """
    clash = [name for name in kwargs if name in offered]
    if clash:
        raise ConfigError(f"{key}.{clash[0]}={show(kwargs[clash[0]])} is passed by this program already; leave it out")
    signature = inspect.signature(function)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {name for name, parameter in signature.parameters.items() if parameter.kind in by_name}
    arguments = {name: value for name, value in offered.items() if name in named} | dict(kwargs)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        called = getattr(function, "__qualname__", repr(function))
        raise ConfigError(f"{key} does not fit {called}{signature}: {error}; set its arguments by +{key}.NAME=VALUE") from None
    return function(**arguments)
