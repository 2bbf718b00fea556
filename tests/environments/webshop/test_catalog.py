"""WebShop's catalogue: files in the original's format, goals, prices and the search.

The files of these tests are made up; none of their products, texts or prices is of the real data.

Mutations seen red, each tried once:

- The second record of a number winning, numbers of any length taken, ``/`` kept in an option:
  ``test_products_of_files``.
- The lesser of two price limits: ``test_price_limits_are_the_larger_of_two_of_the_next_four_tens``.
- Goals not shuffled: ``test_order_of_goals_is_the_originals``.
- Instructions without an attribute taken: ``test_goals_of_people``.
- Every feature indexed: ``test_search_reads_no_feature_but_the_first``.
- No cache: ``test_a_catalogue_is_read_once``.
- ``b`` left out, the later text winning a tie: ``test_search_ranks_by_the_formula``; stop words kept:
  ``test_words_and_ties``.
- No check of the products, of the attributes, of people's instructions: ``test_records_of_other_types_are_refused``;
  ``RecursionError`` let through: ``test_files_that_are_no_json``.
- A made-up product that does not say one of its attributes:
  ``test_made_up_records_are_in_the_format_and_differ``.
"""

import json
import math
import random

import pytest

from agentic_trl.environments.webshop.catalog import NO_LIMIT, build_catalog, load_catalog
from agentic_trl.environments.webshop.environment import WebShop
from agentic_trl.environments.webshop.search import Bm25, words
from agentic_trl.environments.webshop.synthetic import synthetic_records

# The fields of the original's files, those that are not read included.
LAMP = {
    "name": "Made-up Desk Lamp",
    "product_information": {"Weight": "2 pounds"},
    "brand": "Made-up",
    "brand_url": "",
    "full_description": "A lamp that is not real.",
    "pricing": "$1,019.99 to $1,029.99",
    "list_price": "",
    "availability_status": "In Stock",
    "images": ["none.jpg"],
    "product_category": "Home › Lighting › Lamps",
    "average_rating": "",
    "small_description": ["dimmable", "usb port"],
    "total_reviews": "",
    "customization_options": {
        "Color": [
            {
                "is_selected": True,
                "value": " Black/Gold ",
                "image": "none.jpg",
                "asin": "B0FAKE0001",
            },
            {"is_selected": False, "value": "White", "image": None, "asin": "B0FAKE0002"},
        ],
        "Style": None,
    },
    "seller_name": "nobody",
    "asin": "B0FAKE0001",
    "category": "garden",
    "query": " Desk Lamps ",
}
BOOK = LAMP | {
    "asin": "B0FAKE0002",
    "name": "Made-up Notebook",
    "full_description": None,
    "pricing": "",
    "small_description": "ruled paper",
    "customization_options": "",
}
ITEMS = [
    LAMP,
    BOOK,
    LAMP | {"asin": "nan"},
    LAMP | {"asin": "B0FAKE00012345"},
    LAMP | {"name": "a second one of the same number"},
    LAMP | {"asin": "B0FAKE0003", "pricing": "$7.50"},
]
ABOUT = {
    "B0FAKE0001": {
        "attributes": ["dimmable", "usb port"],
        "instruction": "Find me a dimmable lamp",
        "instruction_attributes": ["dimmable"],
    },
    "B0FAKE0002": {"attributes": ["ruled paper"], "instruction": None},
}
HUMAN = {
    "B0FAKE0001": [
        {
            "asin": "B0FAKE0001",
            "instruction": "i need a lamp that i can dim.",
            "attributes": ["dimmable"],
            "options": ["color: white"],
            "instruction_attributes": ["dimmable"],
            "instruction_options": ["white"],
            "assignment_id": "none",
            "worker_id": "none",
        },
        {"instruction": "a lamp", "instruction_attributes": [], "instruction_options": []},
        {
            "instruction": "a lamp with usb",
            "instruction_attributes": ["usb port"],
            "instruction_options": {"color": "black | gold"},
        },
    ],
    "B0NOTSOLD0": [
        {"instruction": "x", "instruction_attributes": ["x"], "instruction_options": []}
    ],
}


@pytest.fixture
def files(tmp_path):
    paths = {}
    for name, content in (("products", ITEMS), ("attributes", ABOUT), ("instructions", HUMAN)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        paths[f"{name}_file"] = str(path)
    return paths


def test_products_of_files(files):
    env = WebShop(**files)
    lamp, book, other = env.catalog.products.values()
    assert [one.asin for one in (lamp, book, other)] == ["B0FAKE0001", "B0FAKE0002", "B0FAKE0003"]
    assert lamp.title == "Made-up Desk Lamp"
    assert lamp.options == {"color": ("black | gold", "white")}
    assert (lamp.price, lamp.price_tag) == (1024.99, "$1019.99 to $1029.99")
    assert (lamp.query, lamp.path) == ("desk lamps", "Home › Lighting › Lamps")
    assert lamp.attributes == ("dimmable", "usb port")
    assert lamp.text == "made-up desk lamp\ndimmable usb port\na lamp that is not real."
    assert (book.description, book.features, book.options) == ("", ("ruled paper",), {})
    assert (book.price, book.price_tag) == (100.0, "$100.0")
    assert (other.price, other.attributes) == (7.5, ())
    assert len(WebShop(**files | {"products": 1}).catalog.products) == 1


def test_goals_of_people(files):
    goals = {goal.instruction: goal for goal in WebShop(**files).catalog.goals}
    # No limit: the lamp costs more than every ten up to 990.
    assert set(goals) == {"i need a lamp that i can dim", "a lamp with usb"}
    assert goals["i need a lamp that i can dim"].options == ("white",)
    assert goals["a lamp with usb"].options == ("black | gold",)
    assert goals["a lamp with usb"].attributes == ("usb port",)
    assert goals["a lamp with usb"].price_limit == NO_LIMIT


def test_goals_of_every_combination(files):
    del files["instructions_file"]
    goals = WebShop(**files).catalog.goals
    assert {goal.instruction for goal in goals} == {
        "Find me a dimmable lamp with color: black | gold",
        "Find me a dimmable lamp with color: white",
    }
    assert {goal.options for goal in goals} == {("black | gold",), ("white",)}


def test_episode_on_files(files):
    env = WebShop(**files)
    number = [goal.options for goal in env.catalog.goals].index(("white",))
    env.reset(options={"goal": number})
    env.step("search[dimmable lamp]")
    env.step("click[b0fake0001]")
    env.step("click[white]")
    assert env.step("click[buy now]")[1] == 1.0


def test_order_of_goals_is_the_originals():
    items, about = synthetic_records(12, 0)
    catalog = build_catalog(items, about)
    again = build_catalog(items, about)
    assert catalog.goals == again.goals
    by_product = sorted(catalog.goals, key=lambda goal: list(catalog.products).index(goal.asin))
    random.Random(233).shuffle(by_product)
    assert [goal.asin for goal in by_product] == [goal.asin for goal in catalog.goals]


def test_price_limits_are_the_larger_of_two_of_the_next_four_tens():
    drawn = set()
    for index in range(200):
        item = LAMP | {"asin": f"B{index:09}", "pricing": "$20.00", "customization_options": {}}
        about = {item["asin"]: ABOUT["B0FAKE0001"]}
        (goal,) = build_catalog([item], about).goals
        drawn.add(goal.price_limit)
        assert goal.instruction == (
            f"Find me a dimmable lamp, and price lower than {goal.price_limit:.2f} dollars"
        )
    assert drawn == {40.0, 50.0, 60.0}  # of 30, 40, 50, 60; never the least
    for price, limit in (("$979.99", 990.0), ("$980.00", NO_LIMIT), ("$990.00", NO_LIMIT)):
        item = LAMP | {"pricing": price, "customization_options": {}}
        (goal,) = build_catalog([item], ABOUT).goals
        assert goal.price_limit == limit


def test_malformed_files_are_sentences(files, tmp_path):
    with pytest.raises(OSError, match="missing"):
        WebShop(**files | {"products_file": str(tmp_path / "missing.json")})
    with pytest.raises(ValueError, match="got dict, expected a list of products"):
        WebShop(**files | {"products_file": files["attributes_file"]})
    with pytest.raises(ValueError, match="got list, expected an object by asin"):
        WebShop(**files | {"attributes_file": files["products_file"]})
    with pytest.raises(ValueError, match=r"Product 1 lacks name, query; got the fields asin"):
        build_catalog(
            [LAMP, {"asin": "B", **{k: v for k, v in LAMP.items() if k not in {"name", "query"}}}],
            ABOUT,
        )
    with pytest.raises(ValueError, match=r"Got 2 products and no goal"):
        build_catalog([LAMP, BOOK], {})
    bad = tmp_path / "bad.json"
    bad.write_text("[")
    with pytest.raises(ValueError, match="Expecting value"):
        WebShop(**files | {"products_file": str(bad)})


def test_a_catalogue_is_read_once(files):
    load_catalog.cache_clear()
    first = WebShop(**files)
    assert WebShop(**files).catalog is first.catalog
    assert load_catalog.cache_info().misses == 1


def bm25(texts, query, k1=0.9, b=0.4):
    """Scores by the formula, text by text."""
    split = [text.split() for text in texts]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for text in split:
        score = 0.0
        for word in query.split():
            n, tf = sum(word in other for other in split), text.count(word)
            idf = math.log(1 + (len(split) - n + 0.5) / (n + 0.5))
            score += idf * tf / (tf + k1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


def test_search_ranks_by_the_formula():
    rng = random.Random(0)
    vocabulary = ["red", "blue", "mug", "cup", "tea", "pot"]
    for _ in range(30):
        texts = [" ".join(rng.choices(vocabulary, k=rng.randint(1, 9))) for _ in range(12)]
        query = " ".join(rng.sample(vocabulary, 2))
        scores = bm25(texts, query)
        expected = sorted(range(12), key=lambda i: (-round(scores[i], 9), i))
        found = Bm25(texts).top(query, 12)
        assert found == [i for i in expected if scores[i] > 0]
        assert Bm25(texts).top(query, 3) == found[:3]


def test_words_and_ties():
    assert words("The Mugs of GLASS, 3-pack bus") == ["mug", "glas", "3", "pack", "bus"]
    index = Bm25(["a mug", "mugs", "a cup"])
    assert index.top("mug", 9) == [0, 1]
    assert index.top("the", 9) == index.top("", 9) == index.top("mug", 0) == []
    assert Bm25([]).top("mug", 3) == []


def test_search_reads_no_feature_but_the_first():
    catalog = build_catalog([LAMP], ABOUT)
    assert catalog.search("dimmable", 5) == ("B0FAKE0001",)
    assert catalog.search("gold", 5) == ("B0FAKE0001",)  # a value of an option
    assert catalog.search("usb", 5) == ()


def test_made_up_records_are_in_the_format_and_differ():
    items, about = synthetic_records(50, 3)
    assert (items, about) == synthetic_records(50, 3)
    assert set(LAMP) >= set(items[0])
    assert len({item["asin"] for item in items}) == len(items) == len(about) == 50
    for item in items:
        told = about[item["asin"]]
        assert set(told["instruction_attributes"]) <= set(told["attributes"])
        text = " ".join(
            [item["name"], item["full_description"], *item["small_description"]]
        ).lower()
        assert all(attribute in text for attribute in told["attributes"])
        for options in item["customization_options"].values():
            assert 2 <= len({value["value"] for value in options}) == len(options) <= 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("asin", 7),
        ("asin", None),
        ("name", None),
        ("full_description", 3),
        ("small_description", 3),
        ("small_description", ["fine", None]),
        ("small_description", {"a": "b"}),
        ("pricing", 10.99),
        ("pricing", ["$10.99"]),
        ("customization_options", ["Color"]),
        ("customization_options", {"Color": ["White"]}),
        ("customization_options", {"Color": "White"}),
        ("customization_options", {"Color": [{"value": 3}]}),
        ("customization_options", {"Color": [{}]}),
        ("query", None),
        ("product_category", ["Home"]),
    ],
)
def test_products_of_other_types_are_refused(field, value):
    with pytest.raises(ValueError, match=rf"^Product 1: {field} is .*, expected .*items_shuffle"):
        build_catalog([LAMP, LAMP | {field: value}], ABOUT)


@pytest.mark.parametrize("item", [None, 3, "text", [LAMP]])
def test_a_product_is_an_object(item):
    with pytest.raises(ValueError, match=r"^Product 0 is .*, expected an object"):
        build_catalog([item], ABOUT)


GOAL = {"instruction": "a lamp", "instruction_attributes": ["usb port"], "instruction_options": []}


@pytest.mark.parametrize(
    ("about", "human"),
    [
        ("text", None),
        ({"attributes": "dimmable"}, None),
        ({"attributes": [3]}, None),
        ({"instruction": 3}, None),
        ({"instruction": "a lamp", "instruction_attributes": "dimmable"}, None),
        ({}, {"a": "b"}),
        ({}, ["text"]),
        ({}, [GOAL | {"instruction": None}]),
        ({}, [GOAL | {"instruction_attributes": None}]),
        ({}, [GOAL | {"instruction_options": "white"}]),
        ({}, [GOAL | {"instruction_options": {"color": 3}}]),
        ({}, [{"instruction": "a lamp"}]),
    ],
)
def test_records_of_other_types_are_refused(about, human):
    asin = LAMP["asin"]
    with pytest.raises(ValueError, match=rf"of {asin}.*(expected|lacks).*WebShop's items_"):
        build_catalog([LAMP], {asin: about}, human and {asin: human})


@pytest.mark.parametrize("text", ["{", "[" * 200_000, "", "\udcff"])
def test_files_that_are_no_json(tmp_path, text):
    path = tmp_path / "items.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"items\.json cannot be read as JSON in UTF-8"):
        load_catalog(str(path), str(path), None, None)
