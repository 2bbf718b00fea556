"""Builders shared by the tests: plain trajectories, tables made of them, and inputs of a loss.

A plain trajectory is a ``dict(group, score, success, valid, turns)`` and a plain turn a
``dict(reward, length, state, value)``, as ``tests.reference`` reads them.
"""

import dataclasses

import torch
from hypothesis import strategies as st

from agentic_trl.types import LossInputs, TurnTable


def plain_turn(reward=0.0, *, length=1, state=-1, value=0.0):
    return {"reward": reward, "length": length, "state": state, "value": value}


def plain_trajectory(turns, *, group=0, score=0.0, success=False, valid=True):
    """A trajectory of ``turns``: plain turns, or a number of turns without reward."""
    turns = [plain_turn() for _ in range(turns)] if isinstance(turns, int) else turns
    return {"group": group, "score": score, "success": success, "valid": valid, "turns": turns}


def table_of(trajectories, *, dtype=torch.float64):
    """The ``TurnTable`` of plain trajectories."""
    places = [
        (i, t) for i, trajectory in enumerate(trajectories) for t in range(len(trajectory["turns"]))
    ]
    turns = [trajectories[i]["turns"][t] for i, t in places]

    def integers(numbers):
        return torch.tensor(numbers, dtype=torch.long)

    def floats(numbers):
        return torch.tensor(numbers, dtype=dtype)

    return TurnTable(
        trajectory=integers([i for i, _ in places]),
        turn_index=integers([t for _, t in places]),
        reward=floats([turn["reward"] for turn in turns]),
        length=integers([turn["length"] for turn in turns]),
        value=floats([turn["value"] for turn in turns]),
        state=integers([turn["state"] for turn in turns]),
        group=integers([t["group"] for t in trajectories]),
        score=floats([t["score"] for t in trajectories]),
        success=torch.tensor([t["success"] for t in trajectories], dtype=torch.bool),
        valid=torch.tensor([t["valid"] for t in trajectories], dtype=torch.bool),
    )


REWARDS = st.sampled_from([0.0, 0.0, 1.0, -0.1, 0.5, 10.0, 10 / 3])
"""Few values, so that ties and groups without spread are common."""

plain_turns = st.builds(
    plain_turn,
    REWARDS,
    length=st.sampled_from([0, 1, 1, 7, 33, 90]),
    state=st.integers(-1, 2),
    value=st.sampled_from([0.0, 0.25, -1.5, 10.0]),
)
plain_trajectories = st.builds(
    plain_trajectory,
    st.lists(plain_turns, max_size=6),
    group=st.sampled_from([0, 1, 4]),
    score=st.sampled_from([10.0, 10.0, 0.0, 3.5]),
    success=st.booleans(),
    valid=st.sampled_from([True, True, True, False]),
)
batches = st.lists(plain_trajectories, min_size=1, max_size=12)
"""Batches with failures, ties, singletons, trajectories that do not count, and empty ones."""


def assert_near(actual, expected, tolerance=1e-9):
    """Compare a float64 tensor with a tensor, a number or nested lists, absolute and relative."""
    assert actual.dtype == torch.float64, actual.dtype
    expected = torch.as_tensor(expected, dtype=actual.dtype).expand_as(actual)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


TURNS = [
    [-1, 0, 0, 0, -1, -1, 1, 1, -1, 2],
    [-1, -1, 3, -1, 4, 4, 4, 4, -1, -1],
    [5, 5, -1, 6, -1, -1, -1, -1, -1, -1],
]
"""Three rows: three turns, two turns and two turns, of unequal lengths, glue between, padding after."""


def loss_inputs(log_ratio, advantage, *, turns=TURNS, share=1.0, denominator=1.0, **more):
    """Inputs whose token log-ratio is ``log_ratio``, with a leaf ``logprob`` that takes gradients."""
    turn_of_token = torch.tensor(turns)
    old = -1.0 - 0.1 * torch.arange(turn_of_token.numel(), dtype=torch.float64).view_as(
        turn_of_token
    )

    def full(x):
        return torch.as_tensor(x, dtype=torch.float64).expand(turn_of_token.shape).clone()

    return LossInputs(
        logprob=(old + full(log_ratio)).requires_grad_(),
        old_logprob=old,
        token_advantage=full(advantage),
        turn_of_token=turn_of_token,
        token_share=full(share),
        denominator=denominator,
        **more,
    )


def random_inputs(seed=0, *, turns=TURNS, spread=0.3, optional=True):
    """Inputs with every field set to something uneven."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(turns), len(turns[0]))

    def normal():
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    more = {}
    if optional:
        more = {
            "ref_logprob": -1 + 0.5 * normal(),
            "token_weight": normal().abs(),
            "correction": normal().abs(),
            "entropy": normal().abs(),
        }
    return loss_inputs(
        spread * normal(), normal(), turns=turns, share=normal().abs(), denominator=7.0, **more
    )


def map_fields(inputs, change):
    """Apply ``change(name, tensor)`` to every float tensor of ``inputs``; ``logprob`` stays a leaf."""
    new = {}
    for field in dataclasses.fields(inputs):
        old = vars_of(inputs)[field.name]
        new[field.name] = change(field.name, old.detach()) if torch.is_tensor(old) else old
    new["logprob"] = new["logprob"].clone().requires_grad_()
    return LossInputs(**new)


def vars_of(inputs):
    return {field.name: inputs.__getattribute__(field.name) for field in dataclasses.fields(inputs)}
