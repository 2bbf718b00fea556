"""Two states, two actions, a table of logits: the smallest problem on which credit can be judged.

``goal="right"``: in state 0 the action 0 goes on and the action 1 loses; in state 1 the action 1 wins
and the action 0 loses. ``goal="short"``: nobody loses; the right action of the state moves on, the
other one stays, and an episode that has not won after ``LIMIT`` turns has failed. The best policy
takes the right action, 0 in state 0 and 1 in state 1, with probability 1 in both problems.
"""

import random

import torch

from agentic_trl.ops.returns import spread_turns
from agentic_trl.ops.surrogate import policy_loss
from agentic_trl.types import LossInputs
from tests.helpers import plain_trajectory, plain_turn, table_of

LIMIT = 16
GROUPS, MEMBERS = 4, 8


def play(probability, goal, rng, group):
    """An episode, and its states and actions."""
    state, path, won = 0, [], False
    for _ in range(LIMIT):
        action = int(rng.random() < probability[state])
        path.append((state, action))
        if action != state:
            if goal == "right":
                break
            continue
        if state == 1:
            won = True
            break
        state = 1
    turns = [plain_turn(length=1, state=s) for s, _ in path]
    return plain_trajectory(turns, group=group, score=10.0 * won, success=won), path


def learn(advantage, *, goal, shuffle=False, updates=60, seed=0):
    """Train with ``advantage(table) -> [turn]``; return the probability of each state's right action.

    ``shuffle`` is the control: each trajectory gets the advantages of another one, at random.
    """
    rng = random.Random(seed)
    logits = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=2.0)
    for _ in range(updates):
        chance = logits.detach().softmax(1)[:, 1].tolist()
        episodes = [play(chance, goal, rng, g) for g in range(GROUPS) for _ in range(MEMBERS)]
        table = table_of([trajectory for trajectory, _ in episodes])
        credit = advantage(table)
        if shuffle:
            first = table.turns_per_trajectory.cumsum(0) - table.turns_per_trajectory
            other = list(range(len(episodes)))
            rng.shuffle(other)
            credit = credit[first][torch.tensor(other)][table.trajectory]
        turns = torch.full((len(episodes), LIMIT + 1), -1)  # column 0 is the prompt
        state, action = turns.clamp(min=0), turns.clamp(min=0)
        number = 0
        for row, (_, path) in enumerate(episodes):
            for column, (s, a) in enumerate(path, start=1):
                turns[row, column], state[row, column], action[row, column] = number, s, a
                number += 1
        old = None
        for _ in range(2):  # the second pass is off-policy, so that clipping acts
            logprob = logits.log_softmax(1)[state, action]
            old = logprob.detach() if old is None else old
            inputs = LossInputs(
                logprob=logprob,
                old_logprob=old,
                token_advantage=spread_turns(credit, turns),
                turn_of_token=turns,
                token_share=torch.ones_like(logprob.detach()),
                denominator=float(number),
            )
            optimizer.zero_grad()
            policy_loss(inputs, level="token", clip_low=0.2, clip_high=0.2).loss.backward()
            optimizer.step()
    return logits.detach().softmax(1).diagonal()
