"""What holds of the adapters without their packages: names, missing extras, arithmetic on stand-ins.

``make test-envs`` plays the real ones. Mutations seen red, each tried once: the first choices for evenly
spaced ones, doubled ones kept, an empty list shown (``test_choices_...``); the extra's name alone
(``test_a_missing_package_...``); the task not stripped (``test_the_system_message_...``); ScienceWorld:
the score for its rise, refused actions as valid (``..._rewards_are_rises_of_the_score``); no end after a
fatal mistake, a cut besides the end, the limit one later (``..._ends_after_a_fatal_mistake_...``);
kinds one after another, always the test split, all kinds, the simulator left running
(``..._tasks_take_the_kinds_in_turn_...``); closed twice (``..._closes_once``); ALFWorld: the folder of the trial for that of
the type, the whole name of the folder (``test_alfworld_names_...``).
"""

import re
import sys
from types import SimpleNamespace

import pytest

from agentic_trl.environments.adapters import alfworld, scienceworld
from agentic_trl.environments.adapters.alfworld import ALFWorld
from agentic_trl.environments.adapters.common import need, system_message, with_choices
from agentic_trl.environments.adapters.scienceworld import ScienceWorld
from agentic_trl.environments.base import ActionFormat, TextEnv
from agentic_trl.environments.built_in import OPTIONAL
from agentic_trl.environments.registry import env_spec
from tests.paths import ROOT

EXTRAS = {
    "ScienceWorld-v1": ("scienceworld", ["scienceworld", "scienceworld.constants"], {}),
    "ALFWorld-v1": ("alfworld", ["alfworld.agents.environment.alfred_tw_env"], {}),
    "TextWorld-v1": ("textworld", ["textworld"], {}),
    "TextArena-v1": ("textarena", ["textarena"], {}),
    "ReasoningGym-v1": ("reasoning-gym", ["reasoning_gym"], {}),
    "OpenEnv-v1": ("openenv", ["openenv.core"], {"base_url": "http://127.0.0.1:9"}),
    "agent": ("agents", ["uvicorn"], {"command": ["python", "solve.py"]}),
    "mcp": ("mcp", ["mcp"], {"command": ["python", "server.py"]}),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_package_is_named_with_the_command_that_installs_it(name, monkeypatch):
    extra, modules, kwargs = EXTRAS[name]
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(f'Run: pip install "agentic_trl[{extra}]"')):
        env_spec(name).make(**kwargs)


def test_every_optional_environment_loads_without_its_package():
    assert set(OPTIONAL) == {*EXTRAS, "Tools-v1"}
    for name in OPTIONAL:
        assert issubclass(env_spec(name).load(), TextEnv)


def test_the_extras_of_the_adapters_exist():
    written = (ROOT / "pyproject.toml").read_text()
    for extra, _, _ in EXTRAS.values():
        assert f"\n{extra} = [" in written


def test_need_returns_the_module():
    assert need("json", "nothing") is sys.modules["json"]


def test_choices_are_evenly_spaced_and_unique():
    commands = [*"hgfedcba", "a"]
    assert with_choices("Here.\n", commands, 0) == "Here.\n"
    assert with_choices("Here.", [], 3) == "Here."
    assert with_choices("Here.\n", commands, 8) == "Here.\npossible actions: a; b; c; d; e; f; g; h"
    # 3 of 8: indices 0, 8 // 3 = 2, 16 // 3 = 5.
    assert with_choices("Here.", commands, 3) == "Here.\npossible actions (3 of 8): a; c; f"


def test_the_system_message_is_instructions_task_and_format():
    env = TextEnv()
    env.instructions = "Live in a house."
    (message,) = system_message(env, " Make tea. \n")["messages"]
    assert message == {
        "role": "system",
        "content": f"Live in a house.\nMake tea.\n{ActionFormat().describe()}",
    }
    env.instructions, env.action_format = "", ActionFormat(whole=True)
    assert system_message(env, "Make tea.")["messages"][0]["content"] == "Make tea."


class Simulator:
    """Stands in for ScienceWorld's: points by action, moves counted; 30 names, few variations."""

    def __init__(self):
        self.server = self
        self.points, self.moves, self.closed = 0.0, 0, 0
        self._gateway = SimpleNamespace(java_process=SimpleNamespace(wait=lambda seconds: None))

    def load(self, name, number=0, simplifications="", gold=False):
        self.loaded = (name, number, simplifications, gold)

    def get_max_variations(self, name):
        return 7

    def reset(self):
        self.points, self.moves = 0.1, 0
        return "a room", {}

    def get_task_description(self):
        return "Do it."

    def step(self, action):
        self.moves += 1
        self.points = {"good": 0.45, "bad": -1.0, "all": 1.0}.get(action, self.points)
        return "done" if action in {"good", "bad", "all"} else "No known action matches that input."

    def getScore(self):  # noqa: N802
        return self.points

    def getCompleted(self):  # noqa: N802
        return self.points >= 1.0

    def getNumMoves(self):  # noqa: N802
        return self.moves

    def get_variations_train(self):
        return {"one": [0, 1, 2], "two": [0]}[self.loaded[0]]

    def get_variations_dev(self):
        return [3]

    def get_variations_test(self):
        return [4, 5]

    def close(self):
        self.closed += 1


@pytest.fixture
def simulated(monkeypatch):
    made = []
    scienceworld.variations.cache_clear()
    constants = SimpleNamespace(ID2TASK={"1-1": "one", "1-2": "two"})
    monkeypatch.setattr(scienceworld, "need", lambda module, extra: constants)
    monkeypatch.setattr(scienceworld, "_start", lambda: made.append(Simulator()) or made[-1])
    yield made
    scienceworld.variations.cache_clear()


def test_scienceworld_rewards_are_rises_of_the_score(simulated):
    env = ScienceWorld(step_limit=5)
    _, info = env.reset(options={"task": "one", "variation": 6})
    assert info["category"] == "one"
    assert simulated[0].loaded == ("one", 6, "easy", False)
    results = [env.step(action)[1:] for action in ("good", "sing", "all")]
    # 0.1 to begin with comes with the first step: 45, 0, 55 points.
    assert [reward for reward, *_ in results] == [0.45, 0.0, 0.55]
    assert [(done, cut) for _, done, cut, _ in results] == [(False, False)] * 2 + [(True, False)]
    assert [info["invalid_action"] for *_, info in results] == [False, True, False]
    assert [info["success"] for *_, info in results] == [False, False, True]


def test_scienceworld_ends_after_a_fatal_mistake_and_is_cut_at_the_limit(simulated):
    env = ScienceWorld(step_limit=2)
    env.reset(options={"task": "one", "variation": 0})
    env.step("good")
    assert env.step("bad")[1:4] == (-1.45, True, False)  # the end wins over the cut
    env.reset(options={"task": "one", "variation": 0})
    assert [env.step("good")[2:4] for _ in range(2)] == [(False, False), (False, True)]
    with pytest.raises(RuntimeError, match="while no episode was running"):
        env.step("good")


def test_scienceworld_tasks_take_the_kinds_in_turn_and_close_what_they_open(simulated):
    pairs = [
        [(row["task"], row["variation"]) for row in rows]
        for rows in (
            ScienceWorld.make_tasks(4, split="train"),
            ScienceWorld.make_tasks(4, split="eval"),
            ScienceWorld.make_tasks(2, split="eval", eval_split="dev"),
            ScienceWorld.make_tasks(1, split="train", tasks=["two"]),
        )
    ]
    assert pairs[0] == [("one", 0), ("two", 0), ("one", 1), ("one", 2)]
    assert pairs[1] == [("one", 4), ("two", 4), ("one", 5), ("two", 5)]
    assert pairs[2] == [("one", 3), ("two", 3)]
    assert pairs[3] == [("two", 0)]
    assert [one.closed for one in simulated] == [1]
    with pytest.raises(ValueError, match=r"count=5 tasks for split='train', .* 4 variations"):
        ScienceWorld.make_tasks(5, split="train")


class Game:
    """Stands in for an engine of TextWorld at its start, with ALFWorld's first text."""

    def load(self, path):
        pass

    def reset(self):
        text = "-= Welcome =-\n\nYou are in the middle of a room.\n\nYour task is to: heat an egg."
        return SimpleNamespace(feedback=text, admissible_commands=("look",))


def test_alfworld_names_the_type_of_the_task(monkeypatch, tmp_path):
    module = SimpleNamespace(
        EnvInfos=lambda **asked: asked,
        start=lambda path, infos, wrappers: Game(),
        AlfredDemangler=lambda shuffle: None,
    )
    monkeypatch.setattr(alfworld, "need", lambda name, extra: module)
    env = ALFWorld(data=str(tmp_path))
    game = "valid_seen/pick_heat_then_place_in_recep-Egg-None-Fridge-8/trial_T2/game.tw-pddl"
    for given in (game, str(tmp_path / game)):
        _, info = env.reset(options={"game": given})
        assert info["category"] == "pick_heat_then_place_in_recep"
        assert "heat an egg" in info["messages"][0]["content"]


def test_scienceworld_closes_once(simulated):
    env = ScienceWorld()
    env.close()
    env.close()
    assert simulated[0].closed == 1
