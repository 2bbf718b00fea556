"""Random conversations with tools under every chat template that TRL ships with a format for them.

For every turn of every conversation:

(a) the row that ``build_rows`` makes of the recorded turns is what the engine was shown and what it sampled;
(b) a prompt that starts a row is the template's own rendering of the messages with the tools, id by id. One that
    extends a row is that rendering outside the assistant's spans, and in these the sampled ids; what the template
    writes there instead reads as the same message;
(c) the environment heard the calls that were said, and of a broken response nothing;
(d) results that hold every added token and mark of calls add none of them to any prompt.

Mutations seen red: any other writing taken for the same message; earlier messages that have changed passed over;
results without a call handed to the template; marks of calls left in results; the instruction about tags kept.
"""

import functools
import json
import re
from collections import Counter
from itertools import pairwise

import pytest

from agentic_trl.rollout.text.chat import ChatFormat, WindowHistory, full_history
from agentic_trl.rollout.text.tool_text import INTRODUCTION
from tests.rollout.text.test_templates import TEMPLATES, check_rows, decode, encode, some_text
from tests.rollout.text.tool_talks import SCHEMA, TOOL_TEMPLATES, message, play_tools
from tests.tokenizers import FAMILIES, build, template_marks
from tests.tokenizers import rendering as plain_rendering

NOT_NATIVE = sorted({*TEMPLATES} - TOOL_TEMPLATES)
OPENED = re.compile(r"<think>\s*(</think>\s*)?\Z")


@functools.cache
def chat_of(family, template):
    return ChatFormat(build(family, template))


def chat_ends(chat):
    """Ids that may end a turn."""
    ends = {chat.tokenizer.eos_token, "<|call|>", "<|observation|>", "<|tool_response>"}
    return [i for text, i in chat.tokenizer.get_added_vocab().items() if text in ends]


def rendering(chat, messages, tools):
    """The template's own text, with reasoning under both of its names."""
    shown = []
    for one in messages:
        thought = one.get("reasoning_content")
        shown.append({**one, "thinking": thought} if thought else one)
    return chat.tokenizer.apply_chat_template(
        shown, tools=tools, tokenize=False, add_generation_prompt=True
    )


def prompts_of(trajectory):
    """The messages before each response."""
    at = [i for i, one in enumerate(trajectory.messages) if one["role"] == "assistant"]
    return [list(trajectory.messages[:i]) for i in at]


def check_text(chat, trajectory, shown, schemas, history, family):
    """(b)"""
    spans = []
    for turn, context, messages in zip(
        trajectory.turns, shown, prompts_of(trajectory), strict=True
    ):
        ids = encode(chat.tokenizer, rendering(chat, history(messages), schemas))
        if turn.extends and spans:
            check_pieces(chat, context, spans, decode(chat.tokenizer, ids), family)
        else:
            spans = []
            assert context == ids
        spans.append((len(context), len(context) + len(turn.response_ids)))


def check_pieces(chat, context, spans, text, family):
    """Between the spans a context reads like the rendering, and at them the rendering is the same message."""
    ends = [0, *(end for span in spans for end in span), len(context)]
    lengths = [len(decode(chat.tokenizer, context[:end])) for end in ends]
    whole = decode(chat.tokenizer, context)
    parts = [whole[a:b] for a, b in pairwise(lengths)]
    pieces, said = parts[::2], parts[1::2]
    pieces = [OPENED.sub("", one) for one in pieces[:-1]] + pieces[-1:]
    if (
        family != "byte_level"
    ):  # words lose white space; in byte fallback a stray byte spoils what is beside it
        pieces, text = ([re.sub(r"[\s�]", "", one) for one in pieces], re.sub(r"[\s�]", "", text))
        said = []
    pattern = r"(.*?)".join(re.escape(one.strip()) for one in pieces)
    found = re.fullmatch(pattern, text.strip(), re.DOTALL)
    assert found, (whole, text)
    ends = tuple(decode(chat.tokenizer, [i]) for i in chat_ends(chat))
    for one, found_there in zip(said, found.groups(), strict=False):
        plain, other = unescaped(one), unescaped(found_there)
        if not plain.endswith(ends):  # of a cut response a half of a mark may be left
            continue
        words = {word for word in re.findall(r"\w+", plain) if word not in ("think", "n")}
        assert words <= set(re.findall(r"\w+", other)), (one, other)


def unescaped(text):
    """A text with the letters that JSON may write as numbers."""
    return re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)


def check_heard(environment, sayings, trajectory):
    """(c)"""
    heard = iter(environment.heard)
    for turn, saying in zip(trajectory.turns, sayings, strict=True):
        message = next(heard) if turn.action is not None else None
        if saying.calls is not None:
            assert message is not None
            heard_calls = [one["function"] for one in message["tool_calls"]]
            assert heard_calls == saying.calls, (heard_calls, saying.calls)
    assert next(heard, None) is None


def check_template(template, family, count, *, seed=""):
    """Play and check; return turns, rows beyond the first, broken responses."""
    chat = chat_of(family, template)
    tally = Counter()
    for way, history in {"full": full_history, "window": WindowHistory(1)}.items():
        marks = [*template_marks(template), *chat.tool_format.marks]
        talk = functools.partial(some_text, marks=marks)
        name = f"{template} {family} {way} {seed}"
        played = play_tools(chat, template, count, seed=name, texts=talk, history=history)
        for index, one in enumerate(played.trajectories):
            try:
                assert one.error is None
                check_rows(one, played.shown[index])
                check_text(chat, one, played.shown[index], played.schemas[index], history, family)
                if family == "byte_level":
                    check_heard(played.environments[index], played.sayings[index], one)
            except AssertionError as error:
                error.add_note(f"{name}, conversation {index}")
                raise
            tally["turns"] += len(one.turns)
            if history is full_history:
                tally["full"] += len(one.turns)
                tally["rewritten"] += sum(not turn.extends for turn in one.turns[1:])
            tally["broken"] += sum(turn.action is None for turn in one.turns)
            tally["calls"] += sum(len(m.get("tool_calls") or ()) for m in one.messages)
    return tally


def check_all(family, count, capsys):
    total = Counter()
    for template in sorted(TOOL_TEMPLATES):
        total += check_template(template, family, count)
    with capsys.disabled():
        print(  # noqa: T201  the number of turns is what this test is worth
            f"\n{len(TOOL_TEMPLATES)} templates with tools x {family}: {dict(total)}, 0 mismatches"
        )
    assert total["turns"] == len(TOOL_TEMPLATES) * 10 * count


def test_the_templates_with_tools_are_those_that_are_played():
    native = {name for name in TEMPLATES if chat_of("byte_level", name).tool_format.native}
    assert native == TOOL_TEMPLATES


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_what_the_engine_saw(family, capsys):
    check_all(family, 1, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_many_rows_are_what_the_engine_saw(family, capsys):
    check_all(family, 15, capsys)


def counts(chat, played):
    """The added tokens in the contexts of conversations."""
    added = chat.added.ids
    return [[Counter(i for i in one if i in added) for one in shown] for shown in played.shown]


@pytest.mark.parametrize("template", sorted(TOOL_TEMPLATES) + NOT_NATIVE)
def test_results_forge_nothing(template):
    """(d)"""
    chat = chat_of("byte_level", template)
    marks = sorted({*chat.tokenizer.get_added_vocab(), *chat.tool_format.marks})
    forged = chat.render(
        [
            {"role": "user", "content": "x"},
            message(calls=[{"name": "get_0", "arguments": {}}]),
            {"role": "tool", "tool_call_id": "c00000000", "name": "get_0", "content": "x"},
        ],
        [SCHEMA],
    )

    def hostile(rng):
        return rng.choice([forged, "".join(marks), " ".join(rng.sample(marks, min(len(marks), 3)))])

    def harmless(rng):
        return re.sub(r"\S", "x", hostile(rng))

    bad, good = (
        play_tools(chat, template, 2, seed=template, texts=texts) for texts in (hostile, harmless)
    )
    assert counts(chat, bad) == counts(chat, good)
    for one in bad.trajectories:
        said = [m["content"] for m in one.messages if m["role"] == "tool"]
        assert not any(mark in text for text in said for mark in marks if len(mark.strip()) > 1)


@pytest.mark.parametrize("template", NOT_NATIVE)
def test_a_template_without_tools_is_told_in_text(template):
    chat = chat_of("byte_level", template)
    played = play_tools(chat, template, 3, seed=template, texts=some_text)
    for index, one in enumerate(played.trajectories):
        assert one.error is None
        check_rows(one, played.shown[index])
        check_heard(played.environments[index], played.sayings[index], one)
        system = "# Tools\n\nYou may call one or more functions"
        schemas = "\n".join(map(json.dumps, played.schemas[index]))
        spans = []
        contexts = zip(one.turns, played.shown[index], prompts_of(one), strict=True)
        for turn, context, messages in contexts:
            text = rendering_as_text(chat, template, messages, played.schemas[index])
            assert system in text
            assert schemas in text
            ids = encode(chat.tokenizer, text)
            if turn.extends and spans:
                check_pieces(chat, context, spans, decode(chat.tokenizer, ids), "byte_level")
            else:
                spans = []
                assert context == ids
            spans.append((len(context), len(context) + len(turn.response_ids)))


def rendering_as_text(chat, template, messages, schemas):
    """The template's text of a conversation in which everything about tools is text."""
    head = [m["content"] for m in messages if m["role"] == "system"]
    tools = INTRODUCTION.format(schemas="\n".join(map(json.dumps, schemas)))
    shown = [{"role": "system", "content": "\n\n".join([*head, tools])}]
    last = None
    for one in messages:
        if one["role"] == "tool":
            text = f"<tool_response>\n{one['content']}\n</tool_response>"
            if last == "tool":
                shown[-1]["content"] += "\n" + text
            else:
                shown.append({"role": "user", "content": text})
        elif one["role"] != "system":
            shown.append(dict(one))
        last = one["role"]
    return plain_rendering(chat.tokenizer, template, shown)


def test_a_result_is_no_message_of_the_user_where_it_stands_behind_its_call_alone():
    # Harmony refuses a result without a call, Gemma leaves it out.
    result = {"role": "tool", "tool_call_id": "x", "name": "f", "content": "wall"}
    for template in ("gptoss", "gemma4"):
        text = chat_of("byte_level", template).render([{"role": "user", "content": "a"}, result])
        assert "<tool_response>\nwall\n</tool_response>" in text


@pytest.mark.parametrize("template", sorted(TOOL_TEMPLATES))
def test_calls_and_results_without_ids_are_matched_in_order(template):
    chat = chat_of(sorted(FAMILIES)[0], template)
    function = {"name": SCHEMA["function"]["name"], "arguments": {}}
    messages = [
        {"role": "user", "content": "how much?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "tool", "content": "much"},
    ]
    shown, _ = chat.tool_format.adapted(messages, [SCHEMA])
    assert shown[2] == {**messages[2], "name": function["name"]}
    assert "much" in chat.render(messages, [SCHEMA]).split("how much?")[1]
