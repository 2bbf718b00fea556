"""WebShop in words: search, look at products, choose options, buy.

A shop of pages and buttons as in Yao et al. 2022 (arXiv 2207.01206): its actions, its pages as the
authors' environment shows them in plain text, and its reward. The catalogue is made up
(``synthetic``) or read from files in the authors' format (``catalog``).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentic_trl.environments.base import ActionFormat, StepResult, TextEnv, require_running
from agentic_trl.environments.webshop.catalog import Catalog, Goal, Product, load_catalog
from agentic_trl.environments.webshop.pages import BUY, PAGE, Page, describe, links_of
from agentic_trl.environments.webshop.reward import purchase_reward
from agentic_trl.environments.webshop.synthetic import synthetic_catalog
from agentic_trl.task_splits import first_seed, first_tasks, split_of

RESULTS = 50
"""Most results of a search."""

_ACTION = re.compile(r"(search|click)\[(.+)\]", re.IGNORECASE | re.DOTALL)


class WebShop(TextEnv):
    """Buy what an instruction asks for.

    Actions are ``search[keywords]`` and ``click[value]``, in any case; a value is a button of the
    page, the number of a product, or a value of an option. As in the original, a search is carried
    out on any page, though only the first page offers it. ``click[buy now]`` ends the episode, with
    the share of what was asked for as the reward (``reward.purchase_reward``), 0 to 1; every other reward is
    0. With ``strict``, a purchase earns 1 if it is all that was asked for, else 0; RAGEN and verl-agent
    train with that (verl-agent with 10). Success is a share of 1, which ``info["share"]`` holds.

    Departures from the original: the page of an item shows which options are chosen; there are no
    reviews, ratings and pictures. After ``reset``, ``goal`` and ``page`` are for reading.
    """

    action_format = ActionFormat(syntax="search[keywords] or click[value]")
    task_columns = ("goal",)
    path_arguments: ClassVar = {"products_file": (), "attributes_file": (), "instructions_file": ()}
    reward_range = (0.0, 1.0)
    instructions = (
        "You are in an online shop. Buy the product that the instruction describes: search for it, "
        "open a product, choose the options that are asked for, and buy it. Each turn, take one of "
        "the admissible actions."
    )

    def __init__(
        self,
        *,
        products: int = 1000,
        catalog_seed: int = 0,
        products_file: str | None = None,
        attributes_file: str | None = None,
        instructions_file: str | None = None,
        strict: bool = False,
        show_actions: bool = True,
    ) -> None:
        """Open the shop.

        Args:
            products: Number of made-up products, or most that are read from ``products_file``, 1 or
                more.
            catalog_seed: Seed of the made-up catalogue.
            products_file: Path of a file in the format of WebShop's ``items_shuffle.json``; without
                it, the catalogue is made up.
            attributes_file: Path of the ``items_ins.json`` that belongs to it.
            instructions_file: Path of an ``items_human_ins.json``; without it, the goals are those of
                ``attributes_file`` with every combination of options.
            strict: Whether only a purchase of all that was asked for earns a reward.
            show_actions: Whether observations list the admissible actions.

        Raises:
            OSError: If a file cannot be read.
            ValueError: If an argument is out of range, a file is missing or malformed.
        """
        if products < 1:
            raise ValueError(f"Got products={products}, expected 1 or more.")
        if (products_file is None) != (attributes_file is None) or (
            products_file is None and instructions_file is not None
        ):
            raise ValueError(
                f"Got products_file={products_file!r} and attributes_file={attributes_file!r}, "
                f"instructions_file={instructions_file!r}; give the first two together, and the third "
                "only with them."
            )
        if products_file is not None and attributes_file is not None:
            self.catalog: Catalog = load_catalog(
                products_file, attributes_file, instructions_file, products
            )
        else:
            self.catalog = synthetic_catalog(products, catalog_seed)
        self.strict = strict
        self.show_actions = show_actions
        self.goal: Goal | None = None
        self.page = Page()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Enter the shop.

        Args:
            seed: Seed of the goal, if the task has none.
            options: ``goal``, position of the goal in the catalogue's list from 0; may be missing or
                ``None``.

        Returns:
            The first observation, and ``info`` with ``success``.

        Raises:
            ValueError: If the catalogue has no such goal.
        """
        super().reset(seed=seed)
        goals = self.catalog.goals
        number = (options or {}).get("goal")
        number = int(self.np_random.integers(len(goals))) if number is None else number
        if not 0 <= number < len(goals):
            raise ValueError(
                f"Got goal={number}, but the catalogue has {len(goals)} goals; give a number from 0 to "
                f"{len(goals) - 1}."
            )
        self.goal = goals[number]
        self.page = Page()
        return self._describe(self.goal), {"success": False}

    def step(self, action: str) -> StepResult:
        """Search or click.

        Args:
            action: ``search[keywords]`` or ``click[value]``.

        Returns:
            Observation, reward, terminated (bought), truncated (always False), and ``info`` with
            ``success``, ``invalid_action`` and, after a purchase, ``share``.

        Raises:
            RuntimeError: If no episode is running.
        """
        goal = require_running(self.goal, self)
        found = _ACTION.fullmatch(action.strip())
        name, value = (part.lower().strip() for part in found.groups()) if found else ("", "")
        links = links_of(self.page, self.catalog)
        if name == "search" and value:
            hits = self.catalog.search(value, RESULTS)
            self.page = Page("results", keywords=value, hits=hits)
        elif name == "click" and value == BUY and value in links:
            return self._buy(goal)
        elif name == "click" and value in links:
            self.page = links[value]
        else:
            text = f"invalid action: answer one of the admissible actions\n{self._describe(goal)}"
            return text, 0.0, False, False, {"success": False, "invalid_action": True}
        return self._describe(goal), 0.0, False, False, {"success": False, "invalid_action": False}

    def state_key(self) -> str | None:
        """Return the page and the chosen options, or ``None`` before the first ``reset``."""
        return self.page.state_key() if self.goal else None

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> Sequence[Mapping[str, Any]]:
        """Return ``count`` tasks with distinct goals; no product is asked for in both splits.

        A hash of the product's number sends a quarter of all products to evaluation. The papers' test
        goals are the first 500 of the original's files: rows ``{"goal": 0}`` to ``{"goal": 499}``.

        Returns:
            Rows with ``seed`` and ``goal``, the same at every call.

        Raises:
            OSError: If a file cannot be read.
            ValueError: If an argument is out of range, or the catalogue holds fewer goals.
        """
        first_seed(split)  # refuses other words
        goals = enumerate(cls(**kwargs).catalog.goals)
        numbers = [number for number, goal in goals if split_of(goal.asin) == split]
        short = "the catalogue holds only {} goals of it; ask for fewer tasks or more products"
        return [{"seed": n, "goal": n} for n in first_tasks(numbers, count, split, short)]

    def _describe(self, goal: Goal) -> str:
        """Return the observation."""
        return describe(self.page, goal, self.catalog, show_actions=self.show_actions)

    def _buy(self, goal: Goal) -> StepResult:
        """End the episode."""
        bought = self.catalog.products[self.page.asin]
        wanted = self.catalog.products[goal.asin]
        share = purchase_reward(goal, wanted, bought, dict(self.page.options))
        success = share == 1.0
        info = {"success": success, "invalid_action": False, "share": share}
        self.goal = None
        reward = float(success) if self.strict else share
        return f"Thank you for shopping with us! Your score: {share:.2f}", reward, True, False, info


class WebShopOracle:
    """The scripted policy that searches for the title of the product the goal was written for.

    It chooses the options that are asked for and buys, from whatever page it finds itself on.
    """

    def act(self, env: WebShop) -> str:
        """Return the next action.

        Returns:
            A search or a click.

        Raises:
            ValueError: If no episode is running, or the search does not find the product.
        """
        if env.goal is None:
            raise ValueError(
                "WebShopOracle got an environment without a running episode; call `reset` first."
            )
        page, wanted = env.page, env.catalog.products[env.goal.asin]
        if page.kind in {"search", "results"}:
            return self._find(page, wanted)
        if page.asin != wanted.asin or page.kind != "item":
            return "click[< prev]"
        chosen = dict(page.options)
        for name, values in wanted.options.items():
            asked = [value for value in values if value in env.goal.options]
            if asked and chosen.get(name) not in asked:
                return f"click[{asked[0]}]"
        return f"click[{BUY}]"

    def _find(self, page: Page, wanted: Product) -> str:
        """Return the next action on the way to a product, from a page without one.

        Raises:
            ValueError: If the search for its title does not find it.
        """
        if wanted.asin in page.hits:
            number = page.hits.index(wanted.asin) // PAGE + 1
            if number == page.number:
                return f"click[{wanted.asin.lower()}]"
            return "click[next >]" if number > page.number else "click[< prev]"
        if page.keywords == wanted.title.lower():
            raise ValueError(f"The search for {wanted.title!r} does not find {wanted.asin}.")
        return f"search[{wanted.title}]"
