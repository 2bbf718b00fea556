"""Escaping: an observation can write no added token of the tokenizer, and ordinary text is left alone.

Mutations seen red: tokens only removed; normalizer ignored; C1 controls kept; controls kept;
newline removed; surrogates kept; added tokens not stripped; one pass; special tokens only;
unknown words removed; one-character token.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from agentic_trl.rollout.text.chat import ChatFormat, Conversation
from tests.tokenizers import FAMILIES, build, make, spell, template_marks

SYSTEM = "instructions: go up or down"
ESCAPED = ["qwen3", "gemma", "llama3", "phi3", "deepseekv3", "glm4moe", "smolvlm"]
CHATS = {
    (family, template): ChatFormat(build(family, template))
    for family in FAMILIES
    for template in ESCAPED
}


def hostile(template):
    """Texts that mix added tokens, parts of them, control characters, surrogates and anything else."""
    marks = [*template_marks(template), "<bos>", "<pad>", "<unk>"]
    cuts = st.tuples(st.sampled_from(marks), st.integers(0, 12), st.integers(0, 12))
    piece = st.one_of(
        st.sampled_from(marks),
        cuts.map(lambda c: c[0][c[1] : len(c[0]) - c[2]]),
        cuts.map(lambda c: c[0][: c[1]] + c[0] + c[0][c[1] :]),  # one inside another
        st.sampled_from(marks).flatmap(
            lambda m: st.sampled_from("\x00\x1b\r\x7f\x85\ud800 ").map(lambda c: m[:1] + c + m[1:])
        ),
        st.text(st.characters(codec=None), max_size=4),
    )
    return st.lists(piece, max_size=6).map("".join)


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def added_ids(tokenizer, ids):
    added = set(tokenizer.get_added_vocab().values()) - {tokenizer.unk_token_id}
    return [i for i in ids if i in added]


@pytest.mark.parametrize(("family", "template"), list(CHATS))
@settings(max_examples=40)
@given(data=st.data())
def test_observations_hold_no_added_token(family, template, data):
    chat = CHATS[family, template]
    text = data.draw(hostile(template))
    prompts = []
    for observation in (text, "wall"):
        conversation = Conversation(chat, system=SYSTEM)
        conversation.observe("row 0")
        conversation.add_response(spell(chat.tokenizer, "left"), text="left", end="")
        conversation.observe(observation)
        rendered = chat.render(conversation.messages)
        prompts.append(added_ids(chat.tokenizer, encode(chat.tokenizer, rendered)))
    assert prompts[0] == prompts[1]
    escaped = chat.escape(text)
    assert not [c for c in escaped if ord(c) < 32 and c not in "\t\n"]
    assert not [c for c in escaped if 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000]


@given(st.text(st.sampled_from("abc XYZ0129 .,;:!?<>|/()[]{}_-\t\né漢😀\u200d"), max_size=40))
def test_ordinary_text_is_left_alone(text):
    chat = CHATS["byte_level", "qwen3"]
    assert chat.escape(text) == text  # no token of the template is made of these letters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a<|im_end|>b", "a< |im_end|>b"),
        ("<think>", "< think>"),  # added, not special
        ("<|im_<|im_end|>end|>", "<|im_< |im_end|>end|>"),
        ("<|im_\x00end|>", "< |im_end|>"),  # only a token once the control character is gone
        ("a\x1b[31m\x9b31m\x85\rb\tc\nd", "ab\tc\nd"),
        ("\ud800x\udfff", "?x?"),
        ("< think>", "< think>"),
    ],
)
def test_escape_examples(text, expected):
    assert CHATS["byte_level", "qwen3"].escape(text) == expected


@pytest.mark.parametrize("token", [" a", "a ", " \n", "?", "#", "ab", "a b", "a  b", "b a"])
def test_escape_ends_for_odd_added_tokens(token):
    odd = [AddedToken(token, normalized=False)]
    tokenizer = make("byte_level", eos="<eos>", added=odd, template="{{ messages[-1].content }}")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    chat = ChatFormat(tokenizer)
    escaped = chat.escape("xx a b  a  b#aab? a\n")
    if token.strip() not in {"", "?"}:
        assert not added_ids(tokenizer, encode(tokenizer, escaped))


def test_a_split_token_is_split_again_if_it_is_another_token():
    tokenizer = make(
        "byte_level",
        eos="<eos>",
        added=["<go>", "< go>", "<  go>"],
        template="{% for m in messages %}{{ m.content }}{% endfor %}",
    )
    assert ChatFormat(tokenizer).escape("a <go>") == "a <   go>"


def test_unknown_words_are_left_alone():
    # A word-level tokenizer writes the added token <unk> for them, which is nobody's forgery.
    assert CHATS["word_level", "qwen3"].escape("zebra wall") == "zebra wall"


@pytest.mark.parametrize("family", ["byte_level", "metaspace"])
def test_a_normalizer_cannot_make_an_added_token(family):
    # NFKC and lower case turn full-width and upper-case letters into the token, before it is matched.
    tokenizer = make(
        family,
        eos="<eos>",
        added=[AddedToken("<go>", normalized=True), AddedToken("<stop>", normalized=True)],
        template="{% for m in messages %}{{ m.content }}{% endfor %}",
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    )
    chat = ChatFormat(tokenizer)
    for text in ("<GO>", "a ＜go＞ b", "<s<GO>top>", "<S<go>TOP> <GO>"):
        assert encode(tokenizer, "a <GO>")[-1] == tokenizer.convert_tokens_to_ids("<go>")
        assert not added_ids(tokenizer, encode(tokenizer, chat.escape(text)))
    assert chat.escape("a Word ＡＢ") == "a Word ＡＢ"
