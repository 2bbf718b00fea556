"""PPO on ordinary text: prompts, reward functions and reward models, one episode a prompt.

Mutations seen red: the reward function's value dropped; text prompts sent through the chat template;
episodes of one turn given two; an environment played.
"""

import pytest
import torch
from datasets import Dataset

from agentic_trl import PPOConfig, PPOTrainer
from tests.tiny import WORDS, make_args, make_judge, make_model, make_tokenizer
from tests.tolerances import EXACT

pytestmark = pytest.mark.trainer

TEXTS = ["w1 w2 w3", "w4", "w5 w6"] * 4
TALKS = [
    [
        {"role": "user", "content": "w1"},
        {"role": "assistant", "content": "w2"},
        {"role": "user", "content": t},
    ]
    for t in TEXTS
]


def make(tmp_path, prompts, reward, **changes):
    base = make_args(tmp_path)
    knobs = {
        name: getattr(base, name)
        for name in [
            "output_dir",
            "max_completion_length",
            "max_steps",
            "use_cpu",
            "bf16",
            "gradient_checkpointing",
            "learning_rate",
            "lr_scheduler_type",
            "logging_steps",
            "save_strategy",
            "disable_tqdm",
        ]
    }
    args = PPOConfig(**{**knobs, "per_device_train_batch_size": 6, **changes})
    kept = []

    class Kept(PPOTrainer):
        def prepare_sets(self, trajectories):
            kept.extend(trajectories)
            return super().prepare_sets(trajectories)

    trainer = Kept(
        make_model(),
        args,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=make_tokenizer(),
    )
    return trainer, kept


def test_texts_are_shown_as_they_are_and_scored_by_the_function(tmp_path):
    seen = []

    def reward(prompts, completions, **kwargs):
        seen.extend(zip(prompts, completions, strict=True))
        return [float(len(c.split())) for c in completions]

    trainer, kept = make(tmp_path, TEXTS, reward)
    trainer.train()
    assert trainer.num_generations == 1
    assert len(kept) == 6
    assert len({one.group for one in kept}) == 6
    for one, (prompt, completion) in zip(kept, seen, strict=True):
        (turn,) = one.turns
        assert turn.observation_ids == tuple(WORDS.index(w) for w in prompt.split())
        assert one.score == len(completion.split())
        assert set(turn.token_kinds) == {2}


def test_conversations_go_through_the_template(tmp_path):
    def reward(prompts, completions, **kwargs):
        assert all(p[0] == {"role": "user", "content": "w1"} and len(p) == 3 for p in prompts)
        assert all(len(c) == 1 and c[0]["role"] == "assistant" for c in completions)
        return [1.0] * len(prompts)

    trainer, kept = make(tmp_path, TALKS, reward)
    trainer.train()
    user, assistant, eos = (WORDS.index(w) for w in ("<user>", "<assistant>", "<eos>"))
    ids = kept[0].turns[0].observation_ids
    assert ids[:6] == (user, WORDS.index("w1"), eos, assistant, WORDS.index("w2"), eos)
    assert ids[-1] == assistant


@pytest.mark.usefixtures("doubles")
def test_a_reward_model_scores_the_text(tmp_path):
    judge = make_judge(3).eval()
    judge.config._name_or_path = "judge"
    args = PPOConfig(
        str(tmp_path),
        per_device_train_batch_size=6,
        max_completion_length=6,
        max_steps=1,
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    kept = []

    class Kept(PPOTrainer):
        def prepare_sets(self, trajectories):
            kept.extend(trajectories)
            return super().prepare_sets(trajectories)

    tokenizer = make_tokenizer()
    trainer = Kept(
        make_model(),
        args,
        reward_funcs=judge,
        reward_processing_classes=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": TEXTS}),
        processing_class=tokenizer,
    )
    trainer.train()
    one = kept[0]
    text = "".join(m["content"] for m in one.messages)
    assert (
        one.messages[-1]["role"] == "assistant"
    )  # the end of an episode of one turn is no message
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert one.score == pytest.approx(judge(input_ids=ids).logits.item(), abs=EXACT)


@pytest.mark.parametrize("length", [{"max_steps": 16}, {"max_steps": -1, "num_train_epochs": 2}])
def test_the_old_number_of_episodes_is_played(tmp_path, length):
    """24 episodes of 12 prompts, 6 a rollout, 2 mini-batches and 2 updates: 24 / 6 x 2 x 2 = 16 steps, 24 / 12 = 2 epochs."""
    batches = {"per_device_train_batch_size": 3, "steps_per_generation": 2, "num_iterations": 2}
    trainer, kept = make(tmp_path, TEXTS, lambda completions, **_: [1.0] * 6, **length, **batches)
    trainer.train()
    assert (trainer.state.global_step, len(kept)) == (16, 24)


def test_without_a_reward_it_refuses(tmp_path):
    with pytest.raises(ValueError, match="PPOTrainer got no `reward_funcs`"):
        make(tmp_path, TEXTS, None)


def test_with_an_environment_it_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"PPOTrainer got an `environment`.*AgenticPPOTrainer"):
        PPOTrainer("no model", PPOConfig(str(tmp_path), use_cpu=True), environment="FrozenLake-v1")


def share_of_a(prompts, completion_ids, **kwargs):
    return [ids.count(7) / len(ids) for ids in completion_ids]


@pytest.mark.parametrize("shuffled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_it_learns_a_word_and_not_from_shuffled_rewards(tmp_path, shuffled):
    generator = torch.Generator().manual_seed(0)

    def reward(prompts, completion_ids, **kwargs):
        scores = share_of_a(prompts, completion_ids)
        order = torch.randperm(len(scores), generator=generator).tolist()
        return [scores[i] for i in order] if shuffled else scores

    trainer, kept = make(
        tmp_path,
        TEXTS * 8,
        reward,
        per_device_train_batch_size=48,
        max_steps=25,
        learning_rate=5e-3,
        critic_learning_rate=5e-3,
    )
    trainer.train()
    late = [ids for one in kept[-144:] for ids in [one.turns[0].response_ids]]
    mean = sum(ids.count(7) / len(ids) for ids in late) / len(late)
    assert (mean > 0.5) != shuffled
    assert mean < 0.2 or not shuffled
