"""Random conversations under every chat template that TRL ships, played through ``collect``.

For every turn of every conversation:

(a) the row that ``build_rows`` makes of the recorded turns holds, position by position, the context
    that the engine was shown and the ids that it sampled, and no other position counts as sampled;
(b) decoded, that context is the template's own rendering of the visible messages. If the prompt
    starts a row, it is that rendering encoded, id by id. If it extends a row, white space around the
    sampled answers may differ, because templates trim answers and put line breaks around them. A
    tokenizer of words loses all white space, and so it is compared without any.
(c) templates that strip or rewrite what the policy said start a new row at the next prompt. Which
    ones do so, for answers with and without a thinking block, is pinned, and the metric
    ``rollout/rewritten_rows`` counts these rows.

Each conversation is a function of (template, family, style, index), which a failure prints.

Mutations seen red: (a) a row repeats a token of the glue; sampled ids encoded again; (b) the rest begins
inside a token of the template; end of turn written twice; (c) thinking always starts a row; the metric
counts first rows.
"""

import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from jinja2 import TemplateError

from agentic_trl.batching import build_rows
from agentic_trl.environments.base import TextEnv
from agentic_trl.evaluation import EpisodeRecord, summarize
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat, Conversation, WindowHistory, full_history
from tests.rollout.scripted import Waves, given
from tests.tokenizers import (
    FAMILIES,
    FOLDER,
    TURN_ENDS,
    build,
    rendering,
    respell,
    smollm2,
    spell,
    template_marks,
)

TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
NOT_PLAYED: dict[str, str] = {}
"""Templates that no conversation of plain text can be rendered with, each with the reason."""


def and_training(*names):
    return {*names, *(f"{name}_training" for name in names)}


ALWAYS = and_training("cohere2", "deepseek_r1_distill", "deepseekv3", "glm4moe", "gptoss")
ALWAYS |= and_training("muse_glimmer", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra")
ALWAYS |= and_training("nemotron_3_5_lightning", "qwen3_8")
ALWAYS |= {"qwen3_5_nothink", "qwen3_5_think", "qwen3_6"}
"""Templates that write an answer otherwise in the history than as it was sampled: with another end of
turn, or without the thinking tag that the prompt ended with, or with one of their own."""
REWRITES = {
    "plain": ALWAYS | {"qwen3_5_think_training", "qwen3_6_training", "qwen3_training"},
    "thinking": ALWAYS
    | {"lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "qwen3", "qwen3_5_nothink_training"},
}
"""Templates with rewritten rows: for answers without any thinking, which some fill in as an empty block,
and for those with a well-formed block, which some strip."""
WORDS_REWRITE = {"qwen3_5_think_training", "qwen3_6_training", "qwen3_training"}
"""Those that keep a block with its line breaks, which a tokenizer of words cannot write."""

STYLES = {"plain": 2, "thinking": 1, "mixed": 2, "window": 1}
"""Kinds of conversations, and how many of each are played per template at scale 1."""
TEXTS = [
    "wall",
    "you see: a hole, a goal;",
    "go (up) or (down)!",
    "row 0",
    "...",
    "?!",
    "a<b>c",
    "-",
]
TEXTS += ["é", "漢字", "😀👩‍💻", "½", "“x”", "\u00a0", "\u3000", "\u200b", "▁", "Ġ", "{{ x }}"]
TEXTS += [
    "\n",
    "\n\n",
    " ",
    "  ",
    "\t",
    "\r\n",
    "0x1F",
    "user",
    "assistant",
    "system",
    "[x]",
    "\\n",
]


@dataclass
class Count:
    """What was played."""

    turns: int = 0
    rewritten: int = 0
    rewriting: dict[str, set] = field(default_factory=lambda: defaultdict(set))
    """Templates with a row beyond the first, for each style."""


class Talk(TextEnv):
    """Says what it is told to say, whatever the policy does."""

    def __init__(self, instructions, observations):
        self.instructions, self.observations = instructions, list(observations)

    def reset(self, *, seed=None, options=None):
        return self.observations.pop(0), {}

    def step(self, action):
        return self.observations.pop(0), 1.0, False, False, {}


class Player(Waves):
    """Gives prepared answers and keeps the contexts that it was shown."""

    def __init__(self, answers):
        self.answers = answers
        self.shown = [[] for _ in answers]

    def generate(self, requests):
        samples = []
        for request in requests:
            shown = self.shown[request.episode]
            ids, cut = self.answers[request.episode][len(shown)]
            shown.append(request.context_ids)
            samples.append(Sample(ids=ids, logprobs=(-0.5,) * len(ids), truncated=cut))
        return samples


def encode(tokenizer, text):
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def decode(tokenizer, ids):
    return tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def some_text(rng, most=6, marks=()):
    pieces = [*TEXTS, *marks] if marks else TEXTS
    glue = rng.choice(["", " "])
    return glue.join(rng.choice(pieces) for _ in range(rng.randint(0, most)))


def thought(rng):
    """A thinking block with something in it, without the opening tag's line."""
    inside = " ".join(rng.choice(["wall", "so", "up", "the hole", "é"]) for _ in range(3))
    return f"{inside}\n</think>\n\n"


def action(rng):
    return f"<action>{rng.choice(['up', 'left', 'go 3', 'é'])}</action>"


def an_answer(rng, style, *, opened, marks):
    """Text of an answer; ``opened`` prompts end inside a thinking block."""
    if style == "thinking":
        return ("" if opened else "<think>\n") + thought(rng) + action(rng)
    around = some_text(rng, 2), some_text(rng, 2)
    body = rng.choice([action(rng), some_text(rng), "", action(rng) + action(rng)])
    if style != "plain" and rng.random() < 0.5:
        odd = [f"<think>\n{thought(rng)}", thought(rng), "<think>", "</think>", "<think></think>"]
        body = rng.choice([*odd, *marks]) + body
    return around[0] + body + around[1]


def an_answer_s_ids(rng, tokenizer, text, style):
    """Sampled ids, and whether the answer is cut: never empty, sometimes cut inside a character."""
    ids = respell(rng, tokenizer, text)
    cut = bool(ids) and style != "thinking" and rng.random() < 0.25
    if cut:
        ids = ids[: rng.randint(1, len(ids))]
    return tuple(ids) if cut else (*ids, tokenizer.eos_token_id), cut


def play(chat, style, count, *, seed, marks):
    """Play conversations of a style; return trajectories, contexts as shown, and the history."""
    rng = random.Random(seed)
    opened = chat.render([{"role": "user", "content": "wall"}]).rstrip().endswith("<think>")
    history = WindowHistory(rng.randint(0, 3)) if style == "window" else full_history
    environments, answers, starts = [], [], []
    for index in range(count):
        turns = rng.randint(2, 8)
        observed = [some_text(rng, marks=marks) for _ in range(turns + 1)]
        environments.append(Talk(some_text(rng), observed))
        texts = [an_answer(rng, style, opened=opened, marks=marks) for _ in range(turns)]
        answers.append([an_answer_s_ids(rng, chat.tokenizer, text, style) for text in texts])
        starts.append(Start(task={}, group=index, member=0, seed=(index,), max_turns=turns))
    engine = Player(answers)
    stop = frozenset({chat.tokenizer.eos_token_id})
    limits = Limits(max_tokens_per_turn=1)  # the engine's answers are prepared, whatever the limit
    rollout = Rollout(engine=engine, chat=chat, stop_ids=stop, limits=limits, history=history)
    return collect(*given(starts, environments), rollout), engine.shown, history


def check_rows(trajectory, shown):
    """(a)"""
    rows = build_rows([trajectory])
    turns = trajectory.turns
    starts = [t for t, turn in enumerate(turns) if t == 0 or not turn.extends]
    assert len(rows) == len(starts)
    for row, first, end in zip(rows, starts, [*starts[1:], len(turns)], strict=True):
        ids, owners = row.input_ids.tolist(), row.turn_of_token.tolist()
        assert ids == [*shown[end - 1], *turns[end - 1].response_ids]
        expected = [-1] * len(ids)
        for t in range(first, end):
            begin = len(shown[t])
            assert tuple(ids[:begin]) == shown[t]
            stop = begin + len(turns[t].response_ids)
            assert tuple(ids[begin:stop]) == turns[t].response_ids
            expected[begin:stop] = [t] * (stop - begin)
        assert owners == expected
        assert [kind > 0 for kind in row.kind.tolist()] == [owner >= 0 for owner in owners]


def check_text(tokenizer, template, trajectory, shown, history, family):
    """(b)"""
    eos = tokenizer.eos_token_id
    first = 1 if trajectory.messages[0]["role"] == "system" else 0
    spans = []  # where the answers of the row stand in the context
    for t, (turn, context) in enumerate(zip(trajectory.turns, shown, strict=True)):
        visible = history(trajectory.messages[: first + 2 * t + 1])
        ids = encode(tokenizer, rendering(tokenizer, template, visible))
        if t == 0 or not turn.extends:
            spans = []
            assert context == ids
        else:
            check_added(tokenizer, context, spans, ids)
            check_pieces(tokenizer, context, spans, decode(tokenizer, ids), family)
        body = turn.response_ids[:-1] if turn.response_ids[-1] == eos else turn.response_ids
        assert trajectory.messages[first + 2 * t + 1]["content"] == decode(tokenizer, body)
        spans.append((len(context), len(context) + len(body)))


def check_added(tokenizer, context, spans, ids):
    """What was not sampled holds the same added tokens as the rendering outside its answers."""
    added = set(tokenizer.get_added_vocab().values()) - {tokenizer.unk_token_id}
    given, said = list(context), []
    for start, end in reversed(spans):
        said += encode(tokenizer, decode(tokenizer, given[start:end]))
        del given[start:end]
    counts = Counter(i for i in (*given, *said) if i in added)
    assert counts == Counter(i for i in ids if i in added)


def check_pieces(tokenizer, context, spans, text, family):
    """A context reads like a text, but for white space around the answers."""
    whole = decode(tokenizer, context)
    if family == "word_level" or (family == "metaspace" and "�" in whole):
        # Words lose white space. In byte fallback, a stray byte spoils the line breaks beside it.
        assert re.sub(r"[\s�]", "", whole) == re.sub(r"[\s�]", "", text)
        return
    ends = [0, *(end for span in spans for end in span), len(context)]
    lengths = [len(decode(tokenizer, context[:end])) for end in ends]
    pieces = [whole[a:b] for a, b in pairwise(lengths)]
    pieces[0], pieces[-1] = pieces[0].rstrip(), pieces[-1].lstrip()
    pieces[1:-1] = [piece.strip() for piece in pieces[1:-1]]
    assert re.fullmatch(r"\s*".join(re.escape(piece) for piece in pieces), text), (whole, text)


def play_template(template, family, tokenizer, marks, *, scale, count):
    """Play and check conversations of each style, and count them."""
    chat = ChatFormat(tokenizer)
    marks = [mark for mark in marks if mark != tokenizer.eos_token]
    for style, number in STYLES.items():
        seed = f"{template} {family} {style}"
        trajectories, shown, history = play(chat, style, number * scale, seed=seed, marks=marks)
        for index, (one, contexts) in enumerate(zip(trajectories, shown, strict=True)):
            try:
                check_rows(one, contexts)
                check_text(tokenizer, template, one, contexts, history, family)
            except AssertionError as error:
                error.add_note(f"{seed}, conversation {index} of {number * scale}")
                raise
        beyond = [len(build_rows([one])) - 1 for one in trajectories]
        metrics = summarize([EpisodeRecord.of(one) for one in trajectories])
        assert metrics["rollout/rewritten_rows"] == pytest.approx(sum(beyond) / len(beyond))
        if metrics["rollout/rewritten_rows"] > 0:
            count.rewriting[style].add(template)
        count.turns += sum(len(one.turns) for one in trajectories)
        count.rewritten += sum(beyond)


def show(capsys, family, templates, count):
    with capsys.disabled():
        print(  # noqa: T201  the number of turns is what this test is worth
            f"\n{templates} templates x {family}: {count.turns} turns, {count.rewritten} rewritten rows, "
            "0 mismatches"
        )


def play_all(family, capsys, *, scale):
    count = Count()
    for template in TEMPLATES:
        tokenizer, marks = build(family, template), template_marks(template)
        play_template(template, family, tokenizer, marks, scale=scale, count=count)
    show(capsys, family, len(TEMPLATES), count)
    assert count.turns > 1900 * scale
    assert count.rewriting["plain"] == REWRITES["plain"]
    words = WORDS_REWRITE if family == "word_level" else set()
    assert count.rewriting["thinking"] == REWRITES["thinking"] | words


def test_every_template_is_played():
    assert sorted(TURN_ENDS) == TEMPLATES
    refused = set()
    for template in TEMPLATES:
        try:
            ChatFormat(build("byte_level", template))
        except ValueError:
            refused.add(template)
    assert refused == set(NOT_PLAYED) == set()


@pytest.mark.parametrize(
    "family",
    [
        "byte_level",
        *(pytest.param(one, marks=pytest.mark.slow) for one in FAMILIES if one != "byte_level"),
    ],
)
def test_rows_are_what_the_engine_saw(family, capsys):
    play_all(family, capsys, scale=1)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_many_rows_are_what_the_engine_saw(family, capsys):
    play_all(family, capsys, scale=17)


def play_smollm2(tokenizer, capsys, *, scale):
    count = Count()
    marks = sorted(tokenizer.get_added_vocab())
    play_template("smollm2", "byte_level", tokenizer, marks, scale=scale, count=count)
    show(capsys, "SmolLM2's own tokenizer", 1, count)
    assert not count.rewriting["plain"]  # ChatML rewrites nothing
    assert not count.rewriting["thinking"]


def test_smollm2_s_rows_are_what_the_engine_saw(capsys):
    tokenizer = smollm2()
    if tokenizer is None:
        pytest.skip("SmolLM2's tokenizer is not cached; the slow lane downloads it")
    play_smollm2(tokenizer, capsys, scale=10)


@pytest.mark.slow
def test_many_of_smollm2_s_rows_are_what_the_engine_saw(capsys):
    play_smollm2(smollm2(download=True), capsys, scale=160)


@pytest.mark.parametrize("template", ["gptoss", "gptoss_training"])
def test_harmony_refuses_channels_in_an_answer(template):
    # The template wants them taken apart into fields of the message, and says so.
    conversation = Conversation(ChatFormat(build("byte_level", template)), system="")
    conversation.observe("wall")
    conversation.add_response((5,), text="<|channel|>final<|message|>up", end="<|return|>")
    with pytest.raises(TemplateError, match="tags in the content field"):
        conversation.observe("goal")


@pytest.mark.parametrize("answer", ["<", "<|chan", "<|channel|>final<"])
def test_an_answer_that_begins_like_the_template_s_own_token_starts_a_row(answer):
    # Cut there, it is followed by nothing that the rest of `<|channel|>` could be.
    tokenizer = build("byte_level", "gptoss")
    conversation = Conversation(ChatFormat(tokenizer), system="")
    conversation.observe("wall")
    conversation.add_response(tuple(spell(tokenizer, answer)), text=answer, end="")
    prompt = conversation.observe("goal")
    assert not prompt.extends
    channel = tokenizer.convert_tokens_to_ids("<|channel|>")
    assert prompt.context_ids.count(channel) == 1 + answer.count("<|channel|>")
