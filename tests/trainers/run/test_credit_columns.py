"""What each token and each turn was trained with, as the files of trajectories say it.

Mutations seen red: energies of reasoning tokens; cut episodes called trained; returns in the column of values; alpha in the response's part, or
another alpha; the default gamma in GiGPO's part; advantages for errors; parts of another turn; parts of the method beside a user's function; parts computed for nobody.
"""

import json
import random
from copy import deepcopy
from dataclasses import replace
from itertools import chain

import pytest
import torch
from datasets import load_dataset
from peft import LoraConfig

from agentic_trl.algorithms.actfocus import token_energy
from agentic_trl.types import StopReason, TokenKind, Trajectory, Turn
from tests.tiny import Stingy, make_model, make_trainer, scripted, scripted_trajectories
from tests.tolerances import EXACT
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("doubles")]

LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])


def episode(group, member, lengths, *, rewards=None, states=None, stop="terminated", success=True):
    """An episode of turns that extend each other, with so many sampled tokens each."""
    rng = random.Random(10 * group + member)
    rewards = rewards or [0.0] * len(lengths)
    turns = tuple(
        Turn(
            observation_ids=(7, 8),
            response_ids=tuple(rng.randrange(9, 31) for _ in range(length)),
            response_logprobs=(-3.0,) * length,
            token_kinds=(2,) * length,
            reward=rewards[index],
            extends=index > 0,
            state_key=states[index] if states else None,
        )
        for index, length in enumerate(lengths)
    )
    score = sum(rewards) if any(rewards) else float(success)
    stop = StopReason(stop)
    return Trajectory(
        turns=turns, group=group, member=member, stop=stop, success=success, score=score
    )


PAIRS = {"num_generations": 2, "per_device_train_batch_size": 4, "scale_rewards": "none"}
"""Two groups of two; advantages are differences to a mean."""


def lines_of(folder, step=0, rank=0):
    path = folder / "trajectories" / f"step_{step:06d}_rank_{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def turns_of(folder, **which):
    return [turn for line in lines_of(folder, **which) for turn in line["turns"]]


def credit_of(folder):
    return [[turn.get("credit") for turn in line["turns"]] for line in lines_of(folder)]


def near(expected):
    return pytest.approx(expected, abs=EXACT)


def played(tmp_path, trajectories, **knobs):
    make_trainer(tmp_path, cls=scripted(trajectories), **knobs).train()
    return lines_of(tmp_path)


def test_grpo_says_the_advantage_of_the_trajectory(tmp_path):
    one, two = episode(0, 0, [1, 2]), episode(0, 1, [3], success=False)
    rest = [episode(1, 0, [2], success=False), episode(1, 1, [2], success=False)]
    lines = played(tmp_path, [one, two, *rest], **PAIRS)
    # Scores 1 and 0: half above and half below their mean; then 0 and 0.
    half = {"trajectory": 0.5}
    assert credit_of(tmp_path) == [
        [half, half],
        [{"trajectory": -0.5}],
        [{"trajectory": 0.0}],
        [{"trajectory": 0.0}],
    ]
    assert [turn["advantages"] for turn in lines[0]["turns"]] == [[0.5], [0.5, 0.5]]


def test_planpo_says_both_levels_and_its_alpha(tmp_path):
    one, two = episode(0, 0, [1, 2]), episode(0, 1, [4])
    rest = [episode(1, 0, [2], success=False), episode(1, 1, [2], stop="environment_error")]
    lines = played(tmp_path, [one, two, *rest], method="planpo", **PAIRS)
    # R / T: 1/2 and 1, mean 3/4. R / L: 1, 1/2 and 1/4, mean 7/12. The first step has alpha_start.
    assert credit_of(tmp_path) == [
        [
            near({"trajectory": -0.25, "response": 5 / 12, "alpha": 0.1}),
            near({"trajectory": -0.25, "response": -1 / 12, "alpha": 0.1}),
        ],
        [near({"trajectory": 0.25, "response": -1 / 3, "alpha": 0.1})],
        [near({"trajectory": 0.0, "response": 0.0, "alpha": 0.1})],
        [None],
    ]
    assert lines[0]["turns"][0]["advantages"] == near([-0.25 + 0.1 * 5 / 12])
    assert lines[0]["turns"][1]["advantages"] == near([-0.25 - 0.1 / 12] * 2)
    assert [line["left_out"] for line in lines] == [False, False, False, True]
    empty = {name: lines[3]["turns"][0][name] for name in ("advantages", "weights")}
    assert empty == {"advantages": [], "weights": []}


def test_gigpo_says_both_levels(tmp_path):
    one = episode(0, 0, [1, 2], rewards=[0.0, 1.0], states=["x", "y"])
    two = episode(0, 1, [3], rewards=[0.5], states=["x"])
    rest = [episode(1, 0, [2], success=False), episode(1, 1, [2], success=False)]
    knobs = {"method": "gigpo", "gigpo_turn_weight": 0.5, "turn_gamma": 0.9}
    lines = played(tmp_path, [one, two, *rest], **PAIRS, **knobs)
    # Scores 1 and 0.5. In state x the returns 0 + 0.9 * 1 and 0.5, mean 0.7; state y was met once.
    assert credit_of(tmp_path)[:2] == [
        [near({"trajectory": 0.25, "state": 0.2}), near({"trajectory": 0.25, "state": 0.0})],
        [near({"trajectory": -0.25, "state": -0.2})],
    ]
    assert lines[0]["turns"][0]["advantages"] == near([0.25 + 0.5 * 0.2])


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 4, "logging_steps": 4},
        {"peft_config": LORA, "beta": 0.1},
        {"history": "window"},
        {"flat_groups": "drop"},
        {"environment": Stingy, "flat_groups": "refill"},
    ],
    ids=["plain", "several_updates", "lora", "window", "drop", "refill"],
)
def test_the_parts_are_those_of_the_advantages_that_were_trained(tmp_path, knobs):
    trainer = make_trainer(tmp_path, method="planpo", **knobs)
    trainer.train()
    lines = lines_of(tmp_path)
    trained = dict(trained_advantages(trainer))
    seen = 0
    turns = [(line, turn) for line in lines for turn in line["turns"]]
    for turn_number, (line, turn) in enumerate(turns):
        assert not line["left_out"]
        parts = turn["credit"]
        expected = parts["trajectory"] + parts["alpha"] * parts["response"]
        assert turn["advantages"] == near([expected] * len(turn["response_ids"]))
        assert turn["advantages"] == trained[turn_number]
        assert turn["weights"] == [1.0] * len(turn["response_ids"])
        assert turn["energies"] == turn["values"] == turn["returns"] == []
        seen += expected != 0
    assert seen > 3


@pytest.mark.parametrize("masked", [False, True])
def test_what_a_limit_cut_is_left_out_where_the_run_says_so(tmp_path, masked):
    cut = episode(0, 1, [4])
    cut = replace(cut, turns=(replace(cut.turns[0], truncated=True),))
    rest = [episode(1, 0, [2], success=False), episode(1, 1, [2])]
    knobs = PAIRS | {"mask_truncated_completions": masked}
    lines = played(tmp_path, [episode(0, 0, [1], success=False), cut, *rest], **knobs)
    assert [line["left_out"] for line in lines] == [False, masked, False, False]
    # Alone in its group the first is compared with nothing.
    outcome = 0.0 if masked else 0.5
    assert credit_of(tmp_path)[:2] == [
        [{"trajectory": -outcome}],
        [None if masked else {"trajectory": outcome}],
    ]


def trained_advantages(trainer):
    """Advantages of the rows that the update read, by turn."""
    for row in (row for one in trainer.buffered_sets for row in one.rows):
        for turn in row.turn_of_token[row.turn_of_token >= 0].unique().tolist():
            yield turn, row.token_advantage[row.turn_of_token == turn].tolist()


def test_a_function_of_the_users_has_no_parts(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.advantage_function = lambda table: table.turn_index.double() + 1
    trainer.train()
    turns = turns_of(tmp_path)
    assert all("credit" not in turn for turn in turns)
    assert turns[0]["advantages"] == [1.0] * len(turns[0]["response_ids"])


# A critic


def plain_values(critic, line):
    """The critic's output one position before each sampled token, for an episode whose turns extend each other."""
    ids, places = [], []
    for turn in line["turns"]:
        ids += turn["observation_ids"]
        places.append([len(ids) + i - 1 for i in range(len(turn["response_ids"]))])
        ids += turn["response_ids"]
    with torch.no_grad():
        found = critic(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long))[0]
    return [[found[at].item() for at in of_turn] for of_turn in places]


def step_gae_by_hand(rewards, values, last, gamma, lam):
    """A turn at a time from the end: delta, advantage."""
    later, advantage, found = last, 0.0, []
    for reward, value in reversed(list(zip(rewards, values, strict=True))):
        delta = reward + gamma * later - value
        advantage = delta + gamma * lam * advantage
        found.append((delta, advantage))
        later = value
    return found[::-1]


@pytest.mark.parametrize("peft", [False, True], ids=["a_model", "an_adapter"])
def test_steppo_says_values_errors_and_returns(tmp_path, peft):
    trajectories = scripted_trajectories()
    trajectories[2] = episode(0, 2, [3, 1], stop="environment_error")
    knobs = {"method": "steppo", "turn_gamma": 0.9, "turn_lambda": 0.8}
    trainer = make_ppo(tmp_path, trajectories, peft=peft, **knobs)
    critic = plain_adapter(trainer) if peft else deepcopy(trainer.critic.model)
    values = [plain_values(critic, as_line(one)) for one in trajectories]
    trainer.train()
    whitened, raw = [], []
    for line, one, known in zip(lines_of(tmp_path), trajectories, values, strict=True):
        if one.failed:
            assert all(
                t["values"] == t["returns"] == [] and "credit" not in t for t in line["turns"]
            )
            continue
        rewards = [turn.reward for turn in one.turns]
        rewards[-1] += one.score - sum(rewards)
        starts = [of_turn[0] for of_turn in known]
        by_hand = step_gae_by_hand(rewards, starts, 0.0, 0.9, 0.8)
        for turn, of_turn, start, (delta, advantage) in zip(
            line["turns"], known, starts, by_hand, strict=True
        ):
            assert turn["values"] == near(of_turn)
            assert turn["credit"] == near(
                {
                    "value": start,
                    "delta": delta,
                    "return": advantage + start,
                    "advantage": advantage,
                }
            )
            assert turn["returns"] == near([advantage + start] * len(of_turn))
            raw.append(advantage)
            whitened.append(turn["advantages"][0])
    raw = torch.tensor(raw)
    assert raw.std() > 0.01
    assert whitened == near(((raw - raw.mean()) / (raw.std() + 1e-8)).tolist())


@pytest.mark.parametrize("peft", [False, True], ids=["a_model", "an_adapter"])
def test_ppo_says_the_value_and_the_return_of_each_token(tmp_path, peft):
    trajectories = scripted_trajectories()
    knobs = {"token_gamma": 0.9, "token_lambda": 0.7, "whiten_advantages": False}
    trainer = make_ppo(tmp_path, trajectories, peft=peft, **knobs)
    critic = plain_adapter(trainer) if peft else deepcopy(trainer.critic.model)
    values = [plain_values(critic, as_line(one)) for one in trajectories]
    trainer.train()
    for line, one, known in zip(lines_of(tmp_path), trajectories, values, strict=True):
        rewards = [[0.0] * (len(t.response_ids) - 1) + [t.reward] for t in one.turns]
        rewards[-1][-1] += one.score - sum(t.reward for t in one.turns)
        by_hand = step_gae_by_hand(joined(rewards), joined(known), 0.0, 0.9, 0.7)
        advantages = [advantage for _, advantage in by_hand]
        columns = {
            name: joined(turn[name] for turn in line["turns"])
            for name in ("values", "returns", "advantages")
        }
        assert columns["values"] == near(joined(known))
        assert columns["advantages"] == near(advantages)
        assert columns["returns"] == near(
            [a + v for a, v in zip(advantages, joined(known), strict=True)]
        )
        assert all("credit" not in turn for turn in line["turns"])


def joined(parts):
    return list(chain.from_iterable(parts))


def as_line(one):
    return {
        "turns": [
            {"observation_ids": list(t.observation_ids), "response_ids": list(t.response_ids)}
            for t in one.turns
        ]
    }


def plain_adapter(trainer):
    """The critic on the policy's base: its adapter switched on by PEFT itself, and its head."""

    def values(ids, mask):
        model = trainer.model
        model.set_adapter("critic")
        hidden = model.base_model.model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        model.set_adapter("default")
        return trainer.critic.head(hidden)[..., 0]

    return values


# ACTFOCUS


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_energies_are_those_of_the_reference(tmp_path, lora):
    trainer = make_trainer(
        tmp_path,
        method="actfocus-grpo",
        max_steps=2,
        temperature=0.3,
        learning_rate=0.05,
        peft_config=LORA if lora else None,
    )
    trainer.train()
    reference = (
        make_model()
    )  # what the run started from; LoRA begins with an adapter that adds nothing
    count = 0
    for line in lines_of(tmp_path, step=1):  # by now the policy is another
        ids = []
        for turn in line["turns"]:
            assert turn["extends"] == bool(ids)
            ids += turn["observation_ids"]
            first = len(ids)
            ids += turn["response_ids"]
            with torch.no_grad():
                logits = reference(input_ids=torch.tensor([ids])).logits[0]
            energies = token_energy(logits)[first - 1 : len(ids) - 1].tolist()
            for known, energy, kind in zip(
                turn["energies"], energies, turn["token_kinds"], strict=True
            ):
                assert known == (near(energy) if kind == TokenKind.ACTION else None)
                count += kind == TokenKind.ACTION
    assert count >= 5


# Files


def test_the_files_of_all_methods_load_as_a_dataset(tmp_path):
    make_trainer(tmp_path / "planpo", method="planpo", max_steps=2).train()
    make_ppo(tmp_path / "steppo", method="steppo").train()
    for name in ("planpo", "steppo"):
        paths = sorted(map(str, (tmp_path / name / "trajectories").glob("*.jsonl")))
        cache = str(tmp_path / "cache")
        dataset = load_dataset("json", data_files=paths, split="train", cache_dir=cache)
        assert dataset.to_parquet(tmp_path / f"{name}.parquet") > 0
        turn = dataset[0]["turns"][0]
        assert turn["credit"] == lines_of(tmp_path / name)[0]["turns"][0]["credit"]
        assert len(turn["values"]) == (name == "steppo") * len(turn["response_ids"])
        assert dataset[0]["left_out"] is False


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("made", [make_trainer, make_ppo])
def test_parts_are_computed_for_what_is_written_alone(tmp_path, made, written):
    knobs = {"method": "steppo"} if made is make_ppo else {"method": "planpo"}
    trainer = made(tmp_path, **knobs, max_steps=1, log_trajectories=written)
    met = []
    prepared = trainer.prepare_sets
    trainer.prepare_sets = lambda played: met.extend(prepared(played)) or met
    trainer.train()
    assert {bool(row.parts) for one in met for row in one.rows} == {written}
