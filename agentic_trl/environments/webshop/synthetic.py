"""A made-up catalogue for the web shop: records in the format of WebShop's files, drawn from a seed.

No product, brand or instruction is real. Products of a kind share most of their words and differ in
attributes, options and prices; attributes stand in the title, in the description or in the features,
of which the search reads the first alone, so that some are found on a product's pages only.
"""

import random
import string
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentic_trl.environments.webshop.catalog import Catalog, build_catalog


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of product: what its products may have."""

    query: str
    path: str
    nouns: tuple[str, ...]
    attributes: tuple[str, ...]
    options: dict[str, str]  # name: list of values
    prices: tuple[int, int]


_COLORS = ("black", "white", "red", "navy", "green", "grey", "pink", "yellow", "purple", "brown", "orange", "teal")  # fmt: skip
_SIZES = ("small", "medium", "large", "x-large", "xx-large")
_VALUES = {
    "color": (*_COLORS, "light blue", "dark green", "black | white", "rose gold"),
    "size": _SIZES,
    "shoe size": ("6", "7", "8", "9", "10", "11", "6.5", "7.5", "8.5", "9.5"),
    "flavor": ("vanilla", "chocolate", "strawberry", "lemon", "peanut butter", "mint", "original"),
    "scent": ("lavender", "rose", "citrus", "eucalyptus", "coconut", "unscented"),
    "pack": ("pack of 1", "pack of 2", "pack of 3", "pack of 6", "pack of 12"),
    "dimensions": ("16x16 inch", "18x18 inch", "20x20 inch", "24x36 inch", "5x7 feet"),
    "length": ("3 feet", "6 feet", "10 feet", "15 feet"),
}
_WEAR = ("machine wash", "long sleeve", "short sleeve", "slim fit", "quick drying", "moisture wicking")  # fmt: skip
_SHOE = ("non slip", "rubber sole", "arch support", "memory foam", "ankle strap", "lace closure")
_FOOD = ("gluten free", "sugar free", "low carb", "non gmo", "dairy free", "high protein", "keto friendly")  # fmt: skip
_BEAUTY = ("cruelty free", "paraben free", "fragrance free", "long lasting", "sulfate free", "tea tree")  # fmt: skip
_HOME = ("easy clean", "hand painted", "space saving", "easy assemble", "heavy duty", "solid wood")
_TECH = ("fast charging", "noise cancelling", "water resistant", "high speed", "plug play", "gold plated")  # fmt: skip
_CLOTHES = "Clothing, Shoes & Jewelry › {} › {}"
_KINDS = (
    _Kind("men's t-shirts", _CLOTHES.format("Men", "Shirts"), ("t-shirt", "tee shirt"), (*_WEAR, "crew neck", "classic fit", "cotton spandex"), {"color": "color", "size": "size"}, (8, 45)),
    _Kind("women's dresses", _CLOTHES.format("Women", "Dresses"), ("summer dress", "wrap dress"), (*_WEAR, "high waist", "elastic waist", "lace trim"), {"color": "color", "size": "size"}, (15, 90)),
    _Kind("women's sandals", _CLOTHES.format("Women", "Sandals"), ("sandals", "slide sandals"), (*_SHOE, "open toe", "high heel"), {"color": "color", "size": "shoe size"}, (12, 80)),
    _Kind("running shoes", _CLOTHES.format("Men", "Shoes"), ("running shoes", "trail sneakers"), (*_SHOE, "steel toe", "day comfort"), {"color": "color", "size": "shoe size"}, (25, 140)),
    _Kind("snack bars", "Grocery & Gourmet Food › Snack Foods › Bars", ("snack bars", "granola bars"), (*_FOOD, "nut free", "individually wrapped"), {"flavor name": "flavor", "size": "pack"}, (5, 40)),
    _Kind("herbal tea", "Grocery & Gourmet Food › Beverages › Tea", ("herbal tea bags", "loose leaf tea"), (*_FOOD, "caffeine free", "certified organic"), {"flavor name": "flavor", "size": "pack"}, (4, 35)),
    _Kind("shampoo", "Beauty & Personal Care › Hair Care › Shampoo", ("shampoo", "hair shampoo set"), (*_BEAUTY, "dry hair", "hair growth", "coconut oil"), {"scent": "scent", "size": "pack"}, (6, 50)),
    _Kind("body lotion", "Beauty & Personal Care › Skin Care › Body", ("body lotion", "hand cream"), (*_BEAUTY, "sensitive skin", "shea butter", "dry skin"), {"scent": "scent", "size": "pack"}, (5, 60)),
    _Kind("pillow covers", "Home & Kitchen › Bedding › Pillow Covers", ("throw pillow cover", "cushion case"), (*_HOME, "machine washable", "double sided", "super soft"), {"color": "color", "size": "dimensions"}, (7, 45)),
    _Kind("area rugs", "Home & Kitchen › Floor › Rugs", ("area rug", "runner carpet"), (*_HOME, "non shedding", "stain resistant"), {"color": "color", "size": "dimensions"}, (20, 190)),
    _Kind("storage shelves", "Home & Kitchen › Furniture › Shelves", ("storage shelf", "bookcase rack"), (*_HOME, "wall mounted", "coated steel"), {"color": "color"}, (30, 260)),
    _Kind("charging cables", "Electronics › Accessories › Cables", ("charging cable", "usb cord"), (*_TECH, "tangle free", "aluminum alloy"), {"color": "color", "length": "length"}, (4, 30)),
    _Kind("headphones", "Electronics › Audio › Headphones", ("wireless headphones", "bluetooth earbuds"), (*_TECH, "stereo sound", "hands free", "carrying case"), {"color": "color"}, (15, 220)),
    _Kind("phone cases", "Electronics › Accessories › Phone Cases", ("phone case", "protective phone cover"), (*_TECH, "shock proof", "wireless charging", "tempered glass"), {"color": "color", "item package quantity": "pack"}, (6, 40)),
)  # fmt: skip
_ADJECTIVES = ("premium", "classic", "modern", "everyday", "essential", "deluxe", "original", "compact", "natural", "vintage")  # fmt: skip
_SYLLABLES = ("ba", "do", "fe", "gri", "ho", "ka", "lu", "mo", "ne", "pra", "ri", "sol", "ta", "ve", "wi", "zu")  # fmt: skip
_REMARKS = (
    "a gift for friends and family",
    "made with care in small batches",
    "tested by our team before it ships",
    "write to us if anything is wrong with it",
)


@lru_cache(maxsize=4)
def synthetic_catalog(products: int, seed: int) -> Catalog:
    """Return a made-up catalogue; a second call with the same arguments makes none.

    Args:
        products: Number of products, 1 or more.
        seed: Decides everything.

    Returns:
        The catalogue, with a goal for every product and every combination of its options.
    """
    items, about = synthetic_records(products, seed)
    return build_catalog(items, about)


def synthetic_records(
    products: int, seed: int
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return made-up records in the format of WebShop's files of products and of attributes.

    Args:
        products: Number of products, 1 or more.
        seed: Decides everything.

    Returns:
        Products, and attributes by number of the product.
    """
    rng = random.Random(seed)
    items: list[dict[str, Any]] = []
    about: dict[str, dict[str, Any]] = {}
    while len(items) < products:
        asin = "B0" + "".join(rng.choices(string.ascii_uppercase + string.digits, k=8))
        if asin not in about:
            item, about[asin] = _records(rng, asin, rng.choice(_KINDS))
            items.append(item)
    return items, about


def _records(rng: random.Random, asin: str, kind: _Kind) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the record of a product and that of its attributes."""
    attributes = rng.sample(kind.attributes, 4)
    shown, told, first, hidden = attributes
    noun = rng.choice(kind.nouns)
    brand = "".join(rng.choices(_SYLLABLES, k=3))
    name = f"{brand} {rng.choice(_ADJECTIVES)} {noun} {shown}".title()
    remark, other = rng.sample(_REMARKS, 2)
    low, high = kind.prices
    values = {
        name: sorted(rng.sample(_VALUES[listed], rng.randint(2, 4)), key=_VALUES[listed].index)
        for name, listed in kind.options.items()
    }
    item = {
        "asin": asin,
        "name": name,
        "full_description": f"This {noun} is {told}. It is {remark}.".capitalize(),
        "small_description": [f"{first} {noun}", f"also {hidden}", other],
        "pricing": f"${rng.randint(100 * low, 100 * high) / 100:.2f}",
        "customization_options": {
            name: [{"value": value} for value in chosen] for name, chosen in values.items()
        },
        "query": kind.query,
        "product_category": kind.path,
    }
    asked = rng.sample(attributes, rng.randint(1, 3))
    wish = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])} and {asked[-1]}"
    instruction = f"i am looking for {kind.query} that are {wish}"
    return item, {
        "attributes": attributes,
        "instruction": instruction,
        "instruction_attributes": asked,
    }
