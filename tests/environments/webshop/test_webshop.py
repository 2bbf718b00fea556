"""WebShop: pages, actions, the reward of a purchase, tasks and errors.

The shop of these tests is made up: a few products written by hand in the format of WebShop's files.

Mutations seen red, each tried once:

- A search from the first page only, letters of a value not lowered, "next >" on a last page:
  ``test_results_come_ten_a_page``, ``test_pages_in_full``.
- Options kept when going back to the results, one option forgotten for another, the line of chosen
  options left out: ``test_pages_in_full``.
- The graded reward under ``strict``, an episode that goes on after the purchase:
  ``test_purchases_by_hand``.
- More options counted than asked for, ``<`` for the limit, a size matched by likeness, a colour not
  looked for, nothing looked for in the text: ``test_reward_by_hand``.
- 0 for 0.1, one shared category enough, no threshold of 0.2: ``test_kind_by_hand``.
- An oracle that never pages back: ``test_oracle_goes_through_the_pages_of_results``; one that takes any
  chosen option for all: ``test_oracle_finds_its_way_from_any_page``.
- The split by the goal's position: ``test_splits_share_no_product``.
"""

import gymnasium
import pytest
from gymnasium.utils.passive_env_checker import env_reset_passive_checker, env_step_passive_checker

from agentic_trl.environments.registry import env_spec, make_env
from agentic_trl.environments.webshop import environment
from agentic_trl.environments.webshop.catalog import Catalog, Goal, Product, build_catalog
from agentic_trl.environments.webshop.environment import WebShop, WebShopOracle
from agentic_trl.environments.webshop.reward import purchase_reward, token_set_ratio, type_match
from agentic_trl.environments.webshop.synthetic import synthetic_catalog


def record(asin, name, **fields):
    return {
        "asin": asin,
        "name": name,
        "full_description": "",
        "small_description": [],
        "pricing": "$10.00",
        "customization_options": {},
        "query": "mugs",
        "product_category": "Home › Kitchen › Mugs",
        **fields,
    }


def values(*names):
    return [{"value": name} for name in names]


MUG = record(
    "B000000001",
    "Tolu Blue Ceramic Mug",
    full_description="A mug for tea.",
    small_description=["dishwasher safe", "Lead Free glaze"],
    pricing="$12.50",
    customization_options={"Color": values("Blue", "Red/White"), "Size": values("small", "large")},
)
CUPS = [record(f"B1000000{index:02}", f"Cup Number {index}") for index in range(1, 24)]
ABOUT = {
    "B000000001": {
        "attributes": ["dishwasher safe", "easy grip"],
        "instruction": "i am looking for a ceramic mug",
        "instruction_attributes": ["dishwasher safe", "lead free"],
    }
}
TEXT = "i am looking for a ceramic mug with color: blue, and size: small, and price lower than 50.00 dollars"
GOAL = Goal("B000000001", TEXT, ("dishwasher safe", "lead free"), ("blue", "small"), 50.0)


@pytest.fixture
def shop(monkeypatch):
    """A shop with one mug and 23 cups, and one goal."""
    catalog = build_catalog([MUG, *CUPS], ABOUT)
    monkeypatch.setattr(catalog, "goals", [GOAL])
    monkeypatch.setattr(environment, "synthetic_catalog", lambda products, seed: catalog)
    env = WebShop(show_actions=False)
    env.reset(options={"goal": 0})
    return env


HEAD = f"Instruction: [SEP] {TEXT} [SEP] Back to Search"


def test_pages_in_full(shop):
    """The parts and their order are those of the original's plain text, but for ratings and reviews."""
    first, info = shop.reset(options={"goal": 0})
    assert first == f"WebShop [SEP] Instruction: [SEP] {TEXT} [SEP] Search"
    assert info == {"success": False}
    observation, reward, terminated, truncated, info = shop.step("search[ceramic mug]")
    assert observation == (
        f"{HEAD} [SEP] Page 1 (Total results: 1) [SEP] B000000001 [SEP] Tolu Blue Ceramic Mug [SEP] $12.5"
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "invalid_action": False}
    item = (
        f"{HEAD} [SEP] < Prev [SEP] color [SEP] blue [SEP] red | white [SEP] size [SEP] small [SEP] large "
        "[SEP] Tolu Blue Ceramic Mug [SEP] Price: $12.5 [SEP] Description [SEP] Features [SEP] Buy Now"
    )
    assert shop.step("click[b000000001]")[0] == item
    assert shop.step("click[description]")[0] == f"{HEAD} [SEP] < Prev [SEP] A mug for tea."
    assert shop.step("click[< prev]")[0] == item
    features = f"{HEAD} [SEP] < Prev [SEP] dishwasher safe [SEP] Lead Free glaze"
    assert shop.step("click[features]")[0] == features
    shop.step("click[< prev]")
    assert shop.step("click[large]")[0] == f"{item}\nchosen: size: large"
    assert shop.step("click[red | white]")[0] == f"{item}\nchosen: color: red | white, size: large"
    assert shop.step("click[small]")[0] == f"{item}\nchosen: color: red | white, size: small"
    # The options are kept on the sub-pages and dropped with the item.
    assert shop.step("click[features]")[0] == (
        f"{features}\nchosen: color: red | white, size: small"
    )
    shop.step("click[< prev]")
    shop.step("click[< prev]")
    assert shop.step("click[b000000001]")[0] == item
    assert shop.step("click[back to search]")[0] == first


def test_results_come_ten_a_page(shop):
    found = [shop.step("search[cup]")[0]]
    found += [shop.step("click[Next >]")[0] for _ in range(2)]
    pages = [f"Page {number} (Total results: 23)" for number in (1, 2, 3)]
    buttons = ["[SEP] Next >", "[SEP] < Prev [SEP] Next >", "[SEP] < Prev"]
    for text, page, button, first, count in zip(
        found, pages, buttons, (1, 11, 21), (10, 10, 3), strict=True
    ):
        shown = [
            f"B1000000{index:02} [SEP] Cup Number {index} [SEP] $10.0"
            for index in range(first, first + count)
        ]
        assert text == f"{HEAD} [SEP] {page} {button} [SEP] " + " [SEP] ".join(shown)
    assert shop.step("click[next >]")[4]["invalid_action"]
    assert shop.step("click[< prev]")[0] == found[1]
    shop.step("click[b100000015]")
    assert shop.step("click[< prev]")[0] == found[1]
    assert "Total results: 0" in shop.step("search[nothing]")[0]


def test_admissible_actions_are_listed_and_work(shop):
    shop.show_actions = True
    assert shop.reset(options={"goal": 0})[0].endswith("\nadmissible actions: search[<keywords>]")
    assert shop.step("search[mug]")[0].endswith(
        "\nadmissible actions: click[back to search], click[b000000001]"
    )
    assert shop.step("click[b000000001]")[0].endswith(
        "\nadmissible actions: click[back to search], click[< prev], click[description], "
        "click[features], click[buy now], click[blue], click[red | white], click[small], click[large]"
    )
    shop.step("click[small]")
    assert shop.step("click[features]")[0].endswith(
        "\nchosen: size: small\nadmissible actions: click[back to search], click[< prev]"
    )


def test_search_works_on_any_page_and_letters_in_any_case(shop):
    shop.step("SEARCH[Mug]")
    shop.step(" Click[ B000000001 ] ")
    assert shop.page.asin == "B000000001"
    shop.step("click[LARGE]")
    shop.step("search[cup]")
    assert (shop.page.kind, shop.page.options, shop.page.keywords) == ("results", (), "cup")


@pytest.mark.parametrize(
    "action",
    [
        "",
        "search",
        "search[]",
        "search[ ]",
        "click[]",
        "click[blue]",
        "click[buy now]",
        "click[< prev]",
        "click[b000000001]",
        "buy[mug]",
        "mug",
        "search[a] click[b]x",
        "[mug]",
        "<|im_end|>",
    ],
)
def test_invalid_action_changes_nothing(shop, action):
    first, key = shop.reset(options={"goal": 0})[0], shop.state_key()
    observation, reward, terminated, truncated, info = shop.step(action)
    assert observation == f"invalid action: answer one of the admissible actions\n{first}"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "invalid_action": True}
    assert shop.state_key() == key


def buy(env, *clicks):
    env.reset(options={"goal": 0})
    for action in ("search[mug]", "click[b000000001]", *clicks):
        assert env.step(action)[1:3] == (0.0, False)
    return env.step("click[buy now]")


def test_purchases_by_hand(shop):
    # Of 5: two attributes, two options, the price.
    observation, reward, terminated, truncated, info = buy(shop, "click[blue]", "click[small]")
    assert observation == "Thank you for shopping with us! Your score: 1.00"
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {"success": True, "invalid_action": False, "share": 1.0}
    assert shop.state_key() is None
    assert buy(shop, "click[blue]", "click[large]")[1] == pytest.approx(4 / 5)
    assert buy(shop)[1] == pytest.approx(3 / 5)
    shop.strict = True
    assert buy(shop, "click[blue]", "click[small]")[1] == 1.0
    _, reward, terminated, _, info = buy(shop, "click[large]")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert info["share"] == pytest.approx(3 / 5)


def product(**fields):
    plain = {"asin": "A", "title": "Blue Mug", "description": "", "features": (), "price": 10.0}
    plain |= {"price_tag": "$10", "options": {}, "attributes": (), "query": "mugs"}
    return Product(**{**plain, "path": "Home › Kitchen › Mugs", **fields})


def goal(attributes=("soft",), options=(), price_limit=20.0):
    return Goal("A", "", tuple(attributes), tuple(options), price_limit)


REWARDS = {
    "attribute and price": (goal(), product(attributes=("soft",)), {}, 1.0),
    "no attribute": (goal(), product(), {}, 1 / 2),
    "too dear": (goal(), product(attributes=("soft",), price=20.01), {}, 1 / 2),
    "at the limit": (goal(), product(attributes=("soft",), price=20.0), {}, 1.0),
    "attribute in the title": (goal(["blue"]), product(), {}, 1.0),
    "attribute in a feature": (goal(), product(features=("So Soft",)), {}, 1.0),
    "attribute in the description": (goal(), product(description="SOFT!"), {}, 1.0),
    "one of two attributes": (goal(["soft", "hard"]), product(attributes=("hard",)), {}, 2 / 3),
    "alike attribute": (goal(["essential oils"]), product(attributes=("essential oil",)), {}, 1.0),
    "option": (goal(["blue"], ["large"]), product(), {"size": "large"}, 1.0),
    "no option": (goal(["blue"], ["large"]), product(), {}, 2 / 3),
    "other option": (goal(["blue"], ["large"]), product(), {"size": "small"}, 2 / 3),
    "size not exact": (goal(["blue"], ["large"]), product(), {"size": "x large"}, 2 / 3),
    "other than size may be alike": (goal(["blue"], ["large"]), product(), {"cut": "x large"}, 1.0),
    "colour by its name": (goal(["mug"], ["navy blue"]), product(title="Mug"), {"color": "royal blue"}, 1.0),
    "colour inside a word": (goal(["mug"], ["navy blue"]), product(title="Mug"), {"color": "skyblue"}, 1.0),
    "option in the text": (goal(["mug"], ["red"]), product(), {"color": "blue"}, 1.0),
    "more options than asked for": (goal(["mug"], ["red"]), product(), {"color": "red", "c2": "blue"}, 1.0),
    "options not asked for": (goal(["mug"]), product(), {"color": "blue"}, 1.0),
    "another kind": (goal(["soft"]), product(title="Sofa", attributes=("soft",)), {}, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("case", REWARDS)
def test_reward_by_hand(case):
    asked, bought, options, share = REWARDS[case]
    wanted = product(title="Mug") if "Mug" in bought.title else product()
    assert purchase_reward(asked, wanted, bought, options) == pytest.approx(share)


def test_kind_by_hand():
    """The thresholds of the paper: 0 without a shared word, 0.1 below 0.1, 0.5 up to 0.2 unless alike."""
    wanted = product(
        title="one two three four five six seven eight nine ten eleven", query="a", path="x › y"
    )
    other = {"query": "b", "path": "x › z"}
    assert type_match(wanted, product(title="zero")) == 0.0
    assert type_match(wanted, product(title="one", query="a", path="x › y")) == 0.1  # 1 of 11
    assert type_match(wanted, product(title="one two", **other)) == 0.5  # 2 of 11
    assert type_match(wanted, product(title="one two", query="a", path="z")) == 1.0
    assert type_match(wanted, product(title="one two", query="b", path="y › x")) == 1.0
    assert type_match(wanted, product(title="one two", query="b", path="x › x")) == 0.5
    assert type_match(wanted, product(title="one two three", **other)) == 1.0  # 3 of 11
    # Numbers and stop words name no kind.
    assert type_match(product(title="the mug 12"), product(title="mug")) == 1.0
    assert type_match(product(title="12"), product(title="mug", **other)) == 0.5


def test_token_set_ratio_by_hand():
    assert token_set_ratio("Tea Tree", "tree, tea") == 100
    assert token_set_ratio("red", "red wine") == 100
    # "essential" 9, "essential oil" 13, "essential oils" 14 letters: 2 * 13 / 27.
    assert token_set_ratio("essential oils", "essential oil") == 96
    assert token_set_ratio("abc", "xyz") == 0
    assert token_set_ratio("", "xyz") == 0
    assert token_set_ratio("abcd", "abxy") == 50


def test_step_needs_a_running_episode(shop):
    buy(shop)
    with pytest.raises(RuntimeError, match=r"no episode was running.*call `reset` first"):
        shop.step("search[mug]")
    with pytest.raises(ValueError, match="without a running episode"):
        WebShopOracle().act(shop)


def test_oracle_finds_its_way_from_any_page(shop):
    oracle = WebShopOracle()
    ways = (
        [],
        ["search[cup]", "click[next >]", "click[b100000015]", "click[features]"],
        ["search[mug]", "click[b000000001]", "click[red | white]", "click[description]"],
    )
    for way in ways:
        shop.reset(options={"goal": 0})
        for action in way:
            assert not shop.step(action)[4]["invalid_action"]
        terminated, info = False, {}
        for _ in range(9):
            _, reward, terminated, _, info = shop.step(oracle.act(shop))
            assert not info["invalid_action"]
            if terminated:
                break
        assert (reward, info["success"]) == (1.0, True)


def test_oracle_goes_through_the_pages_of_results(shop, monkeypatch):
    monkeypatch.setattr(shop.catalog, "goals", [Goal("B100000023", "", ("cup",), (), 99.0)])
    shop.reset(options={"goal": 0})
    shop.step("search[cup]")
    actions = [WebShopOracle().act(shop)]
    while not shop.step(actions[-1])[2]:
        actions.append(WebShopOracle().act(shop))
    assert actions == ["click[next >]"] * 2 + ["click[b100000023]", "click[buy now]"]
    monkeypatch.setattr(shop.catalog, "goals", [Goal("B100000001", "", ("cup",), (), 99.0)])
    shop.reset(options={"goal": 0})
    for action in ("search[cup]", "click[next >]"):
        shop.step(action)
    assert WebShopOracle().act(shop) == "click[< prev]"
    shop.reset(options={"goal": 0})
    monkeypatch.setattr(shop.catalog, "search", lambda keywords, count: ())
    shop.step(WebShopOracle().act(shop))
    with pytest.raises(ValueError, match="does not find B100000001"):
        WebShopOracle().act(shop)


@pytest.mark.parametrize("seed", [0, 5])
def test_every_made_up_goal_can_be_met(seed):
    env, oracle = WebShop(products=40, catalog_seed=seed), WebShopOracle()
    assert len({goal.asin for goal in env.catalog.goals}) == 40
    for number in range(len(env.catalog.goals)):
        env.reset(options={"goal": number})
        for _ in range(env_spec("WebShop-v1").max_turns):
            _, reward, terminated, _, info = env.step(oracle.act(env))
            if terminated:
                break
        assert (reward, info["success"]) == (1.0, True)


def test_first_result_without_options_is_rarely_enough():
    env = WebShop(products=300)
    shares = []
    for seed in range(60):
        env.reset(seed=seed)
        wish = env.goal.instruction.split(" with ")[0].removeprefix("i am looking for ")
        env.step(f"search[{wish}]")
        env.step(f"click[{env.page.window[0].lower()}]")
        shares.append(env.step("click[buy now]")[4]["share"])
    assert sum(share == 1.0 for share in shares) < 12
    assert 0.3 < sum(shares) / 60 < 0.9
    assert len(set(shares)) > 5


def test_seed_decides_the_goal_and_the_goal_wins():
    env, other = WebShop(products=60), WebShop(products=60)
    assert env.catalog is other.catalog is synthetic_catalog(60, 0)
    for seed in (0, 7, 2**40):
        assert env.reset(seed=seed) == other.reset(
            seed=seed, options={"goal": None, "noise_seed": 3}
        )
    env.reset(seed=7, options={"goal": 3})
    assert env.goal is env.catalog.goals[3]
    env.reset(seed=3)
    goals = [env.reset()[0] for _ in range(5)]
    assert len(set(goals)) > 2
    env.reset(seed=3)
    assert [env.reset()[0] for _ in range(5)] == goals
    assert synthetic_catalog(60, 1).goals != env.catalog.goals


def test_splits_share_no_product():
    asked = {}
    for split in ("train", "eval"):
        tasks = WebShop.make_tasks(300, split=split, products=200)
        assert tasks == WebShop.make_tasks(300, split=split, products=200, strict=True)
        assert len({task["goal"] for task in tasks}) == 300
        goals = synthetic_catalog(200, 0).goals
        asked[split] = {goals[task["goal"]].asin for task in tasks}
        assert WebShop.make_tasks(3, split=split, products=200) == tasks[:3]
    assert not asked["train"] & asked["eval"]
    assert 0.15 < len(asked["eval"]) / 200 < 0.35


def test_make_tasks_says_why_it_cannot():
    with pytest.raises(
        ValueError, match=r"count=9999 .*'eval'.* holds only \d+ goals.* more products"
    ):
        WebShop.make_tasks(9999, split="eval", products=20)
    with pytest.raises(ValueError, match="split: got 'test', expected 'train' or 'eval'"):
        WebShop.make_tasks(5, split="test", products=20)
    assert WebShop.make_tasks(0, split="train", products=20) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"products": 0}, "Got products=0, expected 1 or more"),
        ({"products_file": "a.json"}, "give the first two together"),
        ({"attributes_file": "a.json"}, "give the first two together"),
        ({"instructions_file": "a.json"}, "the third only with them"),
    ],
)
def test_constructor_refuses(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        WebShop(**arguments)


@pytest.mark.parametrize("number", [-1, 1])
def test_unknown_goal_is_refused(shop, number):
    with pytest.raises(ValueError, match=rf"Got goal={number}, but the catalogue has 1 goals"):
        shop.reset(options={"goal": number})


def test_gymnasium_accepts_it():
    env = WebShop(products=20)
    env_reset_passive_checker(env, seed=0)
    results = [env_step_passive_checker(env, "jump")]
    while not results[-1][2]:
        results.append(env_step_passive_checker(env, WebShopOracle().act(env)))
    for result in results:
        assert [type(part) for part in result] == [str, float, bool, bool, dict]
    limited = gymnasium.wrappers.TimeLimit(env, max_episode_steps=2)
    limited.reset(seed=0)
    assert [limited.step("jump")[3] for _ in range(2)] == [False, True]


def test_registered():
    spec = env_spec("WebShop-v1")
    assert (spec.load(), spec.max_turns) == (WebShop, 15)
    env = make_env("WebShop-v1", products=30)
    assert isinstance(env.catalog, Catalog)
    assert len(env.catalog.products) == 30
    assert env.action_format.describe().endswith(
        "<action>search[keywords] or click[value]</action>."
    )
