"""Public agent frameworks, trained for two steps with a tiny policy whose vocabulary has whole calls of the tool.

Mutation seen red: another count of sampled tokens told.
"""

import math
from collections import Counter

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from agentic_trl import AgentEnv, AgenticGRPOTrainer
from agentic_trl.batching import build_rows
from tests.frameworks.programs import WAYS, agent, name_of
from tests.tiny import make_args

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
]

ROLES = ["<system>", "<user>", "<assistant>", "<tool>"]
CALLS = [
    f'<tool_call>{{"name":"add","arguments":{{"first":{i},"second":2}}}}</tool_call>'
    for i in (1, 7)
]
NUMBERS = (4, 9, 19, 90)
FINAL = [
    f'<tool_call>{{"name":"final_answer","arguments":{{"answer":"{i}"}}}}</tool_call>'
    for i in NUMBERS
]
CODE = ["<code>print(add(2,3))</code>", *(f"<code>final_answer({i})</code>" for i in NUMBERS)]
WORDS = ["<pad>", "<eos>", "<unk>", *ROLES, "a", *map(str, NUMBERS), *CALLS]
TURNS = 3


def policy(*more):
    """A model of random weights and its tokenizer, with words besides ``WORDS``."""
    words = [*WORDS, *more]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=ROLES,
    )
    tokenizer.chat_template = (
        "{% for m in messages %} <{{ m['role'] }}> {{ m['content'] }} <eos>{% endfor %}"
        "{% if add_generation_prompt %} <assistant>{% endif %}"
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = 1
    return model, tokenizer


class Kept(AgenticGRPOTrainer):
    """Keeps episodes, and the batches of the loss."""

    def play(self, starts, **more):
        played = super().play(starts, **more)
        self.kept = [*getattr(self, "kept", ()), *played]
        return played

    def policy_loss(self, model, micro):
        self.batches = [*getattr(self, "batches", ()), micro.batch]
        return super().policy_loss(model, micro)


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_two_steps(way, tmp_path):
    model, tokenizer = policy(*{"code": CODE, "tools": FINAL}.get(way[1], ()))
    seen = []
    raises = way[:2] == ("openai-agents", "responses")  # where a response is cut
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    trainer = Kept(
        model,
        make_args(
            tmp_path,
            max_steps=2,
            max_turns=TURNS,
            max_completion_length=16 if raises else 3,
            env_retries=0,
        ),
        environment=AgentEnv(agent(way, seen), timeout=60),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.rollouts.close()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 2
    assert all(math.isfinite(log["loss"]) for log in logs)
    assert sum(log["grad_norm"] for log in logs) > 0
    assert any((one != before[name]).any() for name, one in trainer.model.named_parameters())
    kept = trainer.kept
    assert len(kept) == 16
    assert {one.stop.value for one in kept} <= {"terminated", "turn_limit"}
    # What each framework counted and was told is what was sampled.
    ended = [one for one in kept if one.stop.value == "terminated"]
    sampled = [
        (len(one.turns), sum(len(turn.response_ids) for turn in one.turns), one.score)
        for one in ended
    ]
    assert len(ended) > 4
    told = Counter((one.requests, one.tokens, float("9" in str(one.output))) for one in seen)
    assert told <= Counter(sampled)
    assert told.total() == len(ended) or (raises and told.total() > 0)
    assert {len(one.turns) for one in kept} >= {1, 2}
    # Every row is in the loss once, and every sampled token is trained once.
    rows = [row for one in kept for row in build_rows([one])]
    in_loss = [
        (tuple(ids[mask.bool()].tolist()), int((turn[mask.bool()] >= 0).sum()))
        for batch in trainer.batches
        for ids, mask, turn in zip(
            batch.input_ids, batch.attention_mask, batch.turn_of_token, strict=True
        )
    ]
    assert sorted(in_loss) == sorted(
        (tuple(row.input_ids.tolist()), int((row.turn_of_token >= 0).sum())) for row in rows
    )
    trained = sum(count for _, count in in_loss)
    assert trained == sum(len(turn.response_ids) for one in kept for turn in one.turns)
