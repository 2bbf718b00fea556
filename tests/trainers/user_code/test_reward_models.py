"""Models without a name, and reward models that give no single number, are refused with what to pass instead.

Mutations seen red: no look at the policy; none at labels, at a name, at a `config`; the tokenizer of another place in the list; an
empty name kept.
"""

from types import SimpleNamespace

import pytest
from datasets import Dataset
from torch import nn

from agentic_trl import PPOConfig, PPOTrainer
from agentic_trl.trainers.user_code.reward_models import name_reward_models, refuse_unreadable
from tests.tiny import make_judge, make_model, make_tokenizer

TOKENIZER = make_tokenizer()


def labelled(count):
    judge = make_judge(3)
    judge.config.num_labels = count
    return judge


def named(name):
    judge = make_judge(3)
    judge.config._name_or_path = name
    return judge


def test_a_policy_made_in_memory_needs_its_tokenizer():
    with pytest.raises(ValueError, match=r"^model: got a Qwen2ForCausalLM .*`processing_class="):
        refuse_unreadable(make_model(), None, {})


@pytest.mark.parametrize(
    ("judge", "tokenizers", "said"),
    [
        (make_judge(3), None, "made in memory.*`reward_processing_classes=tokenizer`"),
        ([print, make_judge(3)], [TOKENIZER, None], "made in memory"),
        (labelled(2), TOKENIZER, "with 2 labels, expected one"),
        (nn.Linear(2, 1), TOKENIZER, "got a Linear, a module without a `config`"),
    ],
    ids=["no name", "tokenizer of the other", "labels", "no config"],
)
def test_a_reward_model_is_refused(judge, tokenizers, said):
    with pytest.raises(ValueError, match=f"^reward_funcs: .*{said}"):
        refuse_unreadable("a name", judge, {"reward_processing_classes": tokenizers})


@pytest.mark.parametrize(
    ("judge", "tokenizers"),
    [
        (named("somewhere/judge"), None),
        (make_judge(3), TOKENIZER),
        ([print, make_judge(3)], [None, TOKENIZER]),
        (["a/name", print], None),
        (None, None),
    ],
    ids=["name", "tokenizer", "list", "functions", "none"],
)
def test_what_can_be_read_passes(judge, tokenizers):
    given = {"processing_class": TOKENIZER, "reward_processing_classes": tokenizers}
    refuse_unreadable(make_model(), judge, given)


def test_names_are_those_of_models_or_of_their_classes():
    trainer = SimpleNamespace(reward_func_names=["", "f"], reward_funcs=[make_judge(3), print])
    name_reward_models(trainer)
    assert trainer.reward_func_names == ["Qwen2ForSequenceClassification", "f"]


@pytest.mark.trainer
def test_a_reward_model_without_a_name_trains_and_its_rewards_have_one(tmp_path):
    """The judge reads prompt and completion as one text, tokenized anew; the end of turn is not in it."""
    read = []

    class Reader(type(make_judge(3))):
        def forward(self, input_ids, attention_mask, **more):
            pairs = zip(input_ids.tolist(), attention_mask.sum(1).tolist(), strict=True)
            read.extend(ids[:count] for ids, count in pairs)
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, **more)

    judge = Reader(make_judge(3).config)
    small = {"use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True}
    args = PPOConfig(
        str(tmp_path), max_steps=1, per_device_train_batch_size=8, max_completion_length=64, **small
    )
    played = []

    class Kept(PPOTrainer):
        def prepare_sets(self, trajectories):
            played.extend(trajectories)
            return super().prepare_sets(trajectories)

    trainer = Kept(
        make_model(),
        args,
        reward_funcs=judge,
        reward_processing_classes=TOKENIZER,
        processing_class=TOKENIZER,
        train_dataset=Dataset.from_dict({"prompt": ["w1 w2 w3", "w4", "w5 w6", "w7"] * 2}),
    )
    trainer.train()
    assert "rewards/Reader/mean" in trainer.state.log_history[0]
    ended = [one for one in played if one.turns[0].response_ids[-1] == 1]
    assert ended
    for one, ids in zip(played, read, strict=True):
        text = "".join(message["content"] for message in one.messages)
        assert ids == TOKENIZER(text, add_special_tokens=False)["input_ids"]
        assert 1 not in ids
