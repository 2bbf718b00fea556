"""Checks of the records of WebShop's files: what is of another type is refused with a sentence.

The format stands at the top of ``catalog.py``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ADVICE = "Give a file in the format of WebShop's"

Check = tuple[str, Callable[[Any], bool]]
"""What is expected, and whether a value is that."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _are_texts(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _are_choices(value: Any) -> bool:
    """Whether a value has the form ``{name: [{"value": text}, ...] or null}``."""
    return isinstance(value, Mapping) and all(
        _is_text(name) and (not ones or (_is_list(ones) and all(map(_is_choice, ones))))
        for name, ones in value.items()
    )


def _is_choice(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_text(value.get("value"))


def _or_nothing(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or value == "" or check(value)


PRODUCT: Mapping[str, Check] = {
    "asin": ("a text", _is_text),
    "name": ("a text", _is_text),
    "full_description": ("a text or null", _or_nothing(_is_text)),
    "small_description": (
        "a text, a list of texts or null",
        _or_nothing(lambda value: _is_text(value) or _are_texts(value)),
    ),
    "pricing": ("a text such as '$10.99' or null", _or_nothing(_is_text)),
    "customization_options": (
        'an object of lists of {"value": text}, or null',
        _or_nothing(_are_choices),
    ),
    "query": ("a text", _is_text),
    "product_category": ("a text", _is_text),
}
"""Fields that a product must have."""

ABOUT: Mapping[str, Check] = {
    "attributes": ("a list of texts", _are_texts),
    "instruction": ("a text or null", _or_nothing(_is_text)),
    "instruction_attributes": ("a list of texts or null", _or_nothing(_are_texts)),
}
"""Fields that a record of attributes may have."""

INSTRUCTION: Mapping[str, Check] = {
    "instruction": ("a text", _is_text),
    "instruction_attributes": ("a list of texts", _are_texts),
    "instruction_options": (
        "a list of texts, or an object of them",
        lambda value: _are_texts(list(value.values()) if isinstance(value, Mapping) else value),
    ),
}
"""Fields that an instruction of a person must have."""


def check_product(item: Any, position: int) -> None:
    """Refuse a product that is not in the format.

    Args:
        item: The record.
        position: Its place in the file, from 0.

    Raises:
        ValueError: If a field is missing or of another type.
    """
    _check(item, f"Product {position}", PRODUCT, "items_shuffle.json", needed=True)


def check_about(record: Any, asin: str) -> None:
    """Refuse a record of attributes that is not in the format.

    Args:
        record: The record.
        asin: Number of its product.

    Raises:
        ValueError: If a field is of another type.
    """
    _check(record, f"The record of attributes of {asin}", ABOUT, "items_ins_v2.json", needed=False)


def check_human(records: Any, asin: str) -> None:
    """Refuse instructions of people that are not in the format.

    Args:
        records: The records.
        asin: Number of their product.

    Raises:
        ValueError: If they are no list, or a field of one is missing or of another type.
    """
    file = "items_human_ins.json"
    if not _is_list(records):
        raise ValueError(
            f"The instructions of {asin} are {_short(records)}, expected a list. {_ADVICE} {file}."
        )
    for number, one in enumerate(records):
        _check(one, f"Instruction {number} of {asin}", INSTRUCTION, file, needed=True)


def price_tags(pricing: str) -> list[str]:
    """Return one or two prices of ``"$10.99"`` or ``"$10.99 to $12.00"``; without one, the original asks 100 dollars.

    Args:
        pricing: The product's field.
    """
    return re.findall(r"\$([\d,]*\.?\d+)", pricing)[:2] or ["100.0"]


def _check(
    record: Any, where: str, fields: Mapping[str, Check], file: str, *, needed: bool
) -> None:
    """Refuse a record that is not in the format.

    Raises:
        ValueError: At the first reason that is found.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"{where} is {_short(record)}, expected an object. {_ADVICE} {file}.")
    missing = [field for field in fields if field not in record] if needed else []
    if missing:
        raise ValueError(
            f"{where} lacks {', '.join(missing)}; got the fields {', '.join(record)}. {_ADVICE} {file}."
        )
    for field, (expected, check) in fields.items():
        if field in record and not check(record[field]):
            raise ValueError(
                f"{where}: {field} is {_short(record[field])}, expected {expected}. {_ADVICE} {file}."
            )


def _short(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 80 else f"{written[:80]}..."
