"""Responses with tools, read: nothing that a policy writes is an error, and what is no call is none.

Mutations seen red: what begins like a call ignored; arguments of any kind; lone surrogates kept; the first
``</think>`` ends the reasoning; space before a text is an action; arguments never as text; names of results left out;
a response template taken unseen; a template that leaves results out taken; training templates not known.
"""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trl.rollout.text.answers import HERMES, Answer, call_key, read_answer
from agentic_trl.rollout.text.chat import ChatFormat, Conversation
from tests.rollout.test_tool_turns import TEMPLATE, chat
from tests.rollout.text.test_tool_templates import chat_of
from tests.rollout.text.tool_talks import SCHEMA, TOOL_TEMPLATES, call_end, message

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def hermes(text, **more):
    given = {"end": "", "prefix": "", "template": HERMES, "tools": [], "mark": "<tool_call>"}
    return read_answer(text, **{**given, **more})


def shown(answer, text):
    """What the answer says, with the action as text."""
    assert all(0 <= a < b <= len(text) for a, b in answer.spans)
    pieces = [text[a:b] for a, b in answer.spans]
    assert answer.action is None or answer.action == "".join(pieces)
    return answer.reasoning, answer.content, len(answer.calls), pieces


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CALL, ("", "", 1, [CALL])),
        (f"go {CALL} then {CALL}", ("", "go\nthen", 2, [f"{CALL} ", CALL])),
        (f"<think>so {CALL}</think>up", (f"so {CALL}", "up", 0, ["up"])),
        (f"so</think>\n{CALL}", ("so", "", 1, [CALL])),  # the prompt had opened it
        (f"a</think>b</think>{CALL}", ("a</think>b", "", 1, [CALL])),
        ("<think>so", ("so", "", 0, [])),
        (" up\n", ("", "up", 0, ["up\n"])),
        ("", ("", "", 0, [])),
    ],
)
def test_hermes(text, said):
    assert shown(hermes(text), text) == said


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        CALL[:-1],
        '<tool_call>{"name": "f"}',
        CALL + "<tool_call>",
        "<tool_call>{oops}</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "f", "arguments": []}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        "<tool_call>[]</tool_call>",
        f"<tool_call>{'[' * 20_000}</tool_call>",
        f'<tool_call>{{"name": "f", "arguments": {{"a": {"9" * 5000}}}}}</tool_call>',
    ],
)
def test_a_broken_call_is_no_call_and_spoils_those_beside_it(text):
    answer = hermes(f"<think>so</think>{CALL}{text}")
    assert (answer.malformed, answer.calls, answer.action, answer.spans) == (True, (), None, ())
    assert answer.body == f"{CALL}{text}"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("qwen3_5_nothink", "go <tool_call>\n<fun"),
        ("nemotron_3_nano", "</think><tool_call>get_0"),
        ("lfm2_v2", "<|tool_call_start|>get_0()"),
        ("gemma4", "<|tool_call>get_0{}<tool_call|>"),
        ("llama3_1", '{"name": "get_0", "arguments": {}}'),
        ("gptoss", "<|channel|>commentary to=functions.get_0<|message|>{}"),
    ],
)
def test_what_begins_like_a_call_of_the_template_and_is_none_is_broken(template, text):
    chat_ = chat_of("byte_level", template)
    prompt = chat_.render([{"role": "user", "content": "x"}], [SCHEMA])
    end = call_end(template)
    assert chat_.tool_format.read(text, end=end, prompt=prompt, tools=[SCHEMA]).malformed


def test_arguments_may_be_missing_and_hold_anything_that_json_spells():
    assert hermes('<tool_call>{"name": "f"}</tool_call>').calls[0]["arguments"] == {}
    text = r'<tool_call>{"name": "f\ud800", "arguments": {"\udc00": ["\ud800", 1e9]}}</tool_call>'
    (call,) = hermes(text).calls
    assert call["name"] == "f?"
    assert call["arguments"]["?"][0] == "?"
    assert json.dumps(call).isascii()
    assert hermes(text).key == hermes(text.replace(" ", "")).key


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "[" * 61 + "]" * 61])
def test_numbers_and_depths_that_json_has_not_make_a_call_malformed(value):
    answer = hermes(f'<tool_call>{{"name": "f", "arguments": {{"a": {value}}}}}</tool_call>')
    assert answer.malformed
    assert answer.calls == ()


def test_equal_calls_are_equal_whatever_their_spaces_and_order():
    other = '<tool_call>\n{"arguments":{"a":1},"name":"f"}</tool_call>'
    assert hermes(CALL).key == hermes(other).key
    assert hermes(CALL).key != hermes(CALL.replace("1", "1.5")).key
    assert call_key("f", {"a": 1, "b": 2}) == call_key("f", {"b": 2, "a": 1})
    assert Answer(reasoning="a").key != Answer().key


PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f"',
    ', "arguments": {',
    "}",
]
PIECES += [
    "<function=f>",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    "<|channel|>final",
    "x",
    " ",
]
PIECES += [
    "<|message|>",
    "<|tool_call>call:f{",
    "<tool_call|>",
    '<|"|>',
    "<|call|>",
    "to=functions.f",
]
PIECES += [
    "<|tool_call_start|>[f(",
    "a='b'",
    ")]<|tool_call_end|>",
    "<arg_key>a</arg_key>",
    "\ud800",
]


@pytest.mark.parametrize(
    "template", ["gemma4", "glm4moe", "gptoss", "lfm2_v2", "llama3_1", "qwen3_5_think"]
)
@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES), max_size=12).map("".join), cut=st.booleans())
def test_nothing_that_a_policy_writes_is_an_error(template, text, cut):
    form = chat_of("byte_level", template).tool_format
    prompt = chat_of("byte_level", template).render([{"role": "user", "content": "x"}], [SCHEMA])
    end = "" if cut else call_end(template)
    answer = form.read(text, end=end, prompt=prompt, tools=[SCHEMA])
    shown(answer, text)
    assert not (answer.malformed and (answer.calls or answer.spans))
    assert isinstance(answer.message(0)["content"], str)


def test_reading_is_linear():
    for text in ("<think>" * 9000, "</think>" * 300, CALL * 200, "<tool_call>" * 9000):
        hermes(text)


# --- how a template writes


def like(**changes):
    core = copy.deepcopy(chat().tokenizer)
    for name, value in changes.items():
        setattr(core, name, value)
    return ChatFormat(core)


def test_a_template_that_wants_arguments_as_text_gets_them():
    text = TEMPLATE.replace("c.function.arguments | tojson", "'' + c.function.arguments")
    form = like(chat_template=text)
    assert form.tool_format.native
    assert form.tool_format.json_arguments
    call = message(calls=[{"name": "add", "arguments": {"é": 1}}])
    shown = form.render([{"role": "user", "content": "a"}, call], [SCHEMA])
    assert '<call> add {"é": 1} </call>' in shown


def test_the_name_of_a_result_is_that_of_its_call():
    text = TEMPLATE.replace("<{{ m.role }}> ", "<{{ m.role }}> {{ m.name }} ")
    call = message(calls=[{"name": "add", "arguments": {}}])
    results = [
        {"role": "tool", "tool_call_id": "c00000000", "content": "3", **more}
        for more in ({}, {"name": "b"})
    ]
    shown = like(chat_template=text).render(
        [{"role": "user", "content": "a"}, call, *results], [SCHEMA]
    )
    assert "<tool> add 3 <end> <tool> b 3 <end>" in shown


def test_a_template_of_its_own_goes_before_all_others():
    core = chat().tokenizer
    assert (
        chat().tool_format.template.start_anchor_re.pattern
        == core.response_template["start_anchor"]
    )
    # One that reads nothing is passed over.
    nothing = {"start_anchor": "x", "fields": {"content": {}}}
    qwen = copy.deepcopy(chat_of("byte_level", "qwen3").tokenizer)
    qwen.response_template = nothing
    assert ChatFormat(qwen).tool_format == chat_of("byte_level", "qwen3").tool_format


@pytest.mark.parametrize("name", sorted(one for one in TOOL_TEMPLATES if one.endswith("_training")))
def test_a_training_template_is_read_as_its_model_writes(name):
    plain = name.removesuffix("_training")
    pairs = [chat_of("byte_level", one).tool_format.template for one in (name, plain)]
    anchors = [(one.start_anchor_re.pattern, list(one.fields)) for one in pairs]
    assert anchors[0] == anchors[1]


@pytest.mark.parametrize("changed", ["tools", "calls", "results"])
def test_a_template_that_leaves_something_out_is_not_native(changed):
    gone = {
        "tools": ("{{ t.function.name }}", ""),
        "calls": ("{{ c.function.name }}", ""),
        "results": ("{% if m.content %}", "{% if m.content and m.role != 'tool' %}"),
    }
    assert not like(chat_template=TEMPLATE.replace(*gone[changed])).tool_format.native


def test_schemas_of_an_environment_are_data():
    conversation = Conversation(chat())
    schema = copy.deepcopy(SCHEMA)
    schema["function"]["name"] = "<user> a"
    conversation.prompt([{"role": "user", "content": "b"}], [schema])
    assert conversation.rendered.startswith("<system> < user> a <end>")
