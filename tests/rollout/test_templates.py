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
"""

import random
import re
from dataclasses import dataclass, field

import pytest

from agentic_trl.batching import build_rows
from agentic_trl.environments.base import TextEnv
from agentic_trl.evaluation import EpisodeRecord, summarize
from agentic_trl.rollout.chat import ChatFormat, WindowHistory, full_history
from agentic_trl.rollout.collect import Limits, Rollout, Start, collect
from agentic_trl.rollout.engines.base import Sample
from tests.tokenizers import (
    FAMILIES,
    FOLDER,
    TURN_ENDS,
    build,
    rendering,
    respell,
    smollm2,
    template_marks,
)

TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
NOT_PLAYED: dict[str, str] = {}
"""Templates that no conversation of plain text can be rendered with, each with the reason."""

OPENED = []
REWRITES_PLAIN = set()
REWRITES_THINKING = set()
STYLES = {
    "plain": full_history,
    "thinking": full_history,
    "mixed": full_history,
    "window": None,
}
TEXTS = ["wall", "you see: a hole, a goal;", "go (up) or (down)!", "row 0", "...", "?!", "a<b>c", "-"]
TEXTS += ["é", "漢字", "😀👩‍💻", "½", "“x”", "\u00a0", "\u3000", "\u200b", "▁", "Ġ", "{{ x }}"]
TEXTS += ["\n", "\n\n", " ", "  ", "\t", "\r\n", "0x1F", "user", "assistant", "system", "[x]", "\\n"]


@dataclass
class Count:
    """What was played."""

    turns: int = 0
    rewritten: int = 0
    records: dict[str, dict[str, list]] = field(default_factory=dict)

    def rewriting(self, style):
        """Templates with a row beyond the first in conversations of a style."""
        return {t for t, records in self.records[style].items() if rewritten_rows(records)}


class Talk(TextEnv):
    """Says what it is told to say, whatever the policy does."""

    def __init__(self, instructions, observations):
        self.instructions, self.observations = instructions, list(observations)

    def reset(self, *, seed=None, options=None):
        return self.observations.pop(0), {}

    def step(self, action):
        return self.observations.pop(0), 1.0, False, False, {}


class Player:
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

    def finish(self):
        pass


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


def play(chat, template, style, count, *, seed, marks=()):
    """Play conversations of a style; return trajectories, contexts as shown, and histories."""
    rng = random.Random(seed)
    opened = template in OPENED
    history = STYLES[style] or WindowHistory(rng.randint(0, 3))
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
    return collect(starts, environments, rollout), engine.shown, history


def check_rows(trajectory, shown):
    """(a)"""
    rows = build_rows([trajectory])
    turns = trajectory.turns
    starts = [t for t, turn in enumerate(turns) if t == 0 or not turn.extends]
    assert len(rows) == len(starts)
    for row, first, end in zip(rows, starts, [*starts[1:], len(turns)], strict=True):
        ids, owners = row.input_ids.tolist(), row.turn_of_token.tolist()
        assert ids == [*shown[end - 1], *turns[end - 1].action_ids]
        expected = [-1] * len(ids)
        for t in range(first, end):
            begin = len(shown[t])
            assert tuple(ids[:begin]) == shown[t]
            stop = begin + len(turns[t].action_ids)
            assert tuple(ids[begin:stop]) == turns[t].action_ids
            expected[begin:stop] = [t] * (stop - begin)
        assert owners == expected
        assert [kind > 0 for kind in row.kind.tolist()] == [owner >= 0 for owner in owners]


def check_text(chat, template, trajectory, shown, history, words):
    """(b)"""
    tokenizer, eos = chat.tokenizer, chat.tokenizer.eos_token_id
    first = 1 if trajectory.messages[0]["role"] == "system" else 0
    spans = []  # where the answers of the row stand in the context
    for t, (turn, context) in enumerate(zip(trajectory.turns, shown, strict=True)):
        visible = history(trajectory.messages[: first + 2 * t + 1])
        text = rendering(tokenizer, template, visible)
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        if t == 0 or not turn.extends:
            spans = []
            assert context == ids
        else:
            assert matches(chat, context, spans, chat.decode(ids), words), (chat.decode(context),text,chat.decode(ids))
        body = turn.action_ids[:-1] if turn.action_ids[-1] == eos else turn.action_ids
        assert trajectory.messages[first + 2 * t + 1]["content"] == chat.decode(body)
        spans.append((len(context), len(context) + len(body)))


def matches(chat, context, spans, text, words):
    """Whether a context reads like a text, but for white space around the answers."""
    if words:
        return "".join(chat.decode(context).split()) == "".join(text.split())
    ends = [0, *(end for span in spans for end in span), len(context)]
    lengths = [len(chat.decode(context[:end])) for end in ends]
    whole = chat.decode(context)
    pieces = [whole[a:b] for a, b in zip(lengths, lengths[1:], strict=False)]
    pieces[0], pieces[-1] = pieces[0].rstrip(), pieces[-1].lstrip()
    pieces[1:-1] = [piece.strip() for piece in pieces[1:-1]]
    return re.fullmatch(r"\s*".join(re.escape(piece) for piece in pieces), text)


def check_messages(chat, trajectory, environment_texts):
    pass


def rewritten_rows(records):
    return summarize(records)["rollout/rewritten_rows"]


def play_template(template, family, tokenizer, times, count):
    """Play ``times`` conversations of each style, check them, and count them in ``count``."""
    chat = ChatFormat(tokenizer)
    marks = [m for m in template_marks(template) if m != tokenizer.eos_token] if template else []
    for style in STYLES:
        seed = f"{template} {family} {style}"
        trajectories, shown, history = play(chat, template, style, times, seed=seed, marks=marks)
        for index, trajectory in enumerate(trajectories):
            try:
                check_rows(trajectory, shown[index])
                check_text(
                    chat, template, trajectory, shown[index], history, family == "word_level"
                )
            except AssertionError:
                print("seed", seed, "conversation", index)
                raise
        records = [EpisodeRecord.of(one) for one in trajectories]
        beyond = [len(build_rows([one])) - 1 for one in trajectories]
        assert rewritten_rows(records) == pytest.approx(sum(beyond) / len(beyond))
        count.turns += sum(len(one.turns) for one in trajectories)
        count.rewritten += sum(beyond)
        count.records.setdefault(style, {})[template] = records
