"""The reward of a purchase: the share of the request that it meets.

Source: Yao et al. 2022, "WebShop", section 3 (arXiv 2207.01206), and ``get_reward`` of the authors'
code, whose matching rules are followed where the paper leaves them open:

    reward = type * (matched attributes + matched options + [price <= limit])
                  / (attributes + options + 1)

Departures: the nouns of a title, which the original finds with spaCy, are here all its words but stop
words and numbers; matched options are counted up to the options asked for, so that the reward stays
within 0 and 1; the list of colours is shorter.
"""

import itertools
import re
from collections.abc import Mapping
from difflib import SequenceMatcher

from agentic_trl.environments.webshop.catalog import Goal, Product
from agentic_trl.environments.webshop.search import STOP_WORDS

FUZZY = 85
"""Likeness in percent above which two texts count as the same."""

_COLOR_NAMES = (
    "beige black blue bronze brown burgundy charcoal copper coral cream cyan gold gray green grey indigo "
    "ivory khaki lavender lilac lime magenta maroon mint mustard navy olive orange peach pink plum purple "
    "red rose rust silver tan teal turquoise violet white yellow"
)
COLORS = _COLOR_NAMES.split()
"""An option that holds one of these counts as the first of them: "royal blue" is blue."""


def purchase_reward(
    goal: Goal, wanted: Product, bought: Product, options: Mapping[str, str]
) -> float:
    """Return the reward of a purchase, 0 to 1; 1 is all that was asked for.

    Args:
        goal: What was asked for.
        wanted: The product that the goal was written for.
        bought: The product that was bought.
        options: Chosen values by the name of the option.
    """
    parts = len(goal.attributes) + len(goal.options) + 1
    matched = sum(_has_attribute(bought, attribute) for attribute in goal.attributes)
    chosen = sum(_is_asked_for(goal, bought, *option) for option in options.items())
    matched += min(chosen, len(goal.options)) + (bought.price <= goal.price_limit)
    return type_match(wanted, bought) * matched / parts


def type_match(wanted: Product, bought: Product) -> float:
    """Return how far two products are of one kind: 0, 0.1, 0.5 or 1."""
    asked, got = _type_words(wanted.title), _type_words(bought.title)
    shared = len(asked & got) / len(asked) if asked else 0.2
    if shared < 0.1:
        return 0.1 if shared else 0.0
    paths = [{part.strip() for part in one.path.split("›")} for one in (wanted, bought)]
    alike = wanted.query == bought.query or len(paths[0] & paths[1]) >= 2 or shared > 0.2
    return 1.0 if alike else 0.5


def token_set_ratio(first: str, second: str) -> int:
    """Return the likeness of two texts as sets of words, 0 to 100.

    As in ``thefuzz`` 0.19, which the original uses; from 0.20 on it counts otherwise.
    """
    a, b = ({*re.findall(r"\w+", text.lower())} for text in (first, second))
    if not a or not b:
        return 0
    both = " ".join(sorted(a & b))
    texts = [both, *(f"{both} {' '.join(sorted(rest))}".strip() for rest in (a - b, b - a))]
    pairs = itertools.combinations(texts, 2)
    return max(round(100 * SequenceMatcher(None, x, y).ratio()) for x, y in pairs if x and y)


def _type_words(title: str) -> set[str]:
    """Return the words of a title that can name the kind of product."""
    return set(re.findall(r"[^\W\d_]+", title.lower())) - STOP_WORDS


def _has_attribute(product: Product, attribute: str) -> bool:
    """Return whether a product has an attribute, in its list or anywhere in its text."""
    listed = any(token_set_ratio(own, attribute) > FUZZY for own in product.attributes)
    return listed or attribute in product.text


def _is_asked_for(goal: Goal, product: Product, name: str, value: str) -> bool:
    """Return whether a chosen option is one of those asked for; a size must be exactly the same."""
    value = _color(value)
    asked = [_color(one) for one in goal.options]
    if name.lower() == "size":
        matched = value in asked
    else:
        matched = any(token_set_ratio(one, value) > FUZZY for one in asked)
    return matched or value in product.text


def _color(value: str) -> str:
    """Return the colour that an option names, or the option."""
    return next((color for color in COLORS if color in value), value)
