"""What of settings is shown: everything but secrets, by one rule for all that tells them.

Contract:

- A name is a secret's by its words, however they are joined (``api_key``, ``apiKey``, ``X-Api-Key``). Texts and objects under it are not
  shown; numbers, truth values and ``None`` are, and so are numbers of tokens and the tokens of a tokenizer (``eos_token``).
- Arguments that an environment's class names in ``secret_arguments`` are secrets, too.
- In a list, what follows such a name is not shown where the two are a pair, or the name is a flag.
- In a text: what stands behind such a name and ``=`` or ``:``, what follows ``Bearer``, and in an address what stands before the ``@``.
"""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "..."
"""What stands for a value that is not shown."""

_SECRET = re.compile(
    r"api_?key|password|passwd|passphrase|secret|credential|authori[sz]ation|cookie|bearer"
    r"|(access|private|account|auth|encryption|signing|ssh)_?keys?(_|$)"
    r"|(access|api|auth|hub|refresh|session)_?token(_|$)"
    r"|(^|_)(auth|pwd|tokens?)$"
)
_HARMLESS = re.compile(r"^(pad|eos)_token$|(^|_)(max|min|num|n)_(\w+_)?tokens$")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAME = re.compile(r"-{0,2}[\w.\-]+")
_USER = re.compile(r"(?<=://)[^/\s]*(?=@)")
_BEARER = re.compile(r"(\bbearer\s+)[^\s'\",]+", re.IGNORECASE)
_GIVEN = re.compile(r"(?<![\w.\-])([\w.\-]+)[\"']?\s*[=:]\s*([\"']?)")
_VALUE = re.compile(r"((bearer|basic|token)\s+)?[^\s&#'\",;]+", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Return whether a name says that its value is a secret.

    Args:
        name: Name of a setting, a header or a flag.
    """
    words = "_".join(_WORD.findall(name)).lower()
    return bool(_SECRET.search(words)) and not _HARMLESS.search(words)


def masked(value: Any, name: str = "") -> Any:
    """Return a value without secrets; objects that are no texts, mappings or lists are returned as they are.

    Args:
        value: Any value.
        name: What it is called.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if is_secret(name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: masked(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        names = ["", *(_announced(one, pair=len(value) == 2) for one in value[:-1])]
        parts = [masked(one, before) for one, before in zip(value, names, strict=False)]
        return tuple(parts) if isinstance(value, tuple) else parts
    return _masked_text(value) if isinstance(value, str) else value


def masked_arguments(entry: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class or a function without secrets.

    Args:
        entry: The class or the function; ``secret_arguments`` of it names more of them.
        arguments: Its arguments by name.
    """
    secret = getattr(entry, "secret_arguments", ())
    return {
        name: HIDDEN if name in secret else masked(one, name) for name, one in arguments.items()
    }


def _announced(value: Any, *, pair: bool) -> str:
    """The name of what stands behind an entry of a list, if the entry is one."""
    named = isinstance(value, str) and _NAME.fullmatch(value) and (pair or value.startswith("-"))
    return value if named else ""


def _masked_text(text: str) -> str:
    text = _BEARER.sub(rf"\1{HIDDEN}", _USER.sub(HIDDEN, text))
    parts, at = [], 0
    for given in _GIVEN.finditer(text):
        if given.start() < at or not is_secret(given[1]):
            continue
        values = re.compile(f"[^{given[2]}]+") if given[2] else _VALUE
        if value := values.match(text, given.end()):
            parts += [text[at : given.end()], HIDDEN]
            at = value.end()
    return "".join([*parts, text[at:]])
