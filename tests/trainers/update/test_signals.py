"""The watch on what a method lives on: shares by hand, causes by name, warnings counted.

Mutations seen red: left-out episodes in the shares; groups that are not seen in the denominator; the response level
read from the trajectory's; a warning at every step; a second warning when a signal comes back and dies again within 50
steps; no patience; a new run that remembers the old one; the mean of one rank; rounding called spread; energies of
reasoning tokens; values where the critic is not trained; drift judged after the policy moved; bfloat16's limit for
float32.
"""

import logging
from types import SimpleNamespace

import pytest
import torch

from agentic_trl.batching import unsampled_row
from agentic_trl.environments.base import TextEnv
from agentic_trl.methods import DEFAULTS, METHODS
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.model.precision import LARGE_DRIFT, coarsest_precision
from agentic_trl.trainers.update.signal_causes import read_credit, read_critic
from agentic_trl.trainers.update.signal_needs import SIGNALS
from agentic_trl.trainers.update.signals import (
    SignalWatch,
    needed_signals,
    read_energy,
    spread_over_ranks,
)
from tests.helpers import plain_trajectory, plain_turn, table_of
from tests.tiny import make_model, make_trainer, scripted, scripted_trajectories
from tests.trainers.update.ppo_tools import make_ppo

WATCH, UPDATES = "agentic_trl.trainers.update.signals", "agentic_trl.trainers.update.step_log"


def knobs(advantage="grpo", **changes):
    """The part of a configuration that signals read."""
    base = {
        "advantage": advantage,
        "token_weighting": "uniform",
        "clip_normalization": "none",
        "planpo_alpha_start": 0.1,
        "planpo_alpha_end": 0.05,
        "planpo_response_group": "success",
        "gigpo_turn_weight": 1.0,
        "turn_gamma": 1.0,
        "actfocus_beta": 1.0,
    }
    return SimpleNamespace(**{**base, **changes})


def read(trajectories, advantage="grpo", **changes):
    table = table_of(trajectories)
    none = torch.zeros(len(table.turn_index), dtype=torch.float64)
    return read_credit(knobs(advantage, **changes), table, none, custom=False)


def group(number, scores, *, turns=1, valid=True):
    return [
        plain_trajectory(turns, group=number, score=score, success=score > 0, valid=valid)
        for score in scores
    ]


# Which signals


def test_every_kind_of_credit_weighting_and_normalization_names_what_it_lives_on():
    used = {
        (knob, {**DEFAULTS, **chosen}[knob])
        for chosen in (one.settings for one in METHODS.values())
        for knob in ("advantage", "token_weighting", "clip_normalization")
    }
    named = {(signal.knob, value) for signal in SIGNALS.values() for value in signal.values}
    assert used - named == {("token_weighting", "uniform"), ("clip_normalization", "none")}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("group_advantage",)),
        ({"advantage": "planpo"}, ("group_advantage", "response_advantage")),
        (
            {"advantage": "planpo", "planpo_alpha_start": 0.0, "planpo_alpha_end": 0.0},
            ("group_advantage",),
        ),
        ({"advantage": "gigpo"}, ("group_advantage", "state_advantage")),
        ({"advantage": "gigpo", "gigpo_turn_weight": 0.0}, ("group_advantage",)),
        ({"advantage": "step_gae"}, ("advantage", "value")),
        ({"token_weighting": "actfocus"}, ("group_advantage", "energy")),
        ({"token_weighting": "actfocus", "actfocus_beta": 0.0}, ("group_advantage",)),
        ({"clip_normalization": "relative"}, ("group_advantage", "clipped")),
    ],
)
def test_a_signal_is_needed_where_something_reads_it(changes, expected):
    assert needed_signals(knobs(**changes), custom=False) == expected


def test_a_users_advantage_takes_the_place_of_the_methods():
    chosen = knobs("planpo", clip_normalization="floor")
    assert needed_signals(chosen, custom=True) == ("advantage", "clipped")


# Shares and causes


def test_the_share_of_groups_whose_scores_differ():
    batch = [*group(0, [0.0, 0.0]), *group(1, [1.0, 0.0]), *group(2, [1.0, 1.0])]
    batch += [*group(3, [0.0, 0.5]), *group(7, [1.0, 0.0], valid=False)]
    # Groups 1 and 3 of the four that count; in group 2 the third episode is left out.
    batch += group(2, [0.0], valid=False)
    assert read(batch)["group_advantage"].share == 2 / 4


def test_a_batch_without_an_episode_that_counts_has_no_reading():
    assert read(group(0, [1.0, 0.0], valid=False)) == {}


@pytest.mark.parametrize(
    ("batch", "cause"),
    [
        (
            [s for g in range(8) for s in group(g, [0.0] * 4)],
            "all 8 groups have equal scores (0.0)",
        ),
        (
            [*group(0, [0.1, 0.1]), *group(1, [1.0, 1.0])],
            "in each of the 2 groups all episodes have the same score (from group to group 0.1 to 1.0)",
        ),
        (
            [*group(0, [0.1]), *group(1, [1.0]), *group(1, [0.0], valid=False)],
            "none of the 2 groups has two episodes that count, and one alone is compared with nothing",
        ),
    ],
)
def test_why_no_group_differs(batch, cause):
    found = read(batch)["group_advantage"]
    assert (found.share, found.cause) == (0, cause)


def test_planpo_without_a_success():
    batch = [
        plain_trajectory(2, group=0, score=0.4),
        plain_trajectory(1, group=0, score=0.2),
        plain_trajectory(1, group=0, score=9.0, success=True, valid=False),
    ]
    found = read(batch, "planpo")
    cause = (
        "no trajectory is a success, which planpo needs: success follows the score from `success_threshold` on, "
        "unless the environment says it itself (largest score 0.4)"
    )
    assert found.keys() == {"group_advantage", "response_advantage"}
    assert {(one.share, one.cause) for one in found.values()} == {(0, cause)}


def test_planpo_sees_turns_in_one_level_and_tokens_in_the_other():
    def win(number, *lengths):
        turns = [plain_turn(length=length) for length in lengths]
        return plain_trajectory(turns, group=number, score=1.0, success=True)

    # 0: 1 against 2 turns, all of 5 tokens; 1 and 4: one turn each, of 5 and 6 tokens; 2: all alike; 3: no success.
    batch = [win(0, 5), win(0, 5, 5), win(1, 5), win(1, 6), win(4, 5), win(4, 6)]
    batch += [win(2, 5), win(2, 5), *group(3, [0.0, 0.0])]
    found = read(batch, "planpo")
    assert found["group_advantage"].share == 1 / 5
    assert found["response_advantage"].share == 2 / 5
    alike = read(batch[6:], "planpo")
    assert alike["group_advantage"].cause == (
        "in each of the 2 groups all episodes have the same outcome per turn"
    )
    assert alike["response_advantage"].cause == (
        "in each group all responses that planpo compares have the same outcome per token"
    )


@pytest.mark.parametrize(
    ("states", "rewards", "share", "cause"),
    [
        ((3, 3), (1.0, 0.0), 1 / 2, None),
        (
            (-1, -1),
            (1.0, 0.0),
            0,
            "no turn names its state, which gigpo compares: define `state_key()`",
        ),
        ((3, 4), (1.0, 0.0), 0, "in no group any of the 3 states was met twice"),
        ((3, 3), (1.0, 1.0), 0, "in each state that was met twice all turns have the same return"),
    ],
)
def test_gigpos_anchors(states, rewards, share, cause):
    batch = [
        plain_trajectory([plain_turn(reward, state=state)], group=0, score=reward)
        for state, reward in zip(states, rewards, strict=True)
    ]
    alone = -1 if states[0] == -1 else 5  # a second group, whose only state is met once
    batch.append(plain_trajectory([plain_turn(1.0, state=alone)], group=1, score=1.0))
    found = read(batch, "gigpo")["state_advantage"]
    assert found.share == share
    assert cause is None or found.cause.startswith(cause)


def test_a_users_advantage_counts_the_turns_that_count():
    batch = [plain_trajectory(3), plain_trajectory(1), plain_trajectory(4, valid=False)]
    table = table_of(batch)
    advantage = torch.tensor([0.0, 2.0, 0.0, -1.0, 5.0, 5.0, 5.0, 5.0])
    found = read_credit(knobs(), table, advantage, custom=True)
    assert found["advantage"].share == 2 / 4
    dead = read_credit(knobs(), table, 0 * advantage, custom=True)["advantage"]
    assert dead.cause == "advantage_function gave 0 for each of the 4 turns that count"


def test_rounding_is_no_spread():
    near = torch.full((4,), -12.0)
    near[0] += 2e-6  # two units of the last place; the limit is 1e-6 of 12
    assert spread_over_ranks(near).share == 0
    found = spread_over_ranks(torch.tensor([1.0, 2.0, 3.0, 2.0]))
    assert (found.count, found.mean, found.share) == (4, 2.0, 2 / 4)
    assert spread_over_ranks(torch.zeros(0)).share == 0


def test_why_energies_are_dead():
    assert read_energy(torch.tensor([-3.0, -4.0])).share == 1
    flat = read_energy(torch.full((6,), -3.4339872))
    assert flat.share == 0
    assert flat.cause.startswith(
        "energies have no spread: the reference gives all 6 action tokens -3.434 nats"
    )
    assert read_energy(torch.zeros(0)).cause.startswith("no action token was sampled")


def critic_row(advantages, values, mask):
    """A row whose first token is given and whose others are sampled."""
    given = unsampled_row([7] * (len(advantages) + 1))
    return given.__class__(
        trajectory=0,
        input_ids=given.input_ids,
        turn_of_token=torch.tensor([-1] + [0] * len(advantages)),
        kind=given.kind,
        sampling_logprob=given.sampling_logprob,
        token_share=given.token_share,
        token_advantage=torch.tensor([0.0, *advantages]),
        old_value=torch.tensor([0.0, *values]),
        returns=torch.zeros(len(advantages) + 1),
        value_mask=torch.tensor([0, *mask]),
    )


def test_the_signals_of_a_critic_by_hand():
    rows = [critic_row([0.0, 1.0, -1.0], [1.0, 2.0, 7.0], [1, 1, 0]), critic_row([0.0], [3.0], [1])]
    found = read_critic(scripted_trajectories(4), rows)
    assert found["advantage"].share == 2 / 4
    # Values 1, 2 and 3 at the positions that are trained; their mean is 2.
    assert found["value"].share == pytest.approx(2 / 3)


def test_why_a_critic_is_dead():
    episodes = [one for one in scripted_trajectories(8) if one.score == 1.0]
    found = read_critic(episodes, [critic_row([0.0, 0.0], [0.5, 0.5], [1, 1])])
    assert found["advantage"].share == found["value"].share == 0
    assert f"all {len(episodes)} episodes have the score 1.0" in found["advantage"].cause
    assert "the same value (0.5)" in found["value"].cause
    assert read_critic(episodes, []) == {}


# When it speaks


def spoken(watch, wrong, **more):
    return [step for step, bad in enumerate(wrong) if watch.due("x", wrong=bad, step=step, **more)]


def test_it_speaks_once_and_then_every_50_steps():
    assert spoken(SignalWatch(), [True] * 120) == [0, 50, 100]
    assert spoken(SignalWatch(), [False] * 120) == []


def test_it_waits_for_as_many_dead_steps_in_a_row_as_are_legitimate():
    assert spoken(SignalWatch(), [True] * 60, patience=3) == [2, 52]
    assert spoken(SignalWatch(), [True, True, False] * 40, patience=3) == []


def test_what_comes_and_goes_is_said_no_more_often():
    assert spoken(SignalWatch(), [True, False] * 60) == [0, 50, 100]


def test_a_rollout_of_4_updates_is_heard_of_at_its_own_steps():
    watch = SignalWatch(updates=4)
    assert [s for s in range(0, 120, 4) if watch.due("x", wrong=True, step=s)] == [0, 52, 104]


def test_names_do_not_silence_each_other_and_a_new_run_starts_afresh():
    watch = SignalWatch()
    assert watch.due("x", wrong=True, step=7)
    assert watch.due("y", wrong=True, step=7)
    assert not watch.due("x", wrong=True, step=8)
    assert watch.due("x", wrong=True, step=0)


@pytest.mark.parametrize(("updates", "clipped", "value"), [(1, 1, 3), (4, 7, 9)])
def test_the_patience_of_what_starts_dead(updates, clipped, value):
    # So many steps in a row hold a whole rollout of 4 updates; values are judged in the third rollout.
    assert SIGNALS["clipped"].patience(updates) == clipped
    assert SIGNALS["value"].patience(updates) == value
    assert SIGNALS["group_advantage"].patience(updates) == 1


# Whole runs


class Fixed(TextEnv):
    """Earns nothing."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "w1 w2 w3", {}

    def step(self, action):
        return "w4", 0.0, True, False, {"success": False}


def warnings_of(caplog, name=WATCH):
    return [one.getMessage() for one in caplog.records if one.name == name]


def logged(trainer, name):
    return [e[name] for e in trainer.state.log_history if name in e]


@pytest.mark.trainer
@pytest.mark.parametrize(
    ("method", "names", "cause"),
    [
        ("grpo", "signal/group_advantage", "all 2 groups have equal scores (0.0)"),
        (
            "planpo",
            "signal/group_advantage and signal/response_advantage",
            "no trajectory is a success, which planpo needs: ",
        ),
    ],
)
def test_a_run_without_signal_says_so_once(tmp_path, caplog, method, names, cause):
    trainer = make_trainer(tmp_path, environment=Fixed, method=method, max_steps=2, max_turns=1)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    (message,) = warnings_of(caplog)
    assert message.startswith(f"Optimizer step 1: {names} is 0: {cause}")
    assert logged(trainer, "signal/group_advantage") == [0, 0]
    # Old and new log-probabilities agree: nothing is said of the sampler.
    assert warnings_of(caplog, UPDATES) == []


@pytest.mark.trainer
def test_actfocus_with_equal_energies_says_so_and_otherwise_logs_the_share(tmp_path, caplog):
    trajectories = scripted_trajectories()
    trainer = make_trainer(tmp_path, cls=scripted(trajectories), method="actfocus-grpo")
    trainer.train()
    assert logged(trainer, "signal/energy")[0] > 0.9
    assert warnings_of(caplog) == []
    model = make_model()
    model.lm_head.weight.data.zero_()  # all logits 0: each energy is -log(31) = -3.434
    trainer = make_trainer(
        tmp_path, model=model, cls=scripted(trajectories), method="actfocus-grpo"
    )
    trainer.train()
    (message,) = warnings_of(caplog)
    kinds = [k for one in trajectories for turn in one.turns for k in turn.token_kinds]
    assert message.startswith(
        "Optimizer step 1: signal/energy is 0: energies have no spread: the reference gives all "
        f"{kinds.count(2)} action tokens -3.434 nats"
    )


@pytest.mark.trainer
@pytest.mark.parametrize(
    ("iterations", "step", "cause"),
    [
        (1, 1, "a rollout serves one update, in which every ratio is 1"),
        (2, 3, "no ratio left the interval from 0.8 to 1.2"),
    ],
)
def test_sorl_that_never_clips_says_so_after_a_whole_rollout(
    tmp_path, caplog, iterations, step, cause
):
    # Every prompt and every seed of the rollout draws anew, so scores differ although nothing is learnt.
    trainer = make_trainer(
        tmp_path, method="so-grpo", num_iterations=iterations, max_steps=3, learning_rate=1e-9
    )
    trainer.train()
    messages = [one for one in warnings_of(caplog) if "signal/clipped" in one]
    assert len(messages) == 1
    assert messages[0].startswith(f"Optimizer step {step}: signal/clipped is 0: {cause}")
    assert logged(trainer, "signal/clipped") == [0] * 3


@pytest.mark.trainer
def test_the_share_of_clipped_units_is_that_of_both_sides(tmp_path, caplog):
    trainer = make_trainer(
        tmp_path,
        cls=scripted(scripted_trajectories()),
        method="so-grpo",
        num_iterations=2,
        epsilon=0.1,
    )
    trainer.train()
    sides = [logged(trainer, f"clip_ratio/{side}")[0] for side in ("low", "high")]
    assert min(sides) > 0
    assert logged(trainer, "signal/clipped") == [pytest.approx(sum(sides))]


@pytest.mark.trainer
def test_a_critic_at_its_start_is_not_missed_and_a_live_one_is_logged(tmp_path, caplog):
    trainer = make_ppo(tmp_path, scripted_trajectories())
    trainer.train()
    assert logged(trainer, "signal/value")[0] > 0.9
    assert logged(trainer, "signal/advantage")[0] > 0.9
    trainer = make_ppo(tmp_path, scripted_trajectories())
    trainer.critic.model.head.weight.data.zero_()
    trainer.train()
    assert logged(trainer, "signal/value") == [0]
    assert warnings_of(caplog) == []


@pytest.mark.trainer
def test_a_users_function_that_gives_nothing_is_named(tmp_path, caplog):
    trainer = make_trainer(tmp_path, cls=scripted(scripted_trajectories()))
    trainer.advantage_function = lambda table: torch.zeros_like(table.reward)
    trainer.train()
    assert "Optimizer step 1: signal/advantage is 0: advantage_function gave 0" in caplog.text
    assert logged(trainer, "signal/group_advantage") == []


# The sampler


@pytest.mark.parametrize(
    ("dtypes", "mixed", "precision"),
    [
        ([torch.float32], "no", "float32"),
        ([torch.float32], "bf16", "bfloat16"),
        (
            [torch.float32, torch.bfloat16],
            "no",
            "bfloat16",
        ),  # adapters in float32 on a base that is not
        ([torch.float16, torch.uint8], "no", "float16"),
        ([torch.float64], "no", "float32"),  # the sampler's are kept in float32
    ],
)
def test_the_coarsest_precision_counts(dtypes, mixed, precision):
    assert coarsest_precision(dtypes, mixed=mixed) == precision


def test_limits_follow_the_precision(monkeypatch):
    for name in ("float16", "bfloat16"):
        # Ten units of the last place at 1, rounded up to a power of ten.
        eps = torch.finfo(getattr(torch, name)).eps
        assert 10 * eps <= LARGE_DRIFT[name] < 100 * eps
    told = SimpleNamespace(fp32_precision="none")  # whatever a configuration before has set
    monkeypatch.setattr(torch.backends.cuda, "matmul", told)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert coarsest_precision([torch.float32], mixed="no") == "tf32"


@pytest.mark.trainer
def test_drift_is_judged_where_the_policy_has_not_moved(tmp_path, caplog):
    # The large steps move the policy far from the sampler's within a rollout, which is no fault.
    trainer = make_trainer(tmp_path, num_iterations=2, max_steps=3, learning_rate=0.3)
    trainer.train()
    moved = logged(trainer, "sampling/logprob_difference")
    assert moved[1] > 0.1
    assert moved[0] < 1e-5  # rounding of log-probabilities up to 5 in float32, some 1e-7
    assert warnings_of(caplog, UPDATES) == []


@pytest.mark.trainer
def test_a_sampler_that_is_not_the_policy_is_told_of(tmp_path, caplog):
    trainer = make_trainer(tmp_path, cls=scripted(scripted_trajectories()))
    trainer.train()
    (drift,) = logged(trainer, "sampling/logprob_difference")
    assert drift > 0.1  # the script's log-probabilities are made up
    (message,) = warnings_of(caplog, UPDATES)
    assert message.startswith(
        f"Optimizer step 1: sampling/logprob_difference is {drift:.4g} nats a token before"
    )
    assert "float32 explains 0.001 at most" in message


def test_a_trainer_counts_the_updates_of_a_rollout():
    args = AgenticGRPOConfig(
        "out",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        use_cpu=True,
        bf16=False,
    )
    trainer = SimpleNamespace(args=args, num_iterations=3)
    assert SignalWatch.of(trainer).updates == 6
