"""Answers that end at a text, begin before they are sampled, or see a history of the user's own.

Mutations seen red: a stop text matched in the prompt; an answer ended by text counted as cut; the prefill
left out of the history; the prefill counted as sampled; spans not shifted by the prefill.
"""

import copy

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, StopStringCriteria

from agentic_trl.environments.base import ActionFormat
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import ChatFormat
from agentic_trl.rollout.text.parse import parse_response
from tests.rollout.engines.models import generate, request
from tests.rollout.scripted import (
    FORM,
    GO,
    STOP,
    SYSTEM,
    Engine,
    Script,
    chat,
    given,
    ids,
    run_one,
    start,
    step,
    user,
)
from tests.tiny import make_args, make_trainer
from tests.tokenizers import build, spell
from tests.tolerances import EXACT

REASONING, ACTION = 1, 2


@pytest.mark.usefixtures("doubles")
def test_an_answer_ends_at_its_first_stop_text_and_is_not_cut():
    tokenizer = build("byte_level", "qwen2_5")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    plain = TransformersEngine(model, pad_id=0, stop_ids=frozenset({1}), sampling=Sampling())
    prompts = [tuple(spell(tokenizer, f"a prompt with e in it {i}")) for i in range(6)]
    requests = [request(i, prompt, 40) for i, prompt in enumerate(prompts)]
    free = generate(plain, requests)
    letter = next(c for c in "etaoinhrdlu" if any(c in tokenizer.decode(s.ids[3:30]) for s in free))
    stopping = TransformersEngine(
        model,
        pad_id=0,
        stop_ids=frozenset({1}),
        sampling=Sampling(),
        stop_text=StopStringCriteria(tokenizer, [letter]),
    )
    ended = 0
    for one, other in zip(generate(stopping, requests), free, strict=True):
        assert one.ids == other.ids[: len(one.ids)]
        assert one.logprobs == pytest.approx(other.logprobs[: len(one.ids)], abs=EXACT)
        text = tokenizer.decode(one.ids[:-1])
        assert letter not in text
        if letter in tokenizer.decode(one.ids):
            ended += 1
            assert not one.truncated
        else:
            assert one.truncated == other.truncated
    assert ended


def test_the_template_closes_an_answer_that_a_text_ended():
    """The id of the end of turn is then the template's, not sampled."""
    trajectory, _ = run_one(Script(step("c"), step("d", terminated=True)), ["<go> b </go>", GO])
    first, second = trajectory.turns
    assert first.response_ids == ids("<go> b </go>")
    assert second.observation_ids == user("c", cut=True)


def test_a_prefill_is_shown_counts_as_beginning_and_is_not_sampled():
    form = ActionFormat(tag="go", reasoning_tag="action")
    environment = Script(step("c"), step("d", terminated=True))
    environment.action_format = form
    answers = ["x </action> <go> b </go> <end>", "<go> y </go> </action> <go> b </go> <end>"]
    trajectory, engine = run_one(environment, answers, prefill=" <action>")
    first, second = trajectory.turns
    opening = ids("<action>")
    assert first.observation_ids[-1:] == opening
    assert first.response_ids == ids(answers[0])
    assert first.token_kinds == (REASONING,) * 2 + (ACTION,) * 4
    assert second.extends
    assert second.observation_ids == (*user("c"), *opening)
    assert second.token_kinds == (REASONING,) * 4 + (ACTION,) * 4
    assert environment.taken == ["b", "b"]
    assert trajectory.messages[2]["content"] == " <action>x </action> <go> b </go>"
    assert engine.requests[1][0].context_ids == (
        *first.observation_ids,
        *first.response_ids,
        *second.observation_ids,
    )


def test_a_prefill_that_opens_the_action():
    answer = parse_response(chat(), FORM, ids("b </go> <end>"), stop_ids=STOP, prefill="<go> ")
    assert answer.action == "b"
    assert answer.kinds == (ACTION,) * 3


def last_two(messages):
    """A history of the user's own: the system message and a summary of the rest."""
    count = sum(m["role"] == "assistant" for m in messages)
    return [messages[0], {"role": "user", "content": "s " * count + messages[-1]["content"]}]


def test_a_history_of_the_users_own_starts_a_row_a_turn():
    environment = Script(step("c"), step("d", terminated=True))
    trajectory, _ = run_one(environment, [GO, GO], history=last_two)
    assert [turn.extends for turn in trajectory.turns] == [False, False]
    assert trajectory.turns[1].observation_ids == (*SYSTEM, *user("s c"))


@pytest.mark.trainer
def test_the_trainer_takes_a_function_or_its_name(tmp_path):
    for history in (last_two, "tests.rollout.test_answers:last_two"):
        trainer = make_trainer(tmp_path, history=history, save_strategy="steps", save_steps=1)
        trainer.train()
        (rows,) = (
            e["rollout/rewritten_rows"]
            for e in trainer.state.log_history
            if "rollout/rewritten_rows" in e
        )
        assert rows > 0


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ("sliding", "expected 'full', 'window', or a function"),
        (lambda m: m, "a checkpoint cannot hold"),
    ],
)
def test_a_history_that_cannot_be_is_refused(tmp_path, history, words):
    with pytest.raises(ValueError, match=words):
        make_args(tmp_path, history=history)


def test_an_answer_that_the_template_refuses_fails_its_episode_alone():
    tokenizer = copy.deepcopy(chat().tokenizer)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m['content'] }}",
        "{% if 'z' in m['content'] %}{{ raise_exception('no z') }}{% endif %}{{ m['content'] }}",
    )
    engine = Engine(["z <go> b </go> <end>"], [GO, GO])
    scripts = [Script(step("c")), Script(step("c"), step("d", terminated=True))]
    rollout = Rollout(
        engine=engine,
        chat=ChatFormat(tokenizer),
        stop_ids=STOP,
        limits=Limits(max_tokens_per_turn=16),
    )
    refused, other = collect(*given([start(0), start(1)], scripts), rollout)
    assert refused.stop == "environment_error"
    assert refused.error == "the chat template refuses the model's own answer (TemplateError: no z)"
    assert other.stop == "terminated"
    assert len(other.turns) == 2
