"""The numbers of each recipe agree with each other, with its comments, and with one commit of each source.

Changes that turned these tests red, each tried once:

- ``steps_per_generation: 8`` in ``sokoban/grpo``, ``eval_steps: 10`` in ``webshop/planpo``, ``max_steps: 150``
  in ``alfworld/planpo``: ``test_updates_a_rollout``, each.
- ``steps_per_generation`` taken out of ``webshop/steppo``: ``test_ratios_act``.
- ``entropy_coef`` taken out of ``search_qa/grpo``: ``test_values_of_a_source``.
- ``--no_NAME`` left as it stands, help of one kind of trainer: the last two tests.
- RAGEN@5eb79b8 in one recipe: ``test_one_commit_of_each_source``.
"""

import re

import pytest
import yaml

from agentic_trl.methods import DEFAULTS, METHODS
from recipes import train
from tests.recipes.running import RECIPES

FILES = sorted(path for path in RECIPES.glob("*/*.yaml") if path.parent.name != "accelerate")
TEXTS = {f"{path.parent.name}/{path.stem}": path.read_text() for path in FILES}
WRITTEN = {name: yaml.safe_load(text) for name, text in TEXTS.items()}

SOURCE = re.compile(r"\b([A-Za-z0-9-]+/[A-Za-z0-9-]+)@([0-9a-f]+)")
BATCH = re.compile(r"(\d+) / (\d+) = (\d+)\s+#?\s*updates? of\s+#?\s*(\d+)\s+#?\s*episodes")
COUNTED = re.compile(r"counted as\s+#?\s*(\d+) .*?(\d+) / (\d+) = (\d+)\s+#?\s*episodes", re.DOTALL)
VALUES = {
    "RAGEN": {"entropy_coef": 0.001, "delta": 3.0, "weight_decay": 0.01, "max_grad_norm": 1.0},
    "GiGPO": {"entropy_coef": 0.001, "delta": 3.0, "weight_decay": 0.01, "max_grad_norm": 1.0},
    "AgentGym": {"entropy_coef": 0.001, "max_completion_length": 200, "max_grad_norm": 1.0},
    "Search-R1": {"entropy_coef": 0.001, "weight_decay": 0.01, "max_completion_length": 500},
    "StepPO": {"entropy_coef": None, "eval_temperature": 0.0, "num_generations": 1},
}
"""What a recipe that cites a source has from it, whatever its environment."""


def updates(written):
    steps = written.get("steps_per_generation", written.get("gradient_accumulation_steps", 1))
    accumulated = written.get("gradient_accumulation_steps", 1)
    assert steps % accumulated == 0
    return written.get("num_iterations", 1) * steps // accumulated


def comment(text, key):
    """What stands behind a key."""
    found = re.search(rf"^{key}:[^#\n]*#(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.parametrize("name", TEXTS)
def test_updates_a_rollout(name):
    text, written = TEXTS[name], WRITTEN[name]
    each = updates(written)
    gpus = (
        int(found[1]) if (found := re.search(r"^# Batch, on (\d+) GPUs", text, re.MULTILINE)) else 1
    )
    update = written["per_device_train_batch_size"] * gpus
    rollout = update * written.get("steps_per_generation", 1)
    assert rollout % written["num_generations"] == 0
    if stated := BATCH.search(text):
        assert tuple(map(int, stated.groups())) == (rollout, update, each, update)
    if stated := COUNTED.search(text):
        turns, total, by, episodes = map(int, stated.groups())
        # Either a mini-batch of turns over the turns of an episode, or a rollout over its updates.
        assert (turns, episodes) == (by, update)
        assert total == by * episodes
    for key in ("max_steps", "eval_steps", "save_steps"):
        assert written.get(key, 0) % each == 0, f"{key} ends within a rollout"
        rollouts = re.search(r"(\d+) rollouts|(?:_steps|_freq) (\d+)", comment(text, key))
        if rollouts and "27 rollouts of 128" not in comment(text, key):
            assert written[key] == int(rollouts[1] or rollouts[2]) * each
    if name == "alfworld/steppo":
        # 3553 tasks are 27 whole rollouts of 128, ten times, of 16 updates.
        assert written["max_steps"] == 10 * (3553 // 128) * 16


@pytest.mark.parametrize(
    "name",
    [name for name, one in WRITTEN.items() if "so-" in one["method"] or "step" in one["method"]],
)
def test_ratios_act(name):
    """With one update a rollout every ratio is 1: there is nothing to clip and no step ratio."""
    written = WRITTEN[name]
    assert updates(written) > 1
    level = METHODS[written["method"]].settings.get("importance_sampling_level", "token")
    clip = written.get(
        "epsilon", METHODS[written["method"]].settings.get("epsilon", DEFAULTS["epsilon"])
    )
    if level != "token" and name != "search_qa/steppo":  # whose source has 0.2, as its comment says
        assert clip <= 0.02
    if METHODS[written["method"]].settings.get("clip_normalization"):
        assert written["clip_normalization"] == "relative"
        assert '"paper"' in TEXTS[name]


@pytest.mark.parametrize("name", TEXTS)
def test_values_of_a_source(name):
    text, written = TEXTS[name], WRITTEN[name]
    head = text[: text.index("method:")]
    for tag in set(re.findall(r"\[([A-Z][\w-]+)\]", text)):
        assert f"[{tag}]" in head, f"the head does not say what [{tag}] is"
        for key, value in VALUES.get(tag, {}).items():
            if f"[{tag}]" in text[len(head) :]:
                assert written.get(key) == value, key


def test_one_commit_of_each_source():
    commits = {}
    for text in TEXTS.values():
        for repository, commit in SOURCE.findall(text):
            commits.setdefault(repository, set()).add(commit)
    assert commits == {
        "AgentR1/StepPO": {"26107f1"},
        "mll-lab-nu/RAGEN": {"20daedc"},
        "zhangyun04/verl-agent": {"24dda38"},
        "WooooDyy/AgentGym-RL": {"82402a9"},
        "PeterGriffinJin/Search-R1": {"a14dc3a"},
    }


def test_rewards_and_what_depends_on_their_size():
    # StepPO's WebShop pays 10 and clips values at 0.5; here a success is 1.
    assert WRITTEN["webshop/steppo"]["cliprange_value"] == 0.5 / 10
    assert WRITTEN["alfworld/steppo"]["cliprange_value"] == 0.5
    lake = WRITTEN["frozen_lake/actfocus-grpo-qwen2.5-0.5b"]
    assert lake["environment_kwargs"]["success_rate"] == 1.0
    for name, one in WRITTEN.items():
        if name.startswith("sokoban/") or one is lake:
            assert one["environment_kwargs"]["actions_per_turn"] == 2
            assert one["max_turns"] == 5


def test_a_flag_switches_off_what_a_recipe_switches_on():
    file = str(RECIPES / "frozen_lake" / "grpo.yaml")
    flags = ["--config", file, "--method", "steppo"]
    with pytest.raises(ValueError, match="--no_share_prefixes"):
        train.parse(flags)
    _, args, _ = train.parse([*flags, "--no_share_prefixes", "--no_evaluate_first"])
    assert args.share_prefixes is False
    with pytest.raises(train.UsageError, match="'no_share_prefix', which is no field"):
        train.parse(["--config", file, "--no_share_prefix"])


def test_help_names_every_method(capsys):
    with pytest.raises(SystemExit):
        train.parse(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"Paper whose knobs are set: {', '.join(METHODS)};" in said
