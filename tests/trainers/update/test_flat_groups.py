"""What a flat group is, by hand; and that dropping rows without advantage changes what is computed and nothing else.

Mutations seen red: advantages of episodes that do not count seen; groups without a counted episode taken for lively, or
into the share; all rows computed with "drop"; the denominator of the computed rows; ACTFOCUS's statistics of the computed
rows; rows with an advantage dropped; old log-probabilities of all rows; means of the log over all units, and clip shares
over the computed ones; a mean over nothing logged; each refusal left out.
"""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from agentic_trl import AgenticGRPOConfig, AgenticPPOConfig
from agentic_trl.algorithms.gigpo import gigpo_advantage
from agentic_trl.algorithms.grpo import grpo_advantage
from agentic_trl.algorithms.planpo import planpo_advantage
from agentic_trl.trainers.update import rows as rows_of_update
from agentic_trl.trainers.update.credit import find_flat
from agentic_trl.trainers.update.flat_groups import FlatGroups, flat_groups
from agentic_trl.trainers.update.step_log import over_computed
from agentic_trl.turn_table import turn_table
from agentic_trl.types import StopReason
from tests.helpers import plain_trajectory, plain_turn, table_of
from tests.tiny import largest_difference, make_trainer, scripted, scripted_trajectories
from tests.tolerances import EXACT
from tests.trainers.update.test_load_balancing import mixture

pytestmark = pytest.mark.trainer


def episode(group, score, *, lengths=(4,), states=None, rewards=None, valid=True):
    rewards = rewards or [0.0] * (len(lengths) - 1) + [score]
    states = states or [-1] * len(lengths)
    turns = [
        plain_turn(reward, length=length, state=state)
        for reward, length, state in zip(rewards, lengths, states, strict=True)
    ]
    return plain_trajectory(turns, group=group, score=score, success=score > 0, valid=valid)


def found(episodes, rule, **knobs):
    table = table_of(episodes)
    advantage = rule(table, **knobs)
    return flat_groups(table, advantage[table.trajectory] if rule is grpo_advantage else advantage)


MIXED = [
    *(episode(0, 1.0), episode(0, 1.0)),  # equal
    *(episode(1, 1.0), episode(1, 0.0)),
    *(episode(2, 1.0), episode(2, 0.0, valid=False)),  # one that counts has nobody to differ from
    *(episode(3, 1.0, valid=False), episode(3, 0.0, valid=False)),  # nobody counts
]


def test_flat_groups_of_grpo():
    # Groups 0, 2 and 3; of the groups 0, 1 and 2, in which an episode counts, two are flat.
    assert found(MIXED, grpo_advantage) == FlatGroups(groups=[0, 2, 3], share=2 / 3)


def test_no_share_where_no_episode_counts():
    assert found(MIXED[-2:], grpo_advantage) == FlatGroups(groups=[3], share=None)


def test_groups_of_planpo_with_equal_scores_are_flat_only_if_turns_and_lengths_are_equal():
    equal = [episode(0, 1.0, lengths=(4, 4)) for _ in range(2)]
    fewer_turns = [episode(1, 1.0, lengths=(4, 4)), episode(1, 1.0, lengths=(4,))]
    shorter = [episode(2, 1.0, lengths=(4, 4)), episode(2, 1.0, lengths=(4, 2))]
    failed = [episode(3, 0.0, lengths=(4, 4)), episode(3, 0.0, lengths=(1,))]
    batch = [*equal, *fewer_turns, *shorter, *failed]
    assert found(batch, planpo_advantage, alpha=0.1).groups == [0, 3]
    assert found(batch, planpo_advantage, alpha=0.0).groups == [0, 2, 3]
    assert found(batch, grpo_advantage).groups == [0, 1, 2, 3]


def test_groups_of_gigpo_with_equal_scores_live_on_their_states():
    # From state 7 the first pair gets 1 now or, discounted, .5: an A^S off 0, whatever the scores.
    apart = [
        episode(0, 1.0, lengths=(1, 1), states=[7, -1], rewards=[1.0, 0.0]),
        episode(0, 1.0, lengths=(1, 1), states=[7, -1], rewards=[0.0, 1.0]),
    ]
    strangers = [
        dict(one, group=1, turns=[dict(t, state=-1) for t in one["turns"]]) for one in apart
    ]
    assert found([*apart, *strangers], gigpo_advantage, gamma=0.5).groups == [1]


def test_flat_groups_of_a_users_function_over_the_episodes_that_count():
    trajectories = scripted_trajectories(16)
    trajectories[0] = dataclasses.replace(trajectories[0], stop=StopReason.TIMEOUT)

    def mine(table):
        # 1 in the failed episode of group 0, NaN in group 1, 2 in the last turn of group 3.
        advantage = torch.zeros(len(table.turn_index))
        advantage[0], advantage[-1] = 1.0, 2.0
        advantage[table.group[table.trajectory] == 1] = torch.nan
        return advantage

    stub = SimpleNamespace(
        args=SimpleNamespace(mask_truncated_completions=False), advantage_function=mine
    )
    assert find_flat(stub, trajectories) == FlatGroups(groups=[0, 2], share=2 / 4)


# Drop


def with_flat(*flat, count=12):
    """Episodes in groups of four; those of ``flat`` fail without a reward."""
    return [
        dataclasses.replace(
            one,
            success=False,
            score=0.0,
            turns=tuple(dataclasses.replace(turn, reward=0.0) for turn in one.turns),
        )
        if one.group in flat
        else one
        for one in scripted_trajectories(count)
    ]


def run(tmp_path, trajectories, cls=scripted, **changes):
    knobs = {"per_device_train_batch_size": 12, "optim": "sgd", "learning_rate": 0.1, **changes}
    rows = []

    class Counted(cls(trajectories)):
        def policy_loss(self, model, micro):
            rows.append(int((micro.batch.turn_of_token >= 0).any(1).sum()))
            return super().policy_loss(model, micro)

    trainer = make_trainer(tmp_path, cls=Counted, **knobs)
    trainer.train()
    trainer.computed = sum(rows)
    return trainer


def logged(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]


MEANS = {"ratio/mean", "entropy", "sampling/logprob_difference", "computed_share"}
TIMES = {"step_time"}

CASES = {
    "grpo": {},
    "dr-grpo": {"method": "dr-grpo"},
    "gspo": {"method": "gspo"},
    "planpo": {"method": "planpo"},
    "gigpo": {"method": "gigpo"},
    "actfocus": {"method": "actfocus-grpo"},
    "actfocus renormalized": {"method": "actfocus-grpo", "actfocus_renormalize": True},
    "actfocus updated": {
        "method": "actfocus-grpo",
        "num_iterations": 2,
        "max_steps": 2,
        "old_logprobs": "recomputed",
    },
    "several updates": {"num_iterations": 3, "max_steps": 3},
    "sorl": {"method": "so-grpo", "num_iterations": 2, "max_steps": 2, "epsilon": 0.1},
    "sorl proxy": {
        "method": "so-grpo",
        "sorl_norm": "proxy",
        "num_iterations": 2,
        "max_steps": 2,
        "epsilon": 0.1,
    },
    "masked": {"mask_truncated_completions": True},
    "trees": {"share_prefixes": True},
    "small passes": {"max_tokens_per_microbatch": 40},
    "accumulated": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 6},
    "several steps": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 3,
        "max_steps": 3,
    },
}


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("name", CASES)
def test_dropping_rows_leaves_every_gradient_as_it_is(tmp_path, name):
    trajectories = with_flat(1)
    if name == "masked":
        cut = dataclasses.replace(trajectories[0].turns[-1], truncated=True)
        turns = (*trajectories[0].turns[:-1], cut)
        trajectories[0] = dataclasses.replace(trajectories[0], turns=turns)
    keep = run(tmp_path, trajectories, **CASES[name])
    drop = run(tmp_path, trajectories, flat_groups="drop", **CASES[name])
    assert len(keep.gradients.steps) == keep.state.max_steps
    for one, other in zip(keep.gradients.steps, drop.gradients.steps, strict=True):
        assert max(g.abs().max() for g in one.values()) > 1e-4  # a gradient, no rounding
        assert largest_difference(one, other) < EXACT
    updates = CASES[name].get("num_iterations", 1)
    assert keep.computed == updates * (12 - (name == "masked"))
    assert drop.computed == keep.computed - updates * 4
    for one, other in zip(logged(keep), logged(drop), strict=True):
        same = one.keys() - MEANS - TIMES
        assert {k: other[k] for k in same} == pytest.approx({k: one[k] for k in same}, abs=EXACT)


@pytest.mark.usefixtures("doubles")
def test_a_row_with_any_advantage_stays(tmp_path):
    """GiGPO gives episodes of equal scores advantages where states meet; here each turn is a row."""
    trajectories = [
        dataclasses.replace(one, success=False, score=0.0)
        for one in scripted_trajectories(12, one_row=False)
    ]
    keep = run(tmp_path, trajectories, method="gigpo", scale_rewards="none")
    drop = run(tmp_path, trajectories, method="gigpo", scale_rewards="none", flat_groups="drop")
    assert largest_difference(keep.gradients.steps[0], drop.gradients.steps[0]) < EXACT
    advantage = gigpo_advantage(turn_table(trajectories), gamma=0.95, scale="none")
    assert drop.computed == int((advantage != 0).sum()) < keep.computed == len(advantage)


@pytest.mark.usefixtures("doubles")
def test_means_of_the_log_are_those_of_what_was_computed(tmp_path):
    """The same as a run on the other groups alone, for whose tokens alone they speak; clip shares stay those of all."""
    trajectories = with_flat(1)
    knobs = {"num_iterations": 2, "epsilon": 0.05, "flat_groups": "drop"}
    (dropped,) = logged(run(tmp_path, trajectories, **knobs))
    others = [
        dataclasses.replace(one, group=min(one.group, 1)) for one in trajectories if one.group != 1
    ]
    knobs |= {"flat_groups": "keep", "per_device_train_batch_size": 8}
    (alone,) = logged(run(tmp_path, others, **knobs))
    means = MEANS - {"computed_share"}
    assert {k: dropped[k] for k in means} == pytest.approx({k: alone[k] for k in means}, abs=EXACT)
    tokens = [sum(one.sampled_tokens for one in some) for some in (others, trajectories)]
    assert dropped["computed_share"] == pytest.approx(tokens[0] / tokens[1], abs=EXACT)
    assert "computed_share" not in alone
    assert alone["clip_ratio/low"] + alone["clip_ratio/high"] > 0
    for name in ("clip_ratio/low", "clip_ratio/high"):
        assert dropped[name] == pytest.approx(alone[name] * tokens[0] / tokens[1], abs=EXACT)


def test_sums_of_nothing_are_no_means():
    sums = {"ratio": 0.0, "entropy": 0.0, "drift": 0.0, "clip_low": 0.0, "computed": 0.0}
    assert over_computed(sums) == {"clip_low": 0.0, "computed": 0.0}
    assert over_computed({"ratio": 0.5, "clip_low": 0.5}) == {"ratio": 0.5, "clip_low": 0.5}


@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_a_step_without_rows_is_taken_as_with_all_of_them(tmp_path, optim):
    """In its second generation all groups are flat: the gradient is exactly 0, and Adam goes on by its momentum."""

    def turning_flat(trajectories):
        class Turning(scripted(trajectories)):
            def play(self, starts, **more):
                self.__class__.generation += 1
                played = super().play(starts, **more)
                flat = with_flat(0, 1, 2)
                return flat if self.__class__.generation == 2 else played

            generation = 0

        return Turning

    runs, weights = [], []
    for choice in ("keep", "drop"):
        trainer = run(
            tmp_path / choice,
            scripted_trajectories(12),
            cls=turning_flat,
            optim=optim,
            learning_rate=1e-3,
            max_steps=2,
            flat_groups=choice,
            save_strategy="steps",
            save_steps=1,
        )
        runs.append(trainer)
        weights.append({n: p.detach() for n, p in trainer.model.named_parameters()})
    before = torch.load(tmp_path / "drop" / "checkpoint-1" / "optimizer.pt", weights_only=False)
    assert before["state"] or optim == "sgd"
    for trainer in runs:
        assert all((g == 0).all() for g in trainer.gradients.steps[1].values())
    first, second = (set(t.gradients.steps[1]) for t in runs)
    assert first == second == {n for n, _ in runs[0].model.named_parameters()}
    # 1e-6 is the promise of the page; a step of Adam moves by 1e-3.
    assert largest_difference(*weights) <= 1e-6
    assert runs[1].computed == 12
    last = logged(runs[1])[-1]
    assert last["computed_share"] == last["clip_ratio/low"] == last["loss"] == 0.0
    assert last["groups/no_advantage"] == 1.0
    assert not last.keys() & (MEANS - {"computed_share"})


def test_log_probabilities_of_the_rollout_are_computed_for_the_same_rows(tmp_path, monkeypatch):
    """Where the sampler's are not exact, they are one more pass."""
    seen, original = [], rows_of_update.token_logprobs

    def counted(model, batch, **more):
        seen.append(len(batch.input_ids))
        return original(model, batch, **more)

    monkeypatch.setattr(rows_of_update, "in_float32", lambda trainer: False)
    monkeypatch.setattr(rows_of_update, "token_logprobs", counted)
    gradients = []
    for choice, count in (("keep", 12), ("drop", 8)):
        seen.clear()
        trainer = run(tmp_path, with_flat(1), num_iterations=2, max_steps=2, flat_groups=choice)
        assert sum(seen) == count
        gradients.append(trainer.gradients.steps)
        assert sum(len(one.rows) for one in trainer.buffered_sets) == 12
    for one, other in zip(*gradients, strict=True):
        # In float32: rows lie in other micro-batches, gradients sum some 300 tokens.
        assert largest_difference(one, other) < 1e-6


@pytest.mark.parametrize(
    ("cls", "knobs", "sentence"),
    [
        (AgenticGRPOConfig, {"flat_groups": "skip"}, "flat_groups: got 'skip'"),
        (AgenticGRPOConfig, {"flat_groups": "drop", "beta": 0.1}, "'drop' with beta=0.1"),
        (AgenticGRPOConfig, {"flat_groups": "drop", "entropy_coef": 0.1}, "with entropy_coef=0.1"),
        (AgenticPPOConfig, {"flat_groups": "drop"}, "flat_groups='drop' with a critic"),
        (AgenticPPOConfig, {"flat_groups": "refill"}, "flat_groups='refill' with a critic"),
        (AgenticGRPOConfig, {"max_refills": 3}, "max_refills=3 is read by flat_groups='refill'"),
        (AgenticGRPOConfig, {"flat_groups": "refill", "max_refills": 0}, "max_refills"),
    ],
)
def test_what_is_refused(tmp_path, cls, knobs, sentence):
    with pytest.raises(ValueError, match=sentence):
        cls(str(tmp_path), use_cpu=True, bf16=False, **knobs)


def test_a_mixture_of_experts_drops_nothing_that_its_router_is_trained_on(tmp_path):
    with pytest.raises(ValueError, match=r"flat_groups='drop' with router_aux_loss_coef=0\.5"):
        make_trainer(tmp_path, model=mixture(0.5), flat_groups="drop")
    make_trainer(tmp_path, model=mixture(0.0), flat_groups="drop")


def test_refill_computes_flat_rows_that_have_another_term(tmp_path):
    """All groups are flat and stay so."""
    trajectories = with_flat(0, 1, 2)
    knobs = {"flat_groups": "refill", "max_refills": 1}
    assert run(tmp_path, trajectories, **knobs).computed == 0
    assert run(tmp_path, trajectories, beta=0.1, **knobs).computed == 12


def test_a_trainer_with_a_credit_of_its_own_is_not_refilled(tmp_path):
    class Own(scripted(scripted_trajectories())):
        def assign_credit(self, trajectories, rows):
            return list(rows)

    make_trainer(tmp_path, cls=Own, flat_groups="drop")
    with pytest.raises(ValueError, match=r"flat_groups='refill' with Own\.assign_credit"):
        make_trainer(tmp_path, cls=Own, flat_groups="refill")
