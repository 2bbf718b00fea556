"""The critic's values, credit and gradients against plain Python and independent sums.

Mutations seen red: value read at the token instead of before it; reward at the first token of a turn;
critic trained at all tokens under step_gae; value loss without its half; critic on the policy's learning
rate; the critic's adapter left on for the policy; rewards of reward functions dropped; the variance of rounding explained.
"""

from dataclasses import replace

import pytest
import torch

from agentic_trl.trainers.model.peft_adapters import same_flags
from agentic_trl.trainers.update.critic_credit import _value_metrics
from agentic_trl.turn_table import turn_table
from agentic_trl.types import StopReason
from tests.tiny import largest_difference, scripted_trajectories
from tests.tolerances import EXACT
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("doubles")]


@pytest.mark.parametrize("reward", [0.1, -37.3])
def test_variance_is_explained_where_returns_vary(reward):
    """Values 0 and 1 of returns 0 and 2: what is left varies by .5, the returns by 2, so 1 - .5 / 2."""
    metrics = _value_metrics(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))
    assert metrics["critic/explained_variance"] == 0.75
    value = torch.linspace(-3, 3, 40) * reward
    equal = (reward - value) + value  # as credit sums them: equal but for rounding
    assert equal.var() > 0
    assert "critic/explained_variance" not in _value_metrics(value, equal)


def value_at(trainer, ids):
    """Values at every position of one sequence, by the critic's own modules, no package forward."""
    ids = torch.tensor([ids])
    if hasattr(trainer.critic, "model"):
        body, head = trainer.critic.model.body, trainer.critic.model.head
    else:
        with same_flags(trainer.model):  # what PEFT freezes at a switch
            trainer.model.set_adapter("critic")
        body = trainer.model.get_base_model().model
        head = trainer.model.get_base_model().value_head
    return head(body(input_ids=ids).last_hidden_state)[0, :, 0]


def plain_gae(rewards, values, gamma, lam):
    advantages, later, following = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        later = reward + gamma * following - value + gamma * lam * later
        following = value
        advantages.append(later)
    return advantages[::-1]


def whitened(numbers):
    tensor = torch.tensor(numbers, dtype=torch.float64)
    return ((tensor - tensor.mean()) / (tensor.std() + 1e-8)).tolist()


def expected_credit(trainer, trajectories, *, level, gamma, lam):
    """Advantage (whitened), return and value of each sampled token or step, in order."""
    advantages, returns, values = [], [], []
    for trajectory in trajectories:
        context, rewards, own = [], [], []
        total = sum(turn.reward for turn in trajectory.turns)
        for t, turn in enumerate(trajectory.turns):
            context += turn.observation_ids
            all_ids = context + list(turn.response_ids)
            value = value_at(trainer, all_ids)
            places = range(len(context) - 1, len(all_ids) - 1)
            reward = turn.reward
            if t == len(trajectory.turns) - 1:
                reward += trajectory.score - total
            if level == "token":
                own += [value[p].item() for p in places]
                rewards += [0.0] * (len(places) - 1) + [reward]
            else:
                own.append(value[len(context) - 1].item())
                rewards.append(reward)
            context = all_ids
        found = plain_gae(rewards, own, gamma, lam)
        advantages += found
        returns += [a + v for a, v in zip(found, own, strict=True)]
        values += own
    return whitened(advantages), returns, values


def arrived(trainer):
    """Advantage, return, old value and mask of every sampled token, in order of turn."""
    found = {}
    for micro in trainer.batches:
        b = micro.batch
        rows = zip(
            b.turn_of_token, b.token_advantage, b.returns, b.old_value, b.value_mask, strict=True
        )
        for turns, *columns in rows:
            for turn, *cells in zip(turns.tolist(), *(c.tolist() for c in columns), strict=True):
                if turn >= 0:
                    found.setdefault(turn, []).append(cells)
                else:
                    assert cells[0] == cells[3] == 0
    return [cells for turn in sorted(found) for cells in found[turn]]


@pytest.mark.parametrize("peft", [False, True])
def test_token_gae_is_the_plain_recursion(tmp_path, peft):
    trajectories = scripted_trajectories()
    trainer = make_ppo(
        tmp_path,
        trajectories,
        peft=peft,
        token_gamma=0.98,
        token_lambda=0.9,
        max_tokens_per_microbatch=80,
    )
    advantages, returns, values = expected_credit(
        trainer, trajectories, level="token", gamma=0.98, lam=0.9
    )
    trainer.critic.policy_active()
    trainer.train()
    cells = arrived(trainer)
    assert [c[0] for c in cells] == pytest.approx(advantages, abs=EXACT)
    assert [c[1] for c in cells] == pytest.approx(returns, abs=EXACT)
    assert [c[2] for c in cells] == pytest.approx(values, abs=EXACT)
    assert all(c[3] == 1 for c in cells)


@pytest.mark.parametrize("peft", [False, True])
def test_step_gae_reads_the_value_before_the_turn_and_trains_it_there(tmp_path, peft):
    trajectories = scripted_trajectories()
    trainer = make_ppo(
        tmp_path, trajectories, peft=peft, method="steppo", turn_gamma=0.9, turn_lambda=0.8
    )
    advantages, returns, values = expected_credit(
        trainer, trajectories, level="step", gamma=0.9, lam=0.8
    )
    trainer.critic.policy_active()
    trainer.train()
    cells = arrived(trainer)
    lengths = [len(turn.response_ids) for t in trajectories for turn in t.turns]
    first = [sum(lengths[:i]) for i in range(len(lengths))]
    assert [cells[i][1] for i in first] == pytest.approx(returns, abs=EXACT)
    assert [cells[i][2] for i in first] == pytest.approx(values, abs=EXACT)
    assert [c[3] for c in cells] == [int(i in first) for i in range(len(cells))]
    spread = [a for a, n in zip(advantages, lengths, strict=True) for _ in range(n)]
    assert [c[0] for c in cells] == pytest.approx(spread, abs=EXACT)


def test_so_ppo_shares_the_credit_of_a_turn(tmp_path):
    trajectories = scripted_trajectories()
    plain = make_ppo(tmp_path, trajectories)
    plain.train()
    shared = make_ppo(tmp_path, trajectories, method="so-ppo", clip_normalization="none")
    shared.train()
    lengths = [len(turn.response_ids) for t in trajectories for turn in t.turns]
    one, two = arrived(plain), arrived(shared)
    at = 0
    for length in lengths:
        mean = sum(c[0] for c in one[at : at + length]) / length
        assert [c[0] for c in two[at : at + length]] == pytest.approx([mean] * length, abs=EXACT)
        at += length


@pytest.mark.parametrize("peft", [False, True])
@pytest.mark.parametrize("method", ["ppo", "steppo"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_critics_gradient_is_that_of_half_the_squared_error(
    tmp_path, peft, method, checkpointing
):
    trajectories = scripted_trajectories()
    trainer = make_ppo(
        tmp_path,
        trajectories,
        peft=peft,
        method=method,
        beta=0.1,
        gradient_checkpointing=checkpointing,
        max_tokens_per_microbatch=80,
    )
    level = "token" if method == "ppo" else "step"
    _, returns, _ = expected_credit(trainer, trajectories, level=level, gamma=1.0, lam=1.0)
    total, index = 0.0, 0
    trainer.model.zero_grad()
    for trajectory in trajectories:
        context = []
        for turn in trajectory.turns:
            context += turn.observation_ids
            all_ids = context + list(turn.response_ids)
            value = value_at(trainer, all_ids)
            count = len(turn.response_ids) if level == "token" else 1
            for k in range(count):
                total = total + 0.5 * (value[len(context) - 1 + k] - returns[index]) ** 2
                index += 1
            context = all_ids
    parameters = list(trainer.critic.parameters())
    expected = torch.autograd.grad(total / index, parameters, allow_unused=True)
    trainer.critic.policy_active()
    trainer.model.zero_grad()
    trainer.train()
    for got, wanted in zip(trainer.critic_gradients[0], expected, strict=True):
        if wanted is not None:
            assert (got - wanted).abs().max() < EXACT
    assert max(w.abs().max() for w in expected if w is not None) > 1e-3


@pytest.mark.parametrize("peft", [False, True])
def test_the_policys_gradient_is_that_of_a_run_with_the_same_advantages(tmp_path, peft):
    """The critic must leave no trace in it: the advantages are weighed by plain log-softmax."""
    trajectories = scripted_trajectories()
    trainer = make_ppo(tmp_path, trajectories, peft=peft, gradient_checkpointing=True)
    trainer.train()
    got = {
        n: g
        for n, g in trainer.gradients.steps[0].items()
        if ".critic." not in n and "value_head" not in n
    }
    advantages = [c[0] for c in arrived(trainer)]
    fresh = make_ppo(tmp_path, trajectories, peft=peft)
    if peft:
        fresh.model.set_adapter("default")
    total, index = 0.0, 0
    for trajectory in trajectories:
        context = []
        for turn in trajectory.turns:
            context += turn.observation_ids
            ids = torch.tensor([context + list(turn.response_ids)])
            logprobs = fresh.model(input_ids=ids).logits[0].log_softmax(-1)
            for k, token in enumerate(turn.response_ids):
                total = total - advantages[index] * logprobs[len(context) - 1 + k, token]
                index += 1
            context += turn.response_ids
    (total / index).backward()
    expected = {n: p.grad for n, p in fresh.model.named_parameters() if n in got}
    assert largest_difference(got, expected) < EXACT


def test_the_critic_has_a_learning_rate_of_its_own(tmp_path):
    trainer = make_ppo(
        tmp_path,
        scripted_trajectories(),
        optim="sgd",
        learning_rate=0.5,
        critic_learning_rate=0.25,
    )
    before = [p.clone() for p in trainer.critic.parameters()]
    policy = {n: p.clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    (grads,) = trainer.critic_gradients
    for old, new, grad in zip(before, trainer.critic.parameters(), grads, strict=True):
        assert (new - (old - 0.25 * grad)).abs().max() < EXACT
    for name, new in trainer.model.named_parameters():
        step = 0.5 * trainer.gradients.steps[0][name]
        assert (new - (policy[name] - step)).abs().max() < EXACT


@pytest.mark.parametrize("peft", [False, True])
def test_in_the_warm_up_only_the_critic_moves(tmp_path, peft):
    trainer = make_ppo(tmp_path, peft=peft, critic_warmup_steps=2, max_steps=2, weight_decay=0.1)
    critic = {id(p) for p in trainer.critic.parameters()}
    policy = {n: p.clone() for n, p in trainer.model.named_parameters() if id(p) not in critic}
    before = [p.clone() for p in trainer.critic.parameters()]
    trainer.train()
    now = dict(trainer.model.named_parameters())
    assert all(torch.equal(policy[name], now[name]) for name in policy)
    moved = [
        not torch.equal(a, b) for a, b in zip(before, trainer.critic.parameters(), strict=True)
    ]
    assert any(moved)


def test_a_cut_episode_can_be_bootstrapped(tmp_path):
    trajectories = [
        type(t)(
            turns=t.turns,
            group=t.group,
            member=t.member,
            stop=StopReason.TURN_LIMIT if i % 2 else StopReason.TERMINATED,
            success=t.success,
            score=t.score,
            final_observation_ids=(9, 8, 7),
        )
        for i, t in enumerate(scripted_trajectories())
    ]
    trainer = make_ppo(
        tmp_path,
        trajectories,
        method="steppo",
        bootstrap_truncated=True,
        turn_gamma=0.5,
        whiten_advantages=False,
    )
    last = {}
    for i, trajectory in enumerate(trajectories):
        context = [
            j for turn in trajectory.turns for j in (*turn.observation_ids, *turn.response_ids)
        ]
        final = value_at(trainer, [*context, 9, 8, 7])[-1].item()
        total = sum(turn.reward for turn in trajectory.turns)
        reward = trajectory.turns[-1].reward + trajectory.score - total
        last[i] = reward + (0.5 * final if i % 2 else 0.0)
    trainer.train()
    table = turn_table(trajectories)
    cells = arrived(trainer)
    lengths = [len(turn.response_ids) for t in trajectories for turn in t.turns]
    for i in range(len(trajectories)):
        turn = int((table.trajectory == i).nonzero()[-1])
        assert cells[sum(lengths[:turn])][1] == pytest.approx(last[i], abs=EXACT)


@pytest.mark.parametrize(
    ("method", "peft"),
    [
        ("ppo", False),
        ("steppo", True),
        pytest.param("ppo", True, marks=pytest.mark.slow),
        pytest.param("steppo", False, marks=pytest.mark.slow),
    ],
)
def test_resumed_policy_and_critic_are_equal(tmp_path, peft, method):
    knobs = {
        "max_steps": 6,
        "num_generations": 1,
        "per_device_train_batch_size": 4,
        "steps_per_generation": 2,
        "num_iterations": 2,
        "num_train_tasks": 16,
        "save_steps": 1,
        "critic_learning_rate": 1e-2,
        "learning_rate": 3e-3,
        "max_grad_norm": 1.0,
        "method": method,
        "beta": 0.05,
    }
    whole = make_ppo(tmp_path, peft=peft, save_strategy="steps", **knobs)
    whole.train()
    assert whole.num_generations == 1
    for step in (2, 4):
        part = make_ppo(tmp_path, peft=peft, **knobs)
        part.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        pairs = [(whole.model.parameters(), part.model.parameters())]
        pairs.append((whole.critic.parameters(), part.critic.parameters()))
        for first, second in pairs:
            for a, b in zip(first, second, strict=True):
                assert torch.equal(a, b), step


def test_what_stands_at_positions_that_were_not_sampled_does_not_matter(tmp_path):
    """NaN there, in every column of every micro-batch, changes no gradient of policy or critic."""
    trajectories = scripted_trajectories()
    knobs = {"beta": 0.1, "method": "so-ppo", "token_weighting": "actfocus", "num_iterations": 2}
    clean = make_ppo(tmp_path, trajectories, **knobs)
    clean.train()
    planted = make_ppo(tmp_path, trajectories, **knobs)
    backward = planted.backward

    def plant(model, micros):
        dirty = []
        for micro in micros:
            batch = micro.batch
            ignored = batch.turn_of_token < 0
            columns = {
                name: value.masked_fill(ignored, float("nan"))
                for name in COLUMNS
                if (value := getattr(batch, name)) is not None
            }
            dirty.append(replace(micro, batch=replace(batch, **columns)))
        return backward(model, dirty)

    planted.backward = plant
    planted.train()
    assert largest_difference(clean.gradients.steps[0], planted.gradients.steps[0]) == 0
    for one, two in zip(clean.critic_gradients[0], planted.critic_gradients[0], strict=True):
        assert torch.equal(one, two)


COLUMNS = [
    "sampling_logprob",
    "token_advantage",
    "token_share",
    "old_logprob",
    "ref_logprob",
    "token_weight",
    "old_value",
    "returns",
]
