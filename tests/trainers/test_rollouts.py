"""Whole runs on a small environment: sampling agrees with scoring, evaluation, datasets, rewards.

Mutations seen red: dropout left on; temperature left out of the engine; evaluation repeating a task;
reward function weights ignored; episode seed without the member; alpha taken from the wrong step.
"""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch import nn

from agentic_trl.environments.base import TextEnv
from agentic_trl.methods import PLANPO
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, make_trainer
from tests.tolerances import EXACT

pytestmark = pytest.mark.trainer


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("history", ["full", "window"])
def test_on_policy_the_ratio_is_one(tmp_path, temperature, history):
    lora = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    trainer = make_trainer(
        tmp_path,
        peft_config=lora,
        gradient_checkpointing=True,
        temperature=temperature,
        history=history,
        num_iterations=2,  # the sampler's log-probabilities are the old ones
        max_steps=3,
    )
    trainer.train()
    drift = logged(trainer, "sampling/logprob_difference")
    ratio = logged(trainer, "ratio/mean")
    assert drift[0] < EXACT
    assert drift[2] < EXACT  # the first pass of the second generation
    assert ratio[0] == pytest.approx(1, abs=EXACT)
    assert abs(ratio[1] - 1) > 1e-5  # the second pass is off the policy
    assert all(
        module.p == 0 for module in trainer.model.modules() if isinstance(module, nn.Dropout)
    )


def test_bf16_runs_and_keeps_finite_weights(tmp_path):
    trainer = make_trainer(
        tmp_path, model=make_model(dtype=torch.bfloat16), bf16=True, num_iterations=2, max_steps=2
    )
    trainer.train()
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    # bfloat16 keeps 8 bits: a log-probability of -3.4 is off by up to .007, their mean by less.
    assert logged(trainer, "ratio/mean")[0] == pytest.approx(1, abs=1e-2)


def test_episodes_of_a_group_share_the_task_and_differ_in_sampling(tmp_path):
    seen = []

    class Kept(AgenticGRPOTrainer):
        def play(self, starts, **more):
            seen.append(starts)
            return super().play(starts, **more)

    trainer = make_trainer(tmp_path, cls=Kept, max_steps=2)
    trainer.train()
    first, second = seen
    for group in (0, 1):
        members = [start for start in first if start.group == group]
        assert [start.member for start in members] == [0, 1, 2, 3]
        assert len({start.task["seed"] for start in members}) == 1
    seeds = [start.seed for start in first + second]
    assert len(set(seeds)) == len(seeds)


def test_evaluation_plays_each_task_the_asked_number_of_times_and_changes_nothing(tmp_path):
    played = []

    class Kept(AgenticGRPOTrainer):
        def play(self, starts, **more):
            if not self.model.training:
                played.extend((start.task["seed"], start.member) for start in starts)
            return super().play(starts, **more)

    def weights(**changes):
        trainer = make_trainer(tmp_path, cls=Kept, max_steps=3, num_generations_eval=2, **changes)
        trainer.train()
        return trainer, dict(trainer.model.named_parameters())

    _, plain = weights()
    del played[:]
    trainer, evaluated = weights(
        eval_strategy="steps", eval_steps=1, num_eval_tasks=5, per_device_eval_batch_size=4
    )
    assert all(torch.equal(plain[name], evaluated[name]) for name in plain)
    tasks = [row["seed"] for row in trainer.eval_dataset]
    assert sorted(played) == sorted([(t, m) for t in tasks for m in (0, 1)] * 3)
    rates = logged(trainer, "eval_success_rate")
    assert len(rates) == 3
    assert all(0 <= rate <= 1 for rate in rates)
    again = trainer.evaluate()
    assert again["eval_success_rate"] == rates[-1]


@pytest.mark.usefixtures("doubles")
def test_reward_functions_add_to_the_score_and_see_the_episode(tmp_path):
    calls = []

    def count(prompts, completions, completion_ids, trajectories, kind, **kwargs):
        for prompt, completion, ids, trajectory, one in zip(
            prompts, completions, completion_ids, trajectories, kind, strict=True
        ):
            assert prompt[-1]["role"] == "user"
            assert completion[0]["role"] == "assistant"
            assert ids == [i for turn in trajectory.turns for i in turn.response_ids]
            assert one == "x"
        calls.append(len(prompts))
        return [float(len(ids)) for ids in completion_ids]

    kept = []

    class Kept(AgenticGRPOTrainer):
        def prepare_sets(self, trajectories):
            kept.extend(trajectories)
            return super().prepare_sets(trajectories)

    trainer = Kept(
        make_model(),
        make_args(tmp_path, given=["train"], reward_weights=[0.5]),
        environment=Countdown,
        train_dataset=Dataset.from_list([{"seed": i, "kind": "x"} for i in range(4)]),
        reward_funcs=count,
        processing_class=make_tokenizer(),
    )
    trainer.train()
    assert calls == [8]
    for one in kept:
        rewards = sum(turn.reward for turn in one.turns)
        assert one.score == pytest.approx(rewards + 0.5 * one.sampled_tokens)
    assert logged(trainer, "rewards/count/mean")[0] > 0


@pytest.mark.usefixtures("doubles")
def test_reward_functions_count_in_evaluation_and_the_table_shows_advantages(tmp_path):
    def five(completions, **kwargs):
        return [5.0] * len(completions)

    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path, log_completions=True),
        environment=Countdown,
        reward_funcs=five,
        processing_class=make_tokenizer(),
    )
    trainer.train()
    assert trainer.evaluate()["eval_return"] >= 5
    shown = list(trainer._logs["advantages"])
    assert sum(shown[:4]) == pytest.approx(0, abs=EXACT)
    assert len(set(shown)) > 1


def test_alpha_falls_over_the_run(tmp_path, monkeypatch):
    seen = []

    class Kept(AgenticGRPOTrainer):
        def prepare_sets(self, trajectories):
            state = self.state
            arguments = PLANPO.arguments(self.args, state.global_step, state.max_steps)
            seen.append(arguments["alpha"])
            return super().prepare_sets(trajectories)

    make_trainer(tmp_path, cls=Kept, method="planpo", max_steps=4).train()
    assert seen == pytest.approx([0.1, 0.0875, 0.075, 0.0625])


def test_environments_are_mixed_by_the_column_of_the_dataset(tmp_path):
    class Other(TextEnv):
        def reset(self, *, seed=None, options=None):
            return "w1", {}

        def step(self, action):
            return "w2", 5.0, True, False, {"success": True}

    rows = [{"seed": i, "environment": ("count", "other")[i % 2]} for i in range(4)]
    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path, given=["train"], num_eval_tasks=4),
        environment={"count": Countdown, "other": Other},
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    assert {row["environment"] for row in trainer.eval_dataset} == {"count", "other"}


def test_too_few_tasks_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has 1 tasks, but a generation batch takes 2 different"):
        make_trainer(tmp_path, num_train_tasks=1)


def test_two_sources_of_episodes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`environment` together with tools"):
        AgenticGRPOTrainer(
            make_model(),
            make_args(tmp_path),
            environment=Countdown,
            processing_class=make_tokenizer(),
            tools=[len],
        )


@pytest.mark.usefixtures("doubles")
def test_beta_keeps_a_frozen_copy_of_a_model_in_memory(tmp_path):
    trainer = make_trainer(tmp_path, beta=0.1, max_steps=2)
    before = {n: p.clone() for n, p in trainer.ref_model.named_parameters()}
    trainer.train()
    kl = logged(trainer, "kl")
    assert kl[0] == pytest.approx(0, abs=EXACT)
    assert kl[1] > 1e-6
    assert all(torch.equal(before[n], p) for n, p in trainer.ref_model.named_parameters())
    start = dict(make_model().named_parameters())
    assert all(torch.equal(start[n], before[n]) for n in start)
