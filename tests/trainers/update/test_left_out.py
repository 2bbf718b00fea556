"""What is left out of the loss changes nothing that is kept: every method, every knob that leaves out.

Mutations seen red: cut episodes valid in the table; the group methods' table, or the critic's, without
the knob; whitening over all steps; PlanPO's outcome decided by left-out successes; GiGPO's anchors with
left-out steps; rows of left-out episodes.
"""

import dataclasses
import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trl.batching import build_rows
from agentic_trl.trainers.config.arguments import row_arguments
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.config.ppo import AgenticPPOConfig
from agentic_trl.trainers.update import credit
from agentic_trl.trainers.update.actfocus import weigh_rows
from agentic_trl.trainers.update.critic_credit import credit_rows
from agentic_trl.trainers.update.signals import SignalWatch
from agentic_trl.turn_table import is_left_out, turn_table
from agentic_trl.types import StopReason
from tests.tiny import scripted_trajectory

GROUP = [
    {"method": "grpo"},
    {"method": "dr-grpo"},
    {"method": "gspo"},
    {"method": "gigpo"},
    {"method": "planpo"},
    {"method": "planpo", "planpo_response_group": "active"},
    {"method": "so-grpo"},
    {"method": "actfocus-grpo"},
    {"method": "actfocus-grpo", "actfocus_renormalize": True},
]
CRITIC = [
    {"method": method, "whiten_advantages": white, "bootstrap_truncated": bootstrap}
    for method in ("ppo", "so-ppo", "steppo")
    for white in (True, False)
    for bootstrap in (True, False)
]
FATES = ["kept", "failed", "limit", "cut answer"]


def config(cls, knobs):
    return cls("unused", use_cpu=True, bf16=False, report_to="none", **knobs)


def episode(seed, index, fate):
    """Random content, of which the fate alone says whether it is left out."""
    rng = random.Random(seed)
    one = scripted_trajectory(rng, index // 4, index % 4)
    turns = [
        dataclasses.replace(turn, reward=rng.uniform(-2, 2), state_key=rng.choice(["x", "y", None]))
        for turn in one.turns
    ]
    if fate == "cut answer":
        turns[-1] = dataclasses.replace(turns[-1], truncated=True)
    stops = {"failed": StopReason.ENVIRONMENT_ERROR, "limit": StopReason.TOKEN_LIMIT}
    return dataclasses.replace(
        one,
        turns=tuple(turns),
        stop=stops.get(fate, StopReason.TERMINATED),
        score=rng.choice([-1.0, 0.0, 1.0, rng.uniform(-9, 9)]),
    )


def stub(args):
    return SimpleNamespace(
        args=args,
        advantage_function=None,
        num_iterations=1,
        state=SimpleNamespace(global_step=1, max_steps=4),
        accelerator=SimpleNamespace(
            process_index=0,
            device="cpu",
            is_main_process=False,
            reduce=lambda tensor, reduction: tensor,
        ),
        _metrics={"train": defaultdict(list)},
        signals=SignalWatch(),
    )


def numbers(row):
    """Floats that are a function of the row's content."""
    return torch.sin(row.input_ids.double() * (1 + torch.arange(len(row)))).float()


def group_credit(args, batch):
    rows = build_rows(batch, **row_arguments(args))
    trainer = stub(args)
    rows = credit.group_credit(trainer, batch, rows)
    if args.token_weighting == "actfocus":
        rows = weigh_rows(trainer, batch, rows, [numbers(row) for row in rows])
    return rows


def critic_credit(args, batch):
    rows = build_rows(batch, **row_arguments(args))
    bootstrap = torch.tensor([one.score / 3 for one in batch])  # differs with what is left out
    values = [numbers(row) for row in rows]
    credited, _ = credit_rows(
        stub(args), batch, rows, values, bootstrap=bootstrap if args.bootstrap_truncated else None
    )
    return credited


def kept_bits(rows):
    """Everything of the rows but the numbers of their turns."""
    named = [{f.name: getattr(row, f.name) for f in dataclasses.fields(row)} for row in rows]
    numbered = {"turn_of_token", "first_turn"}
    parts = [{"parts": list(row.parts.values())} for row in rows]  # by the numbers of turns
    bare = [{k: v for k, v in one.items() if k not in numbered} for one in named]
    return [one | its for one, its in zip(bare, parts, strict=True)]


def assert_equal_bits(one, other):
    assert [row.keys() for row in one] == [row.keys() for row in other]
    for a, b in zip(one, other, strict=True):
        for name in a:
            same = torch.equal(a[name], b[name]) if torch.is_tensor(a[name]) else a[name] == b[name]
            assert same, name


@pytest.mark.parametrize(
    ("credit", "cls", "knobs"),
    [(group_credit, AgenticGRPOConfig, k) for k in GROUP]
    + [(critic_credit, AgenticPPOConfig, k) for k in CRITIC],
)
def test_left_out_episodes_change_nothing_that_is_kept(credit, cls, knobs):
    @settings(max_examples=8)
    @given(
        st.lists(st.sampled_from(FATES), min_size=8, max_size=8),
        st.booleans(),
        st.integers(0, 10**6),
    )
    def check(fates, mask, seed):
        args = configs[mask]
        batch = [episode(seed + i, i, fate) for i, fate in enumerate(fates)]
        others = [
            episode(seed + 100 + i, i, fate) if is_left_out(one, skip_truncated=mask) else one
            for (i, fate), one in zip(enumerate(fates), batch, strict=True)
        ]
        assert_equal_bits(kept_bits(credit(args, batch)), kept_bits(credit(args, others)))

    configs = [config(cls, {**knobs, "mask_truncated_completions": m}) for m in (False, True)]
    check()


def test_what_is_left_out_by_hand():
    batch = [episode(i, i, fate) for i, fate in enumerate(FATES)]
    assert turn_table(batch).valid.tolist() == [True, False, True, True]
    assert turn_table(batch, skip_truncated=True).valid.tolist() == [True, False, False, False]


def test_whitening_is_that_of_the_kept_steps_alone():
    # Two kept episodes of one turn that earn 1 and 3 over values of 0, a cut one of 100: 1 and 3 have mean 2
    # and sample standard deviation sqrt 2.
    args = config(AgenticPPOConfig, {"method": "steppo", "mask_truncated_completions": True})
    batch = []
    for i, (fate, reward) in enumerate([("kept", 1.0), ("cut answer", 100.0), ("kept", 3.0)]):
        one = episode(i, i, fate)
        turns = (dataclasses.replace(one.turns[-1], reward=reward, extends=False),)
        batch.append(dataclasses.replace(one, turns=turns, score=reward))
    rows = build_rows(batch, **row_arguments(args))
    credited, _ = credit_rows(
        stub(args), batch, rows, [torch.zeros(len(row)) for row in rows], bootstrap=None
    )
    found = [row.token_advantage[row.turn_of_token >= 0][0].item() for row in credited]
    assert found == pytest.approx([-(2**-0.5), 2**-0.5], rel=1e-6)
