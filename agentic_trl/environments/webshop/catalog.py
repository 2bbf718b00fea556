"""Products and goals of a web shop, read from records in the format of WebShop's files.

- Products: a list of objects with ``asin``, ``name``, ``full_description``, ``small_description`` (the
  features), ``pricing``, ``customization_options``, ``query`` and ``product_category``
  (``items_shuffle*.json``).
- Attributes: an object by ``asin`` with ``attributes``, and for goals ``instruction`` and
  ``instruction_attributes`` (``items_ins*.json``).
- Instructions of people, optional: an object by ``asin`` with a list of ``instruction``,
  ``instruction_attributes`` and ``instruction_options`` (``items_human_ins.json``).
"""

import itertools
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentic_trl.environments.webshop.records import (
    check_about,
    check_human,
    check_product,
    price_tags,
)
from agentic_trl.environments.webshop.search import Bm25

NO_LIMIT = 1_000_000.0
"""Price limit, in dollars, of a goal that names none."""

GOAL_SHUFFLE_SEED = 233
"""Seed that the original shuffles its goals with; its test goals are the first 500."""

_PRICE_LIMITS = [10.0 * step for step in range(1, 100)]


@dataclass(frozen=True, slots=True)
class Product:
    """Something for sale."""

    asin: str
    """Its number."""
    title: str
    """One line."""
    description: str
    """A paragraph, or empty."""
    features: tuple[str, ...]
    """Short lines."""
    price: float
    """In dollars; the middle of a range of prices."""
    price_tag: str
    """The price as it is shown."""
    options: Mapping[str, tuple[str, ...]]
    """Values to choose from, by the name of the option."""
    attributes: tuple[str, ...]
    """Its properties; never shown as such."""
    query: str
    """The kind of product."""
    path: str
    """The categories from the widest to the narrowest, with ``›`` between."""

    @property
    def text(self) -> str:
        """All that its pages say, in lower case."""
        return "\n".join([self.title, " ".join(self.features), self.description]).lower()


@dataclass(frozen=True, slots=True)
class Goal:
    """Something to buy."""

    asin: str
    """The product that the instruction was written for."""
    instruction: str
    """The request in words."""
    attributes: tuple[str, ...]
    """Properties that the product must have, one or more."""
    options: tuple[str, ...]
    """Values that must be chosen."""
    price_limit: float
    """Highest price in dollars."""


class Catalog:
    """Products, goals and the search over the products; read by all environments together."""

    def __init__(self, products: Sequence[Product], goals: Iterable[Goal]) -> None:
        """Index the products.

        Args:
            products: What is sold.
            goals: What is asked for, in any order; they are shuffled as in the original.
        """
        self.products = {product.asin: product for product in products}
        self.goals = list(goals)
        random.Random(GOAL_SHUFFLE_SEED).shuffle(self.goals)
        self._asins = list(self.products)
        self._index = Bm25([_indexed_text(product) for product in products])

    def search(self, keywords: str, count: int) -> tuple[str, ...]:
        """Return the numbers of the best products, best first.

        Args:
            keywords: Words.
            count: Most results.
        """
        return tuple(self._asins[position] for position in self._index.top(keywords, count))


@lru_cache(maxsize=4)
def load_catalog(
    products_file: str, attributes_file: str, instructions_file: str | None, limit: int | None
) -> Catalog:
    """Read a catalogue from files; a second call with the same names reads none.

    Args:
        products_file: Path of the products.
        attributes_file: Path of the attributes.
        instructions_file: Path of people's instructions; without it, goals are the instructions of
            the attributes file with every combination of options.
        limit: Most records of products that are read; ``None`` reads all.

    Returns:
        The catalogue.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is no JSON, or not in the format at the top of this file.
    """
    items, about = _read(products_file, list), _read(attributes_file, dict)
    human = _read(instructions_file, dict) if instructions_file is not None else None
    return build_catalog(items[:limit], about, human)


def _read(path: str, kind: type) -> Any:
    """Return the content of a JSON file.

    Raises:
        ValueError: If it is not of the kind that is expected.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read as JSON in UTF-8: {error}. Give a file in WebShop's format."
        ) from error
    if not isinstance(content, kind):
        expected = "a list of products" if kind is list else "an object by asin"
        raise ValueError(f"{path}: got {type(content).__name__}, expected {expected}.")
    return content


def build_catalog(
    items: Sequence[Any], about: Mapping[str, Any], human: Mapping[str, Any] | None = None
) -> Catalog:
    """Return the catalogue of records.

    Records without a proper number (``nan``, or longer than ten characters) and those with a number
    that came before are left out, as in the original.

    Args:
        items: Products.
        about: Attributes by number.
        human: People's instructions by number; ``None`` makes goals from ``about``.

    Returns:
        The catalogue.

    Raises:
        ValueError: If a record lacks a field or has one of another type, or no goal is left.
    """
    products: dict[str, Product] = {}
    for position, item in enumerate(items):
        check_product(item, position)
        if item["asin"] != "nan" and len(item["asin"]) <= 10:
            check_about(about.get(item["asin"], {}), item["asin"])
            products.setdefault(item["asin"], _product(item, about.get(item["asin"], {})))
    goals: list[Goal] = []
    for product in products.values():
        if human is None:
            goals += _made_goals(product, about.get(product.asin, {}))
        else:
            check_human(human.get(product.asin, ()), product.asin)
            goals += _human_goals(product, human.get(product.asin, ()))
    if not goals:
        raise ValueError(
            f"Got {len(products)} products and no goal, expected at least one product with an "
            "`instruction` and its `instruction_attributes`; check that the files belong together."
        )
    return Catalog(list(products.values()), goals)


def _product(item: Mapping[str, Any], about: Mapping[str, Any]) -> Product:
    """Return the product of a record."""
    features = item["small_description"] or []
    features = [features] if isinstance(features, str) else features
    found = price_tags(item["pricing"] or "")
    prices = [float(price.replace(",", "")) for price in found]
    options = {
        name.lower(): tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
        for name, values in (item["customization_options"] or {}).items()
        if values
    }
    return Product(
        asin=item["asin"],
        title=item["name"],
        description=item["full_description"] or "",
        features=tuple(features),
        price=sum(prices) / len(prices),
        price_tag=" to ".join(f"${price}" for price in prices),
        options=options,
        attributes=tuple(about.get("attributes", ())),
        query=item["query"].lower().strip(),
        path=item["product_category"],
    )


def _made_goals(product: Product, about: Mapping[str, Any]) -> list[Goal]:
    """Return a goal for every combination of options."""
    if not about.get("instruction") or not about.get("instruction_attributes"):
        return []
    limit, limit_text = _price_limit(product, about["instruction"])
    goals = []
    for values in itertools.product(*(product.options[name] for name in sorted(product.options))):
        pairs = zip(sorted(product.options), values, strict=True)
        chosen = ", and ".join(f"{name}: {value}" for name, value in pairs)
        text = about["instruction"] + (f" with {chosen}" if chosen else "") + limit_text
        attributes = tuple(about["instruction_attributes"])
        goals.append(Goal(product.asin, text, attributes, values, limit))
    return goals


def _human_goals(product: Product, instructions: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """Return a goal for every instruction that names an attribute."""
    goals = []
    for one in instructions:
        limit, limit_text = _price_limit(product, one["instruction"])
        options = one["instruction_options"]
        values = options.values() if isinstance(options, Mapping) else options
        text = one["instruction"].strip(".") + limit_text
        attributes = tuple(one["instruction_attributes"])
        if attributes:
            goals.append(Goal(product.asin, text, attributes, tuple(values), limit))
    return goals


def _price_limit(product: Product, instruction: str) -> tuple[float, str]:
    """Return a limit a little above the price, and how it is said.

    The larger of two of the next four tens, as in the original, drawn from what is asked for.
    """
    above = [limit for limit in _PRICE_LIMITS if limit > product.price][:4]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(random.Random(f"{product.asin} {instruction}").sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _indexed_text(product: Product) -> str:
    """Return what the search reads of a product: as in the original, no feature but the first."""
    options = ", and ".join(f"{name}: {', '.join(v)}" for name, v in product.options.items())
    return " ".join([product.title, product.description, *product.features[:1], options])
