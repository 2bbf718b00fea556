"""GAE follows the turns in the order in which they were taken, whatever rows hold them.

Mutations seen red: tokens in the order of the rows; the final context that of the last row; a turn that goes into the
row of the turn before it, whatever its conversation.
"""

import dataclasses

import pytest
import torch

from agentic_trl.batching import build_rows
from agentic_trl.sampled_tokens import SampledTokens, step_credit, token_credit
from agentic_trl.trainers.update.critic_credit import _final_row
from agentic_trl.turn_table import turn_table
from agentic_trl.types import StopReason
from tests.reference.returns import gae
from tests.test_batching import APPENDED, TALKS
from tests.tolerances import EXACT

pytestmark = pytest.mark.usefixtures("doubles")

REWARDED = dataclasses.replace(
    TALKS,
    score=15.0,  # the sum of the rewards
    turns=tuple(dataclasses.replace(turn, reward=float(i)) for i, turn in enumerate(TALKS.turns)),
)
EPISODES = [APPENDED, REWARDED, REWARDED]
VALUES = {1: 0.5, 2: -1.0, 3: 2.0, 4: 0.25, 5: 1.5, 6: -0.75, 7: 3.0}
"""Value before each sampled id; those of TALKS are 1 to 7 in the order in which they were sampled."""
GAMMA, LAM = 0.9, 0.8
KNOBS = {"gamma": GAMMA, "lam": LAM, "bootstrap": None}


def collected():
    rows = build_rows(EPISODES)
    values = [
        torch.tensor([VALUES.get(i, 99.0) for i in row.input_ids.tolist()], dtype=torch.float64)
        for row in rows
    ]
    return rows, SampledTokens.of(rows, values)


def test_tokens_lie_in_the_order_in_which_they_were_sampled():
    rows, tokens = collected()
    ids = [int(rows[r].input_ids[p]) for r, p in zip(tokens.row, tokens.position, strict=True)]
    assert ids == [1, 2, 3, 4, 5, 6, *range(1, 8), *range(1, 8)]
    assert tokens.turn.tolist()[6:13] == [3, 4, 4, 5, 6, 7, 8]
    laid = tokens.laid_out(torch.arange(20), rows)
    assert [one.tolist() for one in laid[1:4]] == [
        [0, 0, 6, 0, 9, 0, 12],
        [0, 7, 8, 0, 10],
        [0, 11],
    ]


def test_gae_over_tokens_follows_time():
    _, tokens = collected()
    credit = token_credit(tokens, turn_table(EPISODES), **KNOBS)
    # The reward of a turn is at its last token; the second turn has two.
    rewards = [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    advantages, returns = gae(rewards, list(VALUES.values()), GAMMA, LAM)
    for first in (6, 13):
        assert credit.advantage[first : first + 7].tolist() == pytest.approx(advantages, abs=EXACT)
        assert credit.returns[first : first + 7].tolist() == pytest.approx(returns, abs=EXACT)


def test_gae_over_turns_follows_time():
    _, tokens = collected()
    credit = step_credit(tokens, turn_table(EPISODES), **KNOBS)
    values = [VALUES[i] for i in (1, 2, 4, 5, 6, 7)]  # before the first token of each turn
    advantages, returns = gae([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], values, GAMMA, LAM)
    for first in (3, 9):
        assert credit.advantage[first : first + 6].tolist() == pytest.approx(advantages, abs=EXACT)
        assert credit.returns[first : first + 6].tolist() == pytest.approx(returns, abs=EXACT)
    assert credit.trained.tolist()[6:13] == [True, True, False, True, True, True, True]


def test_a_cut_episode_goes_on_from_the_conversation_of_its_last_turn():
    cut = dataclasses.replace(TALKS, stop=StopReason.TURN_LIMIT, final_observation_ids=(54, 55))
    assert _final_row(cut).input_ids.tolist() == [50, 51, 1, 52, 4, 53, 7, 54, 55]
    rewritten = dataclasses.replace(cut, turns=cut.turns[:5])
    assert _final_row(rewritten).input_ids.tolist() == [70, 6, 54, 55]
    anew = dataclasses.replace(cut, final_extends=False)
    assert _final_row(anew).input_ids.tolist() == [54, 55]
