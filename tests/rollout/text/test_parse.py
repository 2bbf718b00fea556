"""Actions and token kinds of answers, whatever the tokenisation.

The independent reference is ``kinds_by_bytes``: it knows the bytes of every token and the byte span of
the action, and nothing of decoding.

Mutations seen red: decode skips special tokens; first byte of a character not in span; token must
lie inside the span; token behind the span; token before the span; end always action; end never
action; any stop ends; think block not skipped; first closing; greedy span; no lines in action;
last span; not stripped; tags are no action; only first span; tag unescaped; reasoning tag fixed;
always lenient; end of a longer word; word anywhere; half characters given; last half dropped; no
context; no exact fallback; ends not monotone; tags: the closing tag of any name, the first name only,
without the tags; pairs: each unclosed tag looked for to the end, the search going
on behind the opening tag of a pair; the bare word looked for from the beginning; a piece for the end of the turn.
"""

import functools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from agentic_trl.environments.base import ActionFormat
from agentic_trl.rollout.text.chat import ChatFormat
from agentic_trl.rollout.text.parse import decode_pieces, find_actions, parse_response
from tests.tokenizers import _byte_characters, make, spell

R, A = 1, 2
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
PIECES = [
    "><",
    "<action>",
    "</action>",
    "</think>",
    "</think><action>",
    "left</",
    "a<ac",
    "tion>l",
    "go ",
]
"""Tokens longer than a byte, among them some that join the end of one tag to the start of another."""


@functools.cache
def chat():
    """A byte-level vocabulary: all bytes, ``PIECES``, and an end of turn."""
    table = _byte_characters()
    vocab = {table[byte]: byte for byte in range(256)}
    for piece in PIECES:
        vocab["".join(table[byte] for byte in piece.encode())] = len(vocab)
    core = Tokenizer(models.BPE(vocab, []))
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    return ChatFormat(tokenizer)


END = 256 + len(PIECES)
STOP = frozenset({END})


def ids_of(*pieces):
    """One id for a piece of ``PIECES``, the bytes of any other text; ``"<end>"`` ends the turn."""
    ids = []
    for piece in pieces:
        if piece == "<end>":
            ids.append(END)
        elif piece in PIECES:
            ids.append(256 + PIECES.index(piece))
        else:
            ids += list(piece.encode())
    return ids


def bytes_of(i):
    return bytes([i]) if i < 256 else PIECES[i - 256].encode()


def kinds_by_bytes(ids, spans):
    """Kinds of ids from their bytes, for byte spans of actions; the end of turn left out."""
    kinds, position = [], 0
    for i in ids:
        stop = position + len(bytes_of(i))
        kinds.append(A if any(position < b and a < stop for a, b in spans) else R)
        position = stop
    return kinds


def parse(*pieces, form=None):
    return parse_response(chat(), form or ActionFormat(), ids_of(*pieces), stop_ids=STOP)


def spans_in_bytes(text, *found):
    """Byte spans of substrings that occur once."""
    spans = []
    for part in found:
        assert text.count(part) == 1
        start = len(text[: text.index(part)].encode())
        spans.append((start, start + len(part.encode())))
    return spans


LEFT = "<action>left</action>"


@pytest.mark.parametrize(
    ("pieces", "kinds"),
    [
        # the tag is a token of its own
        (("hm", "<action>", "up", "</action>", "<end>"), [R, R, A, A, A, A, A]),
        # byte by byte: 8 + 2 + 9 action tokens
        (("hm", "<act", "ion>up</action>", "<end>"), [R, R] + [A] * 19 + [A]),
        # `><` ends the think tag and begins the action tag: it shares a character with the action
        (("</think", "><", "action>up</action>"), [R] * 7 + [A] + [A] * 18),
        # one token for both tags
        (("hm", "</think><action>", "up", "</action>"), [R, R, A, A, A, A]),
        # merged with the content, and with what comes before
        (("a<ac", "tion>l", "eft", "</action>", "<end>"), [A, A, A, A, A, A, A]),
        (("<action>", "left</", "action>", "!", "<end>"), [A] * 9 + [R, A]),
    ],
)
def test_kinds_by_hand(pieces, kinds):
    assert parse(*pieces).kinds == tuple(kinds)


def tokenisations(text):
    """Ways to write a text with bytes and ``PIECES``."""
    raw = text.encode()

    @st.composite
    def draw_ids(draw):
        ids, position = [], 0
        while position < len(raw):
            options = [i for i in range(256, END) if raw.startswith(bytes_of(i), position)]
            i = draw(st.sampled_from([raw[position], *options])) if options else raw[position]
            ids.append(i)
            position += len(bytes_of(i))
        return ids

    return draw_ids()


@given(st.data(), st.text(max_size=6), st.text("lefté😀< >\n", max_size=6), st.text(max_size=6))
def test_kinds_do_not_depend_on_the_tokenisation(data, before, content, after):
    text = f"<think>go {before}</think>a<action>{content}</action>{after}"
    ids = data.draw(tokenisations(text))
    ended = data.draw(st.booleans())
    answer = parse_response(chat(), ActionFormat(), ids + [END] * ended, stop_ids=STOP)
    spans = spans_in_bytes(text, f"<action>{content}</action>")
    assert answer.action == content.strip()
    assert answer.kinds == (*kinds_by_bytes(ids, spans), *([A] if ended else []))
    assert answer.text == text
    assert len(answer.pieces) == len(ids)
    assert answer.end == ("<end>" if ended else "")


@given(st.text(max_size=12), st.data())
def test_pieces_join_to_the_text(text, data):
    ids = data.draw(tokenisations(text))
    pieces = decode_pieces(chat(), ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    # every character is with the id that completes it
    position = 0
    for i, piece in zip(ids, pieces, strict=True):
        start, position = position, position + len(bytes_of(i))
        whole = text.encode()[:position].decode(errors="ignore")
        assert piece == whole[len(text.encode()[:start].decode(errors="ignore")) :] or "�" in text


@given(st.lists(st.integers(0, END - 1), max_size=12))
def test_pieces_of_any_bytes_join_to_the_decoded_text(ids):
    pieces = decode_pieces(chat(), ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == chat().decode(ids)


def test_a_stray_byte_changes_the_text_of_earlier_ids():
    # Byte fallback decodes a run of bytes as a whole: "a" is "�" if it is not valid UTF-8.
    odd = make("metaspace", eos="<end>", template=TEMPLATE)
    ids = odd.convert_tokens_to_ids(["b", "<0x61>", "<0x61>", "<0x61>", "<0xFF>", "b"])
    assert odd.decode(ids) == "b����b"
    assert decode_pieces(ChatFormat(odd), ids) == ["b", "", "", "", "����", "b"]


@pytest.mark.parametrize("family", ["metaspace", "word_level"])
@given(data=st.data())
def test_pieces_join_for_other_decoders(family, data):
    odd = make(family, eos="<end>", added=[AddedToken("<go>", special=False)], template=TEMPLATE)
    ids = data.draw(st.lists(st.integers(0, len(odd) - 1), max_size=10))
    other = ChatFormat(odd)
    assert "".join(decode_pieces(other, ids)) == other.decode(ids)


@pytest.mark.parametrize("family", ["byte_level", "metaspace"])
def test_decoding_takes_linear_time(family):
    # Every id is decoded a few times, and not once for every id behind it; the text ends inside a 😀.
    class Counting(ChatFormat):
        decoded = 0

        def decode(self, ids):
            self.decoded += len(ids)
            return super().decode(ids)

    counting = Counting(make(family, eos="<end>", template=TEMPLATE))
    ids = spell(counting.tokenizer, "go left é 😀 " * 20 + "😀")[:-1]
    assert "".join(decode_pieces(counting, ids)) == counting.tokenizer.decode(ids)
    assert counting.decoded < 20 * len(ids)


def test_an_emoji_split_over_tokens_inside_and_outside_of_the_action():
    answer = parse("é😀", "<action>", "😀", "</action>", "😀", "<end>")
    assert answer.kinds == (*[R] * 6, A, *[A] * 4, A, *[R] * 4, A)
    assert answer.action == "😀"


def test_the_first_span_is_the_action_and_every_span_is_action():
    answer = parse("<action>", " up ", "</action>", "or", "<action>", "down", "</action>", "<end>")
    assert answer.action == "up"
    assert answer.kinds == (*[A] * 6, R, R, *[A] * 6, A)


def test_a_tag_inside_the_think_block_is_no_action():
    inside = "<think><action>up</action></think>"
    answer = parse(inside, LEFT, "<end>")
    assert answer.action == "left"
    assert answer.kinds == tuple([R] * len(inside) + [A] * len(LEFT) + [A])
    alone = parse(inside, "<end>")
    assert alone.action is None
    assert set(alone.kinds) == {R}
    twice = parse("<think>a</think><action>up</action>b</think>", LEFT)
    assert twice.action == "left"  # behind the last closing tag
    opened_by_the_prompt = parse("<action>up</action></think>", LEFT)
    assert opened_by_the_prompt.action == "left"


@pytest.mark.parametrize(
    "text",
    ["<action>left", "left</action>", "</action>left<action>", "<Action>x</Action>", "left", ""],
)
def test_without_a_pair_all_is_reasoning(text):
    for pieces in ((text,), (text, "<end>")):
        answer = parse(*pieces)
        assert answer.action is None
        assert answer.kinds == tuple([R] * len(ids_of(*pieces)))
        assert answer.text == text


def test_content_is_stripped_and_may_hold_lines_or_nothing():
    assert parse("<action>\n a\n b \n</action>").action == "a\n b"
    assert parse("<action></action>").action == ""


def test_only_a_last_stop_id_ends_the_answer():
    answer = parse(LEFT, "<end>", "x")
    assert (answer.end, answer.text) == ("", LEFT + "<end>x")
    assert answer.kinds == (*[A] * len(LEFT), R, R)
    assert parse("<end>").kinds == (R,)
    other = parse_response(
        chat(), ActionFormat(), ids_of(LEFT, "x"), stop_ids=frozenset({ord("x")})
    )
    assert (other.end, other.kinds[-1], other.text) == ("x", A, LEFT)


LENIENT = ActionFormat(words=("up", "left", "up-left"), lenient=True)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("I go left", "left"),
        ("I go up-left.", "up-left"),
        ("LEFT!\n", "LEFT"),
        ("</think>up", "up"),
        ("up</think>", None),
        ("left is best", None),
        ("cleft", None),
        ("lefty", None),
        ("<action>up", "up"),
        ("...", None),
    ],
)
def test_lenient_takes_a_bare_word_at_the_end(text, span):
    answer = parse(text, "<end>", form=LENIENT)
    assert answer.action == span
    spans = [] if span is None else spans_in_bytes(text, span)
    last = R if span is None else A
    assert answer.kinds == (*kinds_by_bytes(ids_of(text), spans), last)
    assert parse(text, form=ActionFormat(words=LENIENT.words)).action is None


def test_a_word_that_begins_with_a_split_character():
    form = ActionFormat(words=("öst",), lenient=True)
    assert parse("go öst", "<end>", form=form).kinds == (R, R, R, A, A, A, A, A)


def test_lenient_prefers_tags():
    text = LEFT + " up"
    assert parse(text, form=LENIENT).action == "left"
    assert find_actions(text, LENIENT) == ([(0, len(LEFT))], "left")


def test_custom_tags():
    form = ActionFormat(tag="m.ve", reasoning_tag="plan")
    text = "<plan><m.ve>a</m.ve></plan><move>b</move><m.ve>c</m.ve></think>"
    answer = parse(text, "<end>", form=form)
    assert answer.action == "c"
    assert answer.kinds.count(A) == len("<m.ve>c</m.ve>") + 1
    assert parse(LEFT, form=form).action is None


def test_words_and_their_spaces_in_a_word_level_vocabulary():
    tokenizer = make(
        "word_level",
        eos="<end>",
        added=[AddedToken("<action>", special=False), AddedToken("</action>", special=False)],
        template=TEMPLATE,
    )
    ids = [*spell(tokenizer, "the wall <action> left </action> up"), tokenizer.eos_token_id]
    answer = parse_response(
        ChatFormat(tokenizer), ActionFormat(), ids, stop_ids=frozenset({tokenizer.eos_token_id})
    )
    assert answer.action == "left"
    assert answer.kinds == (R, R, A, A, A, R, A)


TAGS = ActionFormat(tags=("search", "answer"))


def test_several_tags_are_an_action_each_and_keep_their_name():
    text = "hm <search> a\nb </search> or <answer>c</answer>"
    answer = parse(text, "<end>", form=TAGS)
    assert answer.action == "<search> a\nb </search>"
    spans = spans_in_bytes(text, "<search> a\nb </search>", "<answer>c</answer>")
    assert answer.kinds == (*kinds_by_bytes(ids_of(text), spans), A)
    assert TAGS.split(answer.action) == ("search", "a\nb")
    assert parse("</think><answer>c</answer>", form=TAGS).action == "<answer>c</answer>"
    # byte-level tokens that share a character with the tag
    assert parse("hm", "><", "answer>c</answer>", "<end>", form=TAGS).kinds == (R, R, *[A] * 19)


@pytest.mark.parametrize(
    "text",
    [
        "<search>a</answer>",
        "<think><search>a</search></think>",
        "<action>up</action>",
        "<searchanswer>a</searchanswer>",
        "<search>a",
    ],
)
def test_without_a_pair_of_one_of_the_tags_all_is_reasoning(text):
    answer = parse(text, "<end>", form=TAGS)
    assert answer.action is None
    assert set(answer.kinds) == {R}


def test_a_tag_that_is_never_closed_does_not_hide_a_later_pair():
    text = "<search>a <answer>b</answer>"
    assert find_actions(text, TAGS) == ([(10, 28)], "<answer>b</answer>")
    inner = "<search><answer>b</answer></search>"
    assert find_actions(inner, TAGS) == ([(0, len(inner))], inner)


def test_formats_with_several_tags():
    assert TAGS.describe() == (
        "Answer with <think>your reasoning</think> and then <search>your search</search> or "
        "<answer>your answer</answer>."
    )
    assert ActionFormat().describe() == (
        "Answer with <think>your reasoning</think><action>your action</action>."
    )
    assert ActionFormat(tags=("answer",)).split(" <answer> x </answer>\n") == ("answer", "x")
    for action in ("x", "<answer>x</search>", "<answer>x</answer>y", "<other>x</other>", ""):
        assert TAGS.split(action) == ("", "")
    for wrong in ({"words": ("a",)}, {"whole": True}):
        with pytest.raises(ValueError, match=r"expected `tags` alone"):
            ActionFormat(tags=("a", "b"), **wrong)


def test_kinds_take_time_linear_in_the_pairs():
    # Each of 20,000 pairs was compared with each of 20,000 tokens.
    pair = chat().tokenizer.convert_tokens_to_ids(["<action>", "</action>"])
    began = time.process_time()
    answer = parse_response(chat(), ActionFormat(), pair * 20_000, stop_ids=frozenset())
    assert time.process_time() - began < 10  # 400 million comparisons take a minute
    assert set(answer.kinds) == {A}


def find_by_one_expression(text, action_format):
    """The contract as a regular expression of the whole pair, and of a bare word: right, and not linear."""
    closing = f"</{action_format.reasoning_tag}>"
    start = text.rfind(closing) + len(closing) if closing in text else 0
    names = "|".join(map(re.escape, action_format.names))
    matches = list(re.compile(rf"<({names})>(.*?)</\1>", re.DOTALL).finditer(text, start))
    if matches:
        first = matches[0][0] if action_format.tags else matches[0][2].strip()
        return [match.span() for match in matches], first
    if action_format.lenient:
        words = "|".join(re.escape(word) for word in action_format.words)
        bare = re.compile(rf"(?<!\w)({words})\W*$", re.IGNORECASE).search(text, start)
        if bare:
            return [bare.span(1)], bare.group(1)
    return [], None


FORMATS = [
    ActionFormat(),
    ActionFormat(tags=("a", "ab")),
    ActionFormat(words=("left", "!", "go left", "!!", "\u00e9"), lenient=True),
]
PARTS = ["<a>", "</a>", "<ab>", "</ab>", "<action>", "</action>", "</think>", "<", ">", "a", " "]
PARTS += ["left", "LEFT", "go ", "!", "\n", "\u00e9", ".", "x"]


@pytest.mark.parametrize("action_format", FORMATS, ids=["one tag", "tags", "words"])
@given(parts=st.lists(st.sampled_from(PARTS), max_size=14))
def test_actions_are_those_of_one_expression(action_format, parts):
    text = "".join(parts)
    assert find_actions(text, action_format) == find_by_one_expression(text, action_format)


@pytest.mark.parametrize(
    ("text", "action_format"),
    [
        ("<action>" * 4000, FORMATS[0]),
        ("<action>left " * 4000 + "<action>", FORMATS[0]),
        ("<a><ab>" * 4000, FORMATS[1]),
        ("</a><ab></ab><a>" * 4000, FORMATS[1]),
        ("!" * 20_000 + "x", FORMATS[2]),
        ("left" + "." * 20_000 + "x" + "." * 20_000, FORMATS[2]),
    ],
    ids=["unclosed", "text between", "two names", "one of two", "words", "no words"],
)
def test_finding_takes_time_linear_in_the_text(text, action_format):
    began = time.process_time()
    find_actions(text, action_format)
    assert time.process_time() - began < 0.1
