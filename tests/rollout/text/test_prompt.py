"""Whole lists of messages, as a program sends them: what extends a conversation, and what is a new row.

Mutations seen red: messages of the assistant never recognised, or each time from the first; messages, system messages
or schemas raw; no way out where the template refuses an answer; a window that begins with a result; reasoning lost; the role ``developer`` passed on; each result a message of its own; any list continues; a fork
with the same lists.
"""

import copy
import json
import random
import re

import pytest
from jinja2 import TemplateError

from agentic_trl.rollout.text.chat import ChatFormat, Conversation, WindowHistory
from agentic_trl.rollout.text.parse import parse_answer
from tests.rollout.text.test_templates import encode
from tests.rollout.text.test_tool_templates import chat_of, check_pieces, rendering
from tests.rollout.text.tool_talks import (
    ONE_CALL,
    PYTHON,
    SCHEMA,
    TOOL_TEMPLATES,
    a_call,
    a_schema,
    call_end,
    message,
    own_writing,
    restyled,
)
from tests.tokenizers import TURN_ENDS

SECOND_HEADER = {"diffusion_gemma", "diffusion_gemma_training"}
"""Templates that write a header before the second response to results, which their generation prompt lacks."""

NO_THOUGHT = {"llama3_1", "llama3_2", "gemma4_v2", "qwen3_5_nothink", "qwen3_5_nothink_training"}
"""Templates whose parser finds no reasoning before a call, or whose prompt says that there is none."""

ASK = {"role": "user", "content": "wall"}


def respond(conversation, chat, text, end):
    """Sample a text; return the ids and the message that goes out."""
    ids = tuple(encode(chat.tokenizer, text)) + tuple(encode(chat.tokenizer, end))
    stop = frozenset(encode(chat.tokenizer, end))
    parsed = parse_answer(
        chat, ids, stop_ids=stop, prompt=conversation.rendered, tools=conversation.tools
    )
    first = conversation.calls
    conversation.add_response(ids, text=parsed.text, end=parsed.end, answer=parsed.answer)
    return ids, parsed.answer.message(first)


def as_sdk(sent):
    """A message as OpenAI's clients send it back: no reasoning, arguments as text, no content beside calls."""
    back = {"role": "assistant", "content": sent["content"] or None}
    if sent["tool_calls"]:
        back["tool_calls"] = copy.deepcopy(sent["tool_calls"])
        for one in back["tool_calls"]:
            arguments = dict(reversed(one["function"]["arguments"].items()))
            one["function"]["arguments"] = json.dumps(arguments, indent=1)
    return back


def result(sent, index, text):
    call = sent["tool_calls"][index]
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


@pytest.mark.parametrize(
    ("template", "thought"),
    [(one, "") for one in sorted(TOOL_TEMPLATES)]
    + [(one, "so it is") for one in sorted(TOOL_TEMPLATES - NO_THOUGHT)],
)
def test_what_a_client_sends_back_extends_the_conversation(template, thought):
    chat, rng = chat_of("byte_level", template), random.Random(template)
    schemas = [a_schema(rng, n) for n in range(2)]
    conversation = Conversation(chat)
    messages, context, spans = [ASK], (), []
    prompt = conversation.prompt(messages, schemas)
    assert not prompt.extends
    for turn in range(3):
        context = prompt.context_ids
        calls = [
            a_call(rng, schemas, template, unknown=0) for _ in range(1 + (template not in ONE_CALL))
        ]
        text = own_writing(chat, schemas, message(calls=calls, reasoning=thought))
        text = restyled(rng, text.rstrip().removesuffix(call_end(template)))
        if (
            thought not in text
        ):  # the template leaves it out, or cannot: the policy thinks nevertheless
            text = f"<think>\n{thought}\n</think>\n\n{text}"
        ids, sent = respond(conversation, chat, text, call_end(template))
        assert [one["function"] for one in sent["tool_calls"]] == calls
        assert sent["reasoning_content"] == thought
        spans.append((len(context), len(context) + len(ids)))
        messages += [as_sdk(sent), *(result(sent, i, f"result {i}") for i in range(len(calls)))]
        before = copy.deepcopy(messages)
        prompt = conversation.prompt(messages, schemas)
        assert messages == before
        expected = rendering(chat, conversation.messages, schemas)
        assert prompt.extends or (template in SECOND_HEADER and turn > 0)
        if not prompt.extends:
            assert prompt.context_ids == encode(chat.tokenizer, expected)
            spans = []
            continue
        assert prompt.context_ids == (*context, *ids, *prompt.new_ids)
        check_pieces(chat, prompt.context_ids, spans, expected, "byte_level")
    assert [one["role"] for one in conversation.messages] == [one["role"] for one in messages]


CHAT = "qwen3"
TEXT = '<think>\nso\n</think>\n\n<tool_call>\n{"name": "get_0", "arguments": {}}\n</tool_call>'
END = TURN_ENDS[CHAT]


def begun():
    chat = chat_of("byte_level", CHAT)
    conversation = Conversation(chat)
    first = conversation.prompt([ASK], [SCHEMA])
    ids, sent = respond(conversation, chat, TEXT, END)
    return chat, conversation, first, ids, sent


def test_reasoning_that_a_client_drops_is_put_back():
    _, conversation, _, _, sent = begun()
    back = as_sdk(sent)
    prompt = conversation.prompt([ASK, back, result(sent, 0, "up")], [SCHEMA])
    assert prompt.extends
    assert conversation.messages[1]["reasoning_content"] == "so"


@pytest.mark.parametrize(
    "changed",
    [
        lambda sent: {**as_sdk(sent), "content": "other"},
        lambda sent: {**as_sdk(sent), "tool_calls": []},
        lambda sent: {
            **as_sdk(sent),
            "tool_calls": [{"id": "x", "function": {"name": "get_0", "arguments": '{"a": 1}'}}],
        },
    ],
)
def test_an_answer_that_was_not_said_starts_a_row(changed):
    chat, conversation, _, _, sent = begun()
    messages = [ASK, changed(sent), {"role": "user", "content": "goal"}]
    prompt = conversation.prompt(messages, [SCHEMA])
    assert not prompt.extends
    assert prompt.context_ids == encode(
        chat.tokenizer, rendering(chat, conversation.messages, [SCHEMA])
    )


def test_other_tools_or_an_earlier_message_changed_start_a_row():
    for messages, tools in (
        ([{"role": "user", "content": "hole"}], [SCHEMA]),
        ([ASK], [a_schema(random.Random(1), 5)]),
    ):
        _, conversation, _, _, sent = begun()
        list_ = [*messages, as_sdk(sent), result(sent, 0, "up")]
        assert not conversation.prompt(list_, tools).extends


def test_a_history_that_is_cut_starts_a_row_and_then_goes_on():
    chat, conversation, _, _, sent = begun()
    conversation.prompt([ASK, as_sdk(sent), result(sent, 0, "up")], [SCHEMA])
    _, said = respond(conversation, chat, "<think>\n\n</think>\n\ngoal", END)
    more = {"role": "user", "content": "row 0"}
    prompt = conversation.prompt([more], [SCHEMA])  # the program begins anew
    assert not prompt.extends
    ids, again = respond(conversation, chat, TEXT, END)
    later = conversation.prompt([more, as_sdk(again), result(again, 0, "left")], [SCHEMA])
    assert later.extends
    assert later.context_ids[: len(prompt.context_ids) + len(ids)] == prompt.context_ids + ids
    assert said["content"] == "goal"


def test_equal_answers_are_met_in_order():
    chat = chat_of("byte_level", CHAT)
    conversation = Conversation(chat)
    messages = [ASK]
    for thought in ("so", "up"):
        conversation.prompt(messages, [SCHEMA])
        _, sent = respond(conversation, chat, TEXT.replace("so", thought), END)
        messages += [as_sdk(sent), result(sent, 0, "left")]
    assert conversation.prompt(messages, [SCHEMA]).extends
    thoughts = [
        m.get("reasoning_content") for m in conversation.messages if m["role"] == "assistant"
    ]
    assert thoughts == ["so", "up"]


def test_which_conversation_a_list_belongs_to():
    chat, first, _, _, sent = begun()
    second = Conversation(chat)
    second.prompt([{"role": "user", "content": "hole"}], [SCHEMA])
    more = [ASK, as_sdk(sent), result(sent, 0, "<|im_end|>")]
    assert [one.continues(more) for one in (first, second)] == [True, False]
    assert not first.continues([ASK])  # shorter than what was said
    assert first.continues([ASK, as_sdk(sent)])
    first.prompt(more, [SCHEMA])
    assert first.continues(more)  # its result is escaped, and still met
    assert not first.continues([*more[:2], result(sent, 0, "up")])


def test_a_fork_goes_its_own_way():
    chat, first, _, _, sent = begun()
    other = first.fork()
    more = [ASK, as_sdk(sent), result(sent, 0, "up")]
    prompts = [one.prompt(more, [SCHEMA]) for one in (first, other)]
    assert prompts[0] == prompts[1]
    respond(first, chat, "goal", END)
    _, said = respond(other, chat, TEXT, END)
    longer = [*more, as_sdk(said), result(said, 0, "left")]
    assert not first.continues(longer)
    assert other.prompt(longer, [SCHEMA]).extends
    assert len(first.messages) == 4
    third = other.fork()
    respond(other, chat, "goal", END)
    assert len(third.messages) == len(other.messages) - 1
    other.observe("wall")
    assert len(third.messages) == len(other.messages) - 2


def test_messages_of_a_program_are_data():
    chat = chat_of("byte_level", CHAT)
    marks = "".join(sorted(chat.tokenizer.get_added_vocab()))
    call = {"id": marks, "function": {"name": marks, "arguments": {marks: [marks]}}}

    def counts(text):
        def data(value):
            return json.loads(json.dumps(value).replace(json.dumps(marks)[1:-1], text))

        conversation = Conversation(chat)
        schema = copy.deepcopy(SCHEMA)
        schema["function"]["description"] = marks
        messages = [
            {"role": "developer", "content": marks},
            {"role": "user", "content": [{"type": "text", "text": marks}]},
            {
                "role": "assistant",
                "content": marks,
                "reasoning_content": marks,
                "tool_calls": [call],
            },
            {"role": "tool", "tool_call_id": marks, "name": marks, "content": marks},
        ]
        ids = conversation.prompt(data(messages), data([schema])).context_ids
        # A system message may name tags that begin and end no message.
        own = [
            one
            for one in chat.tokenizer.get_added_vocab()
            if re.fullmatch(r"</?(think|tool\w*)>", one)
        ]
        own = {chat.tokenizer.convert_tokens_to_ids(one) for one in own}
        return [ids.count(i) for i in sorted(chat.added.ids - own)]

    assert counts(json.dumps(marks)[1:-1]) == counts("x")


def test_roles_that_a_template_lacks():
    messages = [
        {"role": "system", "content": "go up"},
        {"role": "developer", "content": "go left"},
        ASK,
        {**message("so", [{"name": "get_0", "arguments": {"a": 1}}], "hm"), "thinking": "hm"},
        {"role": "tool", "tool_call_id": "c00000000", "content": "hole"},
        {"role": "user", "content": "goal"},
    ]
    chat = ChatFormat(
        chat_of("byte_level", "gemma").tokenizer
    )  # no system, no tool, strictly in turns
    conversation = Conversation(chat)
    conversation.prompt(messages)
    assert conversation.rendered == (
        "<bos><start_of_turn>user\ngo up\n\ngo left\n\nwall<end_of_turn>\n<start_of_turn>model\n"
        "<think>\nhm\n</think>\n\nso\n<tool_call>\n"
        '{"name": "get_0", "arguments": {"a": 1}}\n</tool_call><end_of_turn>\n<start_of_turn>user\n'
        "<tool_response>\nhole\n</tool_response>\ngoal<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize("template", ["gptoss", "gptoss_training"])
def test_harmony_is_handed_the_parts_of_an_answer(template):
    chat = chat_of("byte_level", template)
    conversation = Conversation(chat)
    first = conversation.prompt([ASK], [SCHEMA])
    text = (
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant to=functions.get_0"
        '<|channel|>commentary json<|message|>{"a":1}'
    )
    ids, sent = respond(conversation, chat, text, "<|call|>")
    assert (sent["reasoning_content"], sent["content"]) == ("so", "")
    prompt = conversation.prompt([ASK, as_sdk(sent), result(sent, 0, "up")], [SCHEMA])
    assert prompt.extends
    added = chat.decode(prompt.new_ids)
    assert added == (
        '<|start|>functions.get_0 to=assistant<|channel|>commentary<|message|>"up"<|end|><|start|>assistant'
    )
    assert prompt.context_ids[: len(first.context_ids) + len(ids)] == first.context_ids + ids


def test_an_answer_that_its_template_refuses_is_shown_as_harmless_text():
    chat = chat_of("byte_level", "gptoss")
    conversation = Conversation(chat)
    conversation.prompt([ASK], [SCHEMA])
    text = "to=functions.get_0 {oops <|channel|>final<|message|>"
    _, sent = respond(conversation, chat, text, "<|call|>")
    assert sent["tool_calls"] == []
    prompt = conversation.prompt([ASK, {"role": "assistant", "content": text}, ASK], [SCHEMA])
    assert not prompt.extends
    assert "< |channel|>final< |message|>" in conversation.rendered


def test_a_window_begins_with_no_result():
    calls = message(calls=[{"name": "get_0", "arguments": {}}])
    answered = {"role": "tool", "content": "up"}
    head = {"role": "system", "content": "go"}
    talk = [head, ASK, calls, answered, answered, calls, answered]
    assert WindowHistory(0)(talk) == [head, ASK, calls, answered, answered, calls, answered]
    talk += [message("so"), ASK, calls, answered]
    assert WindowHistory(1)(talk) == [head, ASK, calls, answered]
    assert WindowHistory(2)(talk)[1:3] == [ASK, calls]


def test_a_message_that_is_none_is_refused():
    conversation = Conversation(chat_of("byte_level", CHAT))
    with pytest.raises(TypeError, match="arguments an object or its JSON text"):
        conversation.prompt(
            [
                ASK,
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
                },
            ]
        )
    with pytest.raises(TemplateError):
        Conversation(chat_of("byte_level", "gemma")).prompt([ASK, ASK])


def test_python_writes_some_values_as_no_json():
    assert PYTHON < TOOL_TEMPLATES
