"""Token contexts of conversations against the templates' own rendering, and escaping of observations.

Mutations seen red: empty rest extends; end doubled; spaces before end matter; trailing white
space doubled; leading white space is a difference; answer not stripped; sampled ids encoded
again; extending prompt encoded as a whole; rewrite says extends; rest encoded without eos; eos
kept in rest; no merge of system; hidden messages accepted; no parts; off by one; loses system;
note escaped; template kwargs lost.
"""

import re

import pytest

from agentic_trl.rollout.text.chat import ChatFormat, Conversation, WindowHistory
from agentic_trl.rollout.text.chat_format import SHORT
from tests.tokenizers import ENDS, FAMILIES, build, make, rendering, spell

SYSTEM = "instructions: go up or down"
OBSERVATIONS = ["row 0 you see: a hole", "  row 1 column 2!\n", "you see a goal", "wall", "turn 4"]
ANSWERS = ["alpha", "go beta", "gamma", "delta (move 2)", "the omega"]
"""No observation and no template has these words, so that an answer is found by its text."""
THOUGHT = "<think>\nthe omega\n</think>\n\nalpha"
APPENDING = sorted(
    {"cohere", "gemma", "gemma3", "gemma4", "idefics3", "lfm2", "lfm2_2_5", "llama3", "llama3_1"}
    | {"llama3_2", "llava_next", "phi3", "phi3_5", "qwen2_5", "qwen2_5_vl", "qwen3"}
    | {"qwen3_instruct_2507", "smolvlm"}
)
"""Templates whose every prompt continues the last one, if answers hold no thinking."""


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def decode(tokenizer, ids):
    return tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def play(family, template, answers, *, cut=(), history=None, observations=OBSERVATIONS):
    """Play a conversation; check every prompt against the last one and against the template's text.

    Returns a list of ``(prompt, sampled ids)`` and the tokenizer. Answers are spelled in pieces that
    the tokenizer would not choose; those in ``cut`` have no end-of-turn token.
    """
    tokenizer = build(family, template)
    arguments = {} if history is None else {"history": history}
    conversation = Conversation(ChatFormat(tokenizer), system=SYSTEM, **arguments)
    messages = [{"role": "system", "content": SYSTEM}]
    context, played = (), []
    for turn, (observation, answer) in enumerate(zip(observations, answers, strict=False)):
        prompt = conversation.observe(observation)
        messages.append({"role": "user", "content": observation})
        shown = messages if history is None else history(messages)
        text = rendering(tokenizer, template, shown)
        if prompt.extends:
            assert prompt.context_ids == context + prompt.new_ids
            check_text(tokenizer, family, prompt.context_ids, text, answers[:turn])
        else:
            assert prompt.context_ids == prompt.new_ids == tuple(encode(tokenizer, text))
        end = "" if turn in cut else ENDS[template]
        ids = (*spell(tokenizer, answer), *([tokenizer.eos_token_id] if end else []))
        conversation.add_response(ids, text=answer, end=end)
        messages.append({"role": "assistant", "content": answer})
        context = prompt.context_ids + ids
        played.append((prompt, ids))
    return played, tokenizer


def check_text(tokenizer, family, context, text, answers):
    """The context reads like the template's text, but for white space around answers."""
    expected = decode(tokenizer, encode(tokenizer, text))
    if family == "byte_level":
        assert expected == text
    if not all(answer.strip() for answer in answers):
        assert "".join(expected.split()) == "".join(decode(tokenizer, context).split())
        return
    pattern, rest = "", expected
    for index, answer in enumerate(answers):
        spelled = decode(tokenizer, spell(tokenizer, answer)).strip()
        assert rest.count(spelled) == answers[index:].count(answer)
        before, rest = rest.split(spelled, 1)
        pattern += re.escape(before.rstrip()) + r"\s*" + re.escape(spelled) + r"\s*"
        rest = rest.lstrip()
    assert re.fullmatch(pattern + re.escape(rest), decode(tokenizer, context))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("template", sorted(ENDS))
@pytest.mark.parametrize(
    ("answers", "cut"),
    [(ANSWERS, ()), (ANSWERS, (0, 2)), ([f" {a}\n" for a in ANSWERS], (1,))],
    ids=["ended", "cut", "spaced"],
)
def test_contexts_read_like_the_template(family, template, answers, cut):
    played, _ = play(family, template, answers, cut=cut)
    extends = [prompt.extends for prompt, _ in played]
    assert not extends[0]
    if template in APPENDING:
        assert all(extends[1:])


@pytest.mark.parametrize("template", APPENDING)
def test_the_end_of_turn_is_written_once(template):
    # byte level, where nothing hides: turn 0 ended by the policy, turn 1 cut, turn 2 ended
    played, tokenizer = play("byte_level", template, ANSWERS[:4], cut=(1,))
    end = tokenizer.eos_token_id
    after_ended, after_cut, again = (prompt.new_ids for prompt, _ in played[1:])
    assert after_ended[0] != end
    assert end in after_cut[:2]  # llava_next and the like put a space before
    assert again[0] != end
    messages = [{"role": "system", "content": SYSTEM}]
    for observation, answer in zip(OBSERVATIONS[:4], ANSWERS[:4], strict=True):
        messages += [{"role": "user", "content": observation}]
        messages += [{"role": "assistant", "content": answer}]
    written = rendering(tokenizer, template, messages[:-1])
    assert played[3][0].context_ids.count(end) == encode(tokenizer, written).count(end)


@pytest.mark.parametrize("template", ["qwen3", "lfm2_2_5", "deepseekv3", "qwen3_5_think_training"])
@pytest.mark.parametrize("family", FAMILIES)
def test_stripped_thinking_starts_a_row(family, template):
    # The prompt of turn 2 shows the thoughts of turn 1 no longer, or differently from what was sampled.
    played, tokenizer = play(family, template, [THOUGHT] * 3)
    assert [prompt.extends for prompt, _ in played] == [False, False, False]
    if template != "qwen3_5_think_training":
        thought = decode(tokenizer, spell(tokenizer, "the omega"))
        assert thought not in decode(tokenizer, played[2][0].context_ids)


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        ("qwen3_training", THOUGHT),  # the policy opens its block
        ("qwen3_5_think_training", THOUGHT.removeprefix("<think>\n")),  # the prompt opens it
        ("qwen3_instruct_2507", THOUGHT),
    ],
)
@pytest.mark.parametrize("family", ["byte_level", "metaspace"])
def test_kept_thinking_is_one_row(family, template, answer):
    played, _ = play(family, template, [answer] * 3)
    assert [prompt.extends for prompt, _ in played] == [False, True, True]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_window_shows_the_last_exchanges(family, turns):
    # play() compares each prompt with the rendering of what the window leaves. Until it is full, it
    # leaves everything.
    played, _ = play(family, "qwen2_5", ANSWERS, history=WindowHistory(turns))
    assert [prompt.extends for prompt, _ in played] == [0 < t <= turns for t in range(5)]


def test_window_keeps_system_and_alternates():
    roles = ["system", "user", "assistant", "user", "assistant", "user"]
    messages = [{"role": role, "content": str(i)} for i, role in enumerate(roles)]

    def visible(turns, of):
        return [int(message["content"]) for message in WindowHistory(turns)(of)]

    assert [visible(turns, messages) for turns in range(4)] == [
        [0, 5],
        [0, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
    ]
    assert [visible(turns, messages[1:]) for turns in range(3)] == [[5], [3, 4, 5], [1, 2, 3, 4, 5]]


def test_a_window_that_shows_the_same_again_is_a_new_row():
    # A cut answer of white space leaves no trace in the text; the window shows the observation only.
    tokenizer = build("byte_level", "qwen2_5")
    conversation = Conversation(ChatFormat(tokenizer), system="", history=WindowHistory(0))
    first = conversation.observe("wall")
    conversation.add_response(spell(tokenizer, "\n"), text="\n", end="")
    second = conversation.observe("wall")
    assert not second.extends
    assert second.context_ids == first.context_ids


def test_an_answer_of_white_space_or_nothing():
    # Both templates trim: the sampled ids stay, and the end of turn that was cut is added.
    for template in ("qwen2_5", "gemma"):
        for answer in ("", "\n", " \n "):
            for cut in ((), (0,)):
                played, tokenizer = play("byte_level", template, [answer, "left"], cut=cut)
                new = played[1][0].new_ids
                assert played[1][0].extends
                assert (tokenizer.eos_token_id in new[:1]) == bool(cut)


@pytest.mark.parametrize("answer", ["alpha", "alpha \n", " \nalpha\t"])
def test_white_space_that_the_template_keeps_is_written_once(answer):
    # Qwen2.5 changes nothing, so the context is its text to the letter, cut or not.
    played, tokenizer = play("byte_level", "qwen2_5", [answer] * 3, cut=(0,))
    messages = [{"role": "system", "content": SYSTEM}]
    for turn, (prompt, _) in enumerate(played):
        messages.append({"role": "user", "content": OBSERVATIONS[turn]})
        text = rendering(tokenizer, "qwen2_5", messages)
        assert decode(tokenizer, prompt.context_ids) == text
        messages.append({"role": "assistant", "content": answer})


def test_another_end_of_turn_than_the_template_s_is_a_new_row():
    tokenizer = make(
        "byte_level",
        eos="<|im_end|>",
        added=["<|im_start|>", "<|endoftext|>"],
        template=build("byte_level", "qwen2_5").chat_template,
    )
    conversation = Conversation(ChatFormat(tokenizer), system="")
    conversation.observe("wall")
    ids = (*spell(tokenizer, "left"), tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    conversation.add_response(ids, text="left", end="<|endoftext|>")
    second = conversation.observe("wall")
    assert not second.extends
    assert "<|endoftext|>" not in tokenizer.decode(second.context_ids)


def test_a_split_character_keeps_its_ids():
    # The policy stops after the first byte of a character; the template sees U+FFFD, the ids stay.
    tokenizer = build("byte_level", "qwen2_5")
    conversation = Conversation(ChatFormat(tokenizer), system="")
    first = conversation.observe("wall")
    ids = tuple(spell(tokenizer, "é")[:1])
    conversation.add_response(ids, text=tokenizer.decode(ids), end="")
    second = conversation.observe("goal")
    assert second.extends
    assert second.context_ids[: len(first.context_ids) + 1] == first.context_ids + ids
    assert second.new_ids[0] == tokenizer.eos_token_id


def test_an_end_of_turn_that_is_white_space():
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    tokenizer = make("byte_level", eos="<eos>", template=template)
    conversation = Conversation(ChatFormat(tokenizer), system="")
    conversation.observe("wall")
    conversation.add_response(spell(tokenizer, " left\n"), text=" left", end="\n")
    prompt = conversation.observe("goal")
    assert prompt.extends
    assert (
        tokenizer.decode(prompt.context_ids)
        == "user: wall\nassistant: left\nuser: goal\nassistant:"
    )


def test_notes_are_not_escaped_and_observations_are():
    tokenizer = build("byte_level", "qwen2_5")
    conversation = Conversation(ChatFormat(tokenizer), system="")
    conversation.observe("a<|im_end|>b", note="use <tool_call>\n")
    assert conversation.messages == [
        {"role": "user", "content": "use <tool_call>\na< |im_end|>b"},
    ]


def test_a_template_that_hides_messages_is_refused_and_one_that_hides_the_system_is_merged():
    hides = "{% for m in messages %}{% if m.role != 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(ValueError, match="does not show"):
        ChatFormat(make("byte_level", eos="<eos>", template=hides))
    with pytest.raises(ValueError, match="no chat template"):
        ChatFormat(make("byte_level", eos="<eos>"))
    chat = ChatFormat(
        make("byte_level", eos="<eos>", template=hides.replace("!= 'user'", "!= 'system'"))
    )
    messages = [{"role": "system", "content": "go up"}, {"role": "user", "content": "wall"}]
    assert chat.render(messages) == "go up\n\nwall"
    assert chat.render(messages[1:]) == "wall"


def test_template_variables_reach_the_template():
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ mode }}"
    tokenizer = make("byte_level", eos="<eos>", template=template)
    chat = ChatFormat(tokenizer, template_kwargs={"mode": "!x"})
    assert chat.render([{"role": "user", "content": "a"}]) == "a!x"


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_a_rest_gets_no_space_that_only_a_text_s_start_gets(scheme):
    from tokenizers import pre_tokenizers

    tokenizer = make(
        "metaspace", eos="</s>", template="{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme=scheme, split=False
    )
    whole = encode(tokenizer, "up</s>up")
    end = whole.index(tokenizer.eos_token_id)
    chat = ChatFormat(tokenizer)
    for _ in range(2):  # the second time from memory
        assert list(chat.encode("up", first=False)) == whole[end + 1 :]
        assert list(chat.encode("up", first=True)) == whole[:end]
    assert whole[:end] != whole[end + 1 :] or scheme == "always"


def test_the_ids_of_the_last_short_texts_are_remembered(monkeypatch):
    chat = ChatFormat(make("byte_level", eos="<eos>", template="{{ messages[0].content }}"))
    encode, asked = chat.tokenizer.encode, []
    monkeypatch.setattr(
        chat.tokenizer,
        "encode",
        lambda text, **kwargs: asked.append(text) or encode(text, **kwargs),
    )
    for text in ("a" * SHORT, "b" * (SHORT + 1)):
        assert chat.encode(text, first=True) == chat.encode(text, first=True)
    assert [text[0] for text in asked] == ["a", "b", "b"]


def test_a_package_that_templates_need_is_named(monkeypatch):
    tokenizer = build("byte_level", "qwen3")

    def old(*given, **more):
        raise ImportError("apply_chat_template requires jinja2>=3.1.6 to be installed.")

    monkeypatch.setattr(tokenizer, "apply_chat_template", old)
    with pytest.raises(ImportError, match="requires jinja2"):
        ChatFormat(tokenizer)
