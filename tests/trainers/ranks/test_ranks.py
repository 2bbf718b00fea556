"""Two gloo ranks give the gradient of one process on the union, whatever each rank holds.

Mutations seen red: loss not multiplied by the number of ranks; denominator of the rank alone; group
statistics of the rank alone; no dummy row on a rank without rows; evaluation through the repeating
sampler, or in unequal numbers of parts on a shared vLLM; ranks that agree with themselves alone; repeated episodes in the mean of a reward function; the second
rank's episodes from the seeds of the first; a second rank's process that plays ahead with copies of the weights. With
FSDP2: nothing gathered, or never sharded again; fewer micro-batches on one rank; gradients not taken as
shards; a reference that is not sharded; log-probabilities in bfloat16.
"""

import os
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig

from tests.paths import ROOT
from tests.tiny import largest_difference, make_trainer, scripted
from tests.tolerances import assert_rounding, tolerance
from tests.trainers.ranks.cases import (
    AGENTS,
    AHEAD,
    LORA_CASES,
    PPO_CASES,
    SCRIPTED_CASES,
    SHARDED_CASES,
    agent_run,
    episodes_of,
    refill_run,
    written_credit,
    written_updates,
)
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = pytest.mark.trainer

SUMS = {"terms": 10_000}
"""A gradient sums over some 200 tokens what comes through layers 64 wide."""
LOGPROB = tolerance(5.0, terms=128)
"""A log-probability of the tiny model is about -3.4 and comes through two layers 64 wide."""


def on_two_ranks(name, folder, *, script="two_ranks.py", seconds=240):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--standalone",
    ]
    arguments = [str(ROOT / "tests" / "trainers" / "ranks" / script), name, str(folder)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        command + arguments,
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / f"{name}.pt", weights_only=False)


def alone_of(name, tmp_path):
    """The trainer of one process on the union, when it has trained."""
    trajectories, knobs = episodes_of(name)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if name in LORA_CASES else None
    torch.manual_seed(0)
    alone = make_trainer(tmp_path / "one", cls=scripted(trajectories), peft_config=lora, **knobs)
    alone.train()
    return alone


@pytest.fixture(scope="module")
def replicated(tmp_path_factory):
    return on_two_ranks("replicated", tmp_path_factory.mktemp("replicated"))


@pytest.mark.parametrize("name", SCRIPTED_CASES)
def test_two_ranks_give_the_gradient_of_the_union(tmp_path, replicated, name):
    alone, both = alone_of(name, tmp_path), replicated[name]
    assert len(both["gradients"]) == len(alone.gradients.steps)
    largest = max(g.abs().max().item() for g in alone.gradients.steps[-1].values())
    assert largest > 1e-3
    for one, two in zip(alone.gradients.steps, both["gradients"], strict=True):
        assert_rounding(two, one, **SUMS)
    losses = [e["loss"] for e in alone.state.log_history if "loss" in e]
    assert_rounding(both["losses"], losses, terms=200, scale=5.0)  # log-probabilities of 200 tokens
    check_written(written_credit(tmp_path / "one"), both["written"], methods={"planpo"})
    check_said(written_updates(tmp_path / "one"), both["said"])
    for metric in ("sorl/bias_norm", "sorl/scale", "actfocus/mean_weight", "actfocus/action_share"):
        one, two = (
            [e[metric] for e in log if metric in e]
            for log in (alone.state.log_history, both["metrics"])
        )
        assert one == pytest.approx(two, rel=1e-4)
        assert len(one) == (name == metric.split("/")[0])
    for metric in ("correction", "corrected_share", "masked_share"):
        one, two = (
            [e[f"sampling/{metric}"] for e in log if f"sampling/{metric}" in e]
            for log in (alone.state.log_history, both["metrics"])
        )
        assert one == pytest.approx(two, rel=1e-4)
        assert len(one) == 2 * (name == "corrected")
    one, two = (
        [{k: v for k, v in e.items() if k.startswith("signal/")} for e in log if "loss" in e]
        for log in (alone.state.log_history, both["metrics"])
    )
    assert one == [pytest.approx(entry) for entry in two]
    assert one[0]["signal/group_advantage"] > 0
    if name in ("one_and_thirty", "dead_rank", "flat_rank"):
        assert both["micro_batches"][0] != both["micro_batches"][1]


def check_written(one, two, *, methods):
    """The files of two ranks say of each turn what that of one process says, parts included."""
    assert one.keys() == two.keys()
    for place, turn in one.items():
        numbers = {name: turn[name] for name in turn if name != "credit"}
        assert two[place] == {
            name: pytest.approx(numbers[name], abs=LOGPROB) for name in numbers
        } | {"credit": pytest.approx(turn["credit"], abs=LOGPROB)}
    parts = set().union(*(turn["credit"] or () for turn in one.values()))
    if "planpo" in methods:
        assert parts == {"trajectory", "response", "alpha"}
    assert ("delta" in parts) == ("steppo_dead" in methods)


def check_said(one, two):
    """So do those of what the policy said at the last update."""
    assert one.keys() == two.keys()
    assert one
    for place, said in one.items():
        assert two[place] == {
            name: pytest.approx(said[name], abs=LOGPROB)
            for name in ("logprobs", "old_logprobs", "entropies")
        }


@pytest.mark.parametrize("kind", ["replicated", "sharded"])
def test_two_ranks_play_the_refills_of_one_process(tmp_path, request, kind):
    """A round that concerns one rank alone, too; reward functions score what each rank holds."""
    alone, both = refill_run(tmp_path, 8), request.getfixturevalue(kind)["refill"]
    assert sorted(alone.episodes, key=repr) == sorted(both["episodes"], key=repr)
    assert both["mine"][0] != both["mine"][1]
    for one, two in zip(alone.gradients.steps, both["gradients"], strict=True):
        assert_rounding(two, one, **SUMS)
    names = (
        "groups/refilled",
        "groups/no_advantage",
        "groups/flat",
        "num_tokens",
        "rewards/even/mean",
    )
    names += ("success_rate", "signal/group_advantage")
    one, two = (
        [{name: e[name] for name in names} for e in log if "loss" in e]
        for log in (alone.state.log_history, both["metrics"])
    )
    assert one == [pytest.approx(entry) for entry in two]
    assert all(entry["groups/refilled"] > 0 for entry in one)


def test_two_ranks_log_what_reward_functions_report(replicated):
    result = replicated["reports"]
    for name in ("mine", "eval_mine"):
        # 1 on one rank, 2 and 2 on the other: 5 / 3.
        assert [e[name] for e in result["metrics"] if name in e] == pytest.approx([5 / 3])
    for table in (result["trained"], result):
        assert table["first"] == [one[0]["content"] for one in table["completion"]]
    assert len(result["trained"]["first"]) == 8
    # 3 held-out episodes, which push out 3 of the 8.
    assert result["first"][:5] == result["trained"]["first"][3:]
    answers = [sum(m["role"] == "assistant" for m in one) for one in result["completion"]]
    assert result["rewards"]["talkative"] == answers
    # Of the three alone: the rank that holds one is asked about it twice.
    (mean,) = [e[k] for e in result["metrics"] for k in e if k == "eval_rewards/talkative/mean"]
    assert mean == pytest.approx(sum(answers[-3:]) / 3)


def test_episodes_of_1_and_30_turns_on_different_ranks(replicated):
    result = replicated["play"]
    assert result["equal"]
    assert sorted(result["evaluated"]) == [(1_000_000 + i, 0) for i in range(3)]


def test_episodes_of_1_and_30_turns_with_one_vllm_server_for_both_ranks(replicated):
    check_vllm(replicated["vllm"])


def check_vllm(result):
    assert result["equal"]
    assert sorted(result["evaluated"]) == [(1_000_000 + i, 0) for i in range(3)]
    # A wrong answer for an episode, or one of old weights, would have another log-probability.
    name = "sampling/logprob_difference"
    differences = [entry[name] for entry in result["metrics"] if name in entry]
    assert len(differences) == 3
    assert max(differences) < LOGPROB


@pytest.mark.parametrize("name", PPO_CASES)
def test_two_ranks_train_policy_and_critic_as_one_process(tmp_path, replicated, name):
    trajectories, knobs = episodes_of(name)
    alone = make_ppo(tmp_path / "one", trajectories, peft=name in LORA_CASES, **knobs)
    alone.train()
    both = replicated[name]
    assert len(both["gradients"]) == len(alone.gradients.steps) == 2
    for one, two in zip(alone.gradients.steps, both["gradients"], strict=True):
        assert_rounding(two, one, **SUMS)
    for one, two in zip(alone.critic_gradients, both["critic"], strict=True):
        assert_rounding(two, one, **SUMS)
    check_written(written_credit(tmp_path / "one"), both["written"], methods={name})
    check_said(written_updates(tmp_path / "one"), both["said"])
    for metric in ("critic/explained_variance", "critic/value_loss"):
        one, two = (
            [e[metric] for e in log if metric in e]
            for log in (alone.state.log_history, both["metrics"])
        )
        assert one == pytest.approx(two, rel=1e-3)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return on_two_ranks("sharded", tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("name", SHARDED_CASES)
def test_sharded_parameters_get_the_gradient_of_the_union(tmp_path, sharded, name):
    check_gradients(alone_of(name, tmp_path), sharded["scripted"][name])


def check_gradients(alone, both):
    assert len(both["gradients"]) == len(alone.gradients.steps)
    for one, two in zip(alone.gradients.steps, both["gradients"], strict=True):
        assert_rounding(two, one, **SUMS)
    first, second = both["micro_batches"]
    assert first == second


def test_sharded_parameters_play_and_learn_as_replicated_ones(sharded, replicated):
    check_played(sharded["play"], replicated["play"])


def check_played(result, played):
    assert sorted(result["evaluated"]) == [(1_000_000 + i, 0) for i in range(3)]
    for metric in ("return", "turns/mean", "eval_return"):
        one, two = ([e[metric] for e in log["metrics"] if metric in e] for log in (result, played))
        assert one == pytest.approx(two)
        assert one
    # Three steps of a norm of .05 each.
    assert_rounding(result["weights"], played["weights"], scale=0.15, **SUMS)


@pytest.mark.parametrize("name", AGENTS)
def test_agents_on_two_ranks_are_played_and_trained_as_on_one(tmp_path, replicated, name):
    check_agents(tmp_path, name, replicated[name])


def test_agents_with_sharded_parameters_are_played_and_trained_as_on_one(tmp_path, sharded):
    check_agents(tmp_path, "agents", sharded["agents"])


def check_agents(folder, name, both):
    """The same tokens, sampled at endpoints of the ranks' own, and the same gradients."""
    alone = agent_run(name, folder, 8)
    alone.train()
    assert len(set(both["urls"])) == 2
    assert len(alone.episodes) == 16
    assert sorted(both["episodes"]) == sorted(alone.episodes)
    assert {one[2] for one in alone.episodes} == {"terminated"}
    assert len(both["gradients"]) == len(alone.gradients.steps) == 2
    for one, two in zip(alone.gradients.steps, both["gradients"], strict=True):
        assert_rounding(two, one, **SUMS)
    for one, two in zip(getattr(alone, "critic_gradients", []), both["critic"], strict=True):
        assert_rounding(two, one, **SUMS)
    for metric in ("return", "rollout/rewritten_rows", "tokens_per_episode"):
        one, two = (
            [e[metric] for e in log if metric in e]
            for log in (alone.state.log_history, both["metrics"])
        )
        assert one == pytest.approx(two)
        assert len(one) == 2


@pytest.mark.parametrize("kind", ["replicated", "sharded"])
def test_two_ranks_play_ahead_and_resume_as_one_process_does(tmp_path, request, kind):
    check_ahead(tmp_path, request.getfixturevalue(kind)["ahead"], make_trainer)


def check_ahead(folder, both, make):
    """A resumed run with the same bits, and the weights and metrics of one process."""
    assert largest_difference(both["whole"], both["resumed"]) == 0.0
    alone = make(folder, **AHEAD)
    alone.train()
    assert_rounding(both["trained"], dict(alone.model.named_parameters()), scale=0.25, **SUMS)
    for metric in ("return", "turns/mean", "eval_return", "rollout/staleness"):
        one, two = (
            [e[metric] for e in log if metric in e]
            for log in (alone.state.log_history, both["metrics"])
        )
        assert one == pytest.approx(two)
    assert [e[metric] for e in alone.state.log_history if metric in e] == [0, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("kind", "stored"), [("replicated", torch.float32), ("sharded", torch.bfloat16)]
)
def test_two_ranks_play_ahead_in_bfloat16_as_they_do_in_turn(request, kind, stored):
    check_ahead_half(request.getfixturevalue(kind)["ahead_half"], stored)


def check_ahead_half(result, stored):
    """The process has the precision of the gathered model, and autocast where it has: the same bits are played."""
    assert result["stored"] == {stored}
    assert result["autocast"] == result["wrapped"] == (stored == torch.float32)
    assert result["ahead"] == result["in_turn"]


def test_sharded_parameters_reach_a_vllm_server(sharded):
    check_vllm(sharded["vllm"])


def test_a_run_with_sharded_parameters_resumes_inside_a_generation(sharded):
    result = sharded["resume"]
    assert largest_difference(result["whole"], result["resumed"]) == 0.0
    assert largest_difference(result["whole"], result["saved"]) == 0.0
    before, inside, after, in_a_layer = result["looks"][0]
    assert result["looks"][0] == result["looks"][1]
    assert inside == 0
    assert before == after > 0
    assert in_a_layer
    assert result["reference"]


def test_sharded_bfloat16_weights_give_log_probabilities_in_float32(sharded):
    result = sharded["half"]
    assert result["stored"] == {torch.float32}
    assert result["computed"] == {torch.bfloat16}
    check_float32(result["logprob"])


def check_float32(logprob):
    assert logprob.dtype == torch.float32
    assert (logprob.bfloat16().float() != logprob).any()
