"""Small synthetic houses for ALFWorld's engine, to try and to test without the benchmark's data.

The rules, the words and the goals are ALFWorld's own, from its package; only the houses are made here:
a kitchen with a desk lamp, 9 to 17 receptacles and 8 to 14 objects. They are easier than the benchmark.
"""

import json
import random
from pathlib import Path
from typing import Any

from agentic_trl.environments.adapters.alfworld import LAYOUT
from agentic_trl.environments.adapters.common import need

_ONE_EACH = ("Fridge", "Microwave", "SinkBasin", "DiningTable", "SideTable")
_SEVERAL = ("CounterTop", "Cabinet", "Drawer", "Shelf")
_PLACES = ("CounterTop", "Cabinet", "Drawer", "Shelf", "DiningTable")
_LAMP = "DeskLamp"
_THINGS = ("Apple", "Bowl", "Bread", "Cup", "Egg", "Mug", "Plate", "Potato", "Tomato", "Spoon", "Book")  # fmt: skip
_START = "loc_bar_0_bar_0_bar_0_bar_0"
_CHANGES = {
    "pick_and_place_simple": None,
    "look_at_obj_in_light": None,
    "pick_clean_then_place_in_recep": "Cleanable",
    "pick_heat_then_place_in_recep": "Heatable",
    "pick_cool_then_place_in_recep": "Coolable",
    "pick_two_obj_and_place": None,
}
_PREDICATES = {
    "Cleanable": "cleanable",
    "Heatable": "heatable",
    "Coolable": "coolable",
    "Toggleable": "toggleable",
}


def write_houses(folder: str | Path, *, train: int, valid: int, seed: int = 0) -> None:
    """Write games in the layout of ALFWorld's data; give the folder as ``data`` or ``$ALFWORLD_DATA``.

    Args:
        folder: Folder to write to.
        train: Games in ``train``.
        valid: Games in ``valid_seen``, and as many others in ``valid_unseen``.
        seed: Seed of the houses.

    Raises:
        ImportError: If the package ``alfworld`` is not installed.
    """
    rng = random.Random(seed)
    for split, count in (("train", train), ("valid_seen", valid), ("valid_unseen", valid)):
        for index in range(count):
            kind = list(_CHANGES)[index % len(_CHANGES)]
            path = (
                Path(folder) / LAYOUT / split / f"{kind}-house-{index}" / "trial_0" / "game.tw-pddl"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(make_house(kind, rng)), encoding="utf-8", newline="\n")


def make_house(kind: str, rng: random.Random) -> dict[str, Any]:
    """Return a game.

    Args:
        kind: Type of the task, one of ALFWorld's six.
        rng: Draws the house.

    Returns:
        What a file ``game.tw-pddl`` holds.

    Raises:
        ImportError: If the package ``alfworld`` is not installed.
    """
    info = need("alfworld.info", "alfworld")
    goal = need("alfworld.gen.goal_library", "alfworld").gdict[kind]
    house = _House(rng, need("alfworld.gen.constants", "alfworld"))
    target, place = house.draw_goal(_CHANGES[kind])
    house.add_object(_LAMP, "SideTable")
    for name in [target, target, *rng.choices(_THINGS, k=rng.randint(5, 11))]:
        # Nothing lies where the task wants it.
        house.add_object(name, rng.choice([one for one in house.places(name) if one != place]))
    names = {"obj": target, "recep": place, "toggle": _LAMP, "mrecep": ""}
    task = rng.choice(goal["templates"]).format(
        **{key: name.lower() for key, name in names.items()}
    )
    problem = [
        *("(define (problem plan_house)", "(:domain alfred)"),
        *("(:objects", *house.objects(), ")"),
        *("(:init", *house.facts, "(= (total-cost) 0)", ")"),
        goal["pddl"].format(**names).replace("#", "-"),
    ]
    return {
        "pddl_domain": Path(info.ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": Path(info.ALFRED_TWL2_PATH)
        .read_text(encoding="utf-8")
        .replace("UNKNOWN GOAL", task),
        "pddl_problem": "\n".join(problem),
        "solvable": True,
        "walkthrough": None,
    }


class _House:
    """Receptacles, objects and facts of a problem."""

    def __init__(self, rng: random.Random, constants: Any) -> None:
        self._rng = rng
        self._constants = constants
        self._ids = {"agent1": "agent", _START: "location"}
        self._receptacles: dict[str, list[tuple[str, str]]] = {}
        self.facts = [f"(atLocation agent1 {_START})"]
        for name in [*_ONE_EACH, *(one for one in _SEVERAL for _ in range(rng.randint(1, 3)))]:
            self._add_receptacle(name)

    def draw_goal(self, change: str | None) -> tuple[str, str]:
        """Return a kind of object that can be changed so, and where it is to go."""
        able = self._constants.VAL_ACTION_OBJECTS
        target = self._rng.choice([one for one in _THINGS if change is None or one in able[change]])
        return target, self._rng.choice(self.places(target))

    def places(self, name: str) -> list[str]:
        """Return the kinds of receptacles in which an object can lie."""
        holds = self._constants.VAL_RECEPTACLE_OBJECTS
        return [place for place in _PLACES if name in holds[place]]

    def objects(self) -> list[str]:
        """Return the declarations of all names."""
        return [f"{name} - {kind}" for name, kind in self._ids.items()]

    def add_object(self, name: str, place: str) -> None:
        """Put an object into a receptacle of a kind."""
        receptacle, location = self._rng.choice(self._receptacles[place])
        one = self._name(name, "object", "")
        self._ids[f"{name}Type"] = "otype"
        self.facts += [f"(objectType {one} {name}Type)", f"(inReceptacle {one} {receptacle})"]
        self.facts.append(f"(objectAtLocation {one} {location})")
        if name != _LAMP:
            self.facts.append(f"(pickupable {one})")
        for able, predicate in _PREDICATES.items():
            if name in self._constants.VAL_ACTION_OBJECTS[able]:
                self.facts.append(f"({predicate} {one})")
        for kind in self._receptacles:
            possible = f"(canContain {kind}Type {name}Type)"
            if name in self._constants.VAL_RECEPTACLE_OBJECTS[kind] and possible not in self.facts:
                self.facts.append(possible)

    def _add_receptacle(self, kind: str) -> None:
        # ALFRED's basin of a sink is a part of the sink, and ALFWorld names it after both.
        base, part = ("Sink", "_bar_SinkBasin") if kind == "SinkBasin" else (kind, "")
        one = self._name(base, "receptacle", part)
        location = f"loc_bar_{len(self._ids)}_bar_1_bar_1_bar_30"
        self._ids[location] = "location"
        self._ids[f"{kind}Type"] = "rtype"
        self._receptacles.setdefault(kind, []).append((one, location))
        self.facts += [f"(receptacleType {one} {kind}Type)"]
        self.facts.append(f"(receptacleAtLocation {one} {location})")
        if kind in self._constants.OPENABLE_CLASS_SET:
            self.facts.append(f"(openable {one})")

    def _name(self, base: str, kind: str, part: str) -> str:
        """Return a new name in the form of ALFRED's, which holds a position."""
        number = len(self._ids)
        name = f"{base}_bar__plus_{number:02d}_dot_00_bar__plus_00_dot_90_bar__plus_01_dot_00{part}"
        self._ids[name] = kind
        return name
