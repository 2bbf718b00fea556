"""A vocabulary of words, an engine and environments that follow a script; all ids are known by hand.

``ids("<go> a </go> <end>")`` is ``(6, 8, 7, 1)``. A prompt reads
``<system> ... <end> <user> observation <end> <assistant>``; the instruction how to answer is ``SYSTEM``,
words that are all unknown.
"""

import dataclasses
import functools

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentic_trl.environments.base import ActionFormat
from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.env_pool.pool import Environments
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat
from agentic_trl.types import Turn

WORDS = ["<pad>", "<end>", "<unk>", "<system>", "<user>", "<assistant>", "<go>", "</go>"]
WORDS += [*"abcdefghijklmnopqrstuvwxyz", "<action>", "</action>"]
FORM = ActionFormat(tag="go")
SYSTEM = (3, *[2] * len(FORM.describe().split()), 1)
COMPLAINT = [2] * len(f"Your answer held no action. {FORM.describe()}".split())
STOP = frozenset({1})


@functools.cache
def chat():
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<end>", unk_token="<unk>"
    )
    tokenizer.add_tokens(["<system>", "<user>", "<assistant>"], special_tokens=True)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <end> {% endfor %}"
        "{% if add_generation_prompt %}<assistant> {% endif %}"
    )
    return ChatFormat(tokenizer)


def ids(text):
    return tuple(WORDS.index(word) for word in text.split())


def user(observation, *, cut=False):
    """What an observation adds to a context; the end of turn of a cut answer comes before it."""
    return ((1,) if cut else ()) + (4, *ids(observation), 1, 5)


class Waves:
    """An engine that answers all that waits at once; ``generate`` says what."""

    slots = None
    collective = False

    def submit(self, requests):
        self.waiting = [*getattr(self, "waiting", ()), *requests]

    def advance(self):
        requests, self.waiting = getattr(self, "waiting", []), []
        samples = self.generate(requests) if requests else []
        return [(one.episode, sample) for one, sample in zip(requests, samples, strict=True)]

    def release(self, episode):
        pass

    def finish(self):
        pass


class Engine(Waves):
    """Answers of each episode in order, cut at the budget; keeps all requests."""

    def __init__(self, *answers):
        self.answers = [list(texts) for texts in answers]
        self.requests = []
        self.released = []
        self.finished = 0

    def release(self, episode):
        self.released.append(episode)

    def generate(self, requests):
        self.requests.append(list(requests))
        samples = []
        for request in requests:
            answer = ids(self.answers[request.episode].pop(0))[: request.max_new_tokens]
            logprobs = tuple(-0.25 * token for token in answer)
            samples.append(Sample(ids=answer, logprobs=logprobs, truncated=answer[-1] != 1))
        return samples

    def finish(self):
        self.finished += 1

    def of(self, episode):
        return [r for batch in self.requests for r in batch if r.episode == episode]


class Script:
    """A plain class; ``steps`` are results of ``step`` in order, ``first`` of ``reset``; errors are raised."""

    action_format = FORM

    def __init__(self, *steps, first="a"):
        self.first, self.steps, self.taken, self.resets = first, list(steps), [], []

    def reset(self, *, seed=None, options=None):
        self.resets.append((seed, options))
        return _raise_or(self.first), {}

    def step(self, action):
        self.taken.append(action)
        return _raise_or(self.steps.pop(0))

    def state_key(self):
        return f"left {len(self.steps)}"


def _raise_or(value):
    if isinstance(value, BaseException):
        raise value
    return value


def step(observation, reward=0.0, *, terminated=False, truncated=False, **info):
    return observation, reward, terminated, truncated, info


GO = "<go> b </go> <end>"
"""An answer with the action ``b``: ids 6, 9, 7, 1."""


def start(index=0, *, max_turns=8, task=None, seed=None, **more):
    seed = (7, 0, index) if seed is None else seed
    return Start(
        task=task or {}, group=index // 2, member=index % 2, seed=seed, max_turns=max_turns, **more
    )


def given(starts, environments, **pool):
    """Starts and a pool in which each start has its environment, or its list of them, one an attempt."""
    makers = {}
    for index, one in enumerate(environments):
        attempts = iter(one if isinstance(one, list) else [one])
        makers[str(index)] = functools.partial(next, attempts)
    pairs = zip(starts, makers, strict=True)
    named = [dataclasses.replace(start, environment=name) for start, name in pairs]
    return named, Environments(makers, **pool)


def run(
    environments,
    answers,
    *,
    starts=None,
    limits=None,
    engine=None,
    pool=None,
    chat_format=None,
    **more,
):
    """Collect scripted episodes; return the trajectories and the engine."""
    engine = engine or Engine(*answers)
    rollout = Rollout(
        engine=engine,
        chat=chat_format or chat(),
        stop_ids=STOP,
        limits=Limits(**{"max_tokens_per_turn": 16, **(limits or {})}),
        **more,
    )
    starts = starts or [start(index) for index in range(len(environments))]
    return collect(*given(starts, environments, **(pool or {})), rollout), engine


def run_one(environment, answers, **more):
    if "max_turns" in more:
        more["starts"] = [start(max_turns=more.pop("max_turns"))]
    (trajectory,), engine = run([environment], [answers], **more)
    return trajectory, engine


def turn(observation_ids, response_ids, kinds, **more):
    """A turn as the loop must record it; the scripted engine's log-prob of id ``i`` is ``-i / 4``."""
    base = {
        "observation_ids": tuple(observation_ids),
        "response_ids": tuple(response_ids),
        "response_logprobs": tuple(-0.25 * token for token in response_ids),
        "token_kinds": tuple(kinds),
        "reward": 0.0,
        "extends": True,
    }
    return Turn(**{**base, **more})


def timeless(trajectory):
    """The turns without their wall time and the places of their responses, which are those of the assistant's messages."""
    places = [i for i, one in enumerate(trajectory.messages) if one["role"] == "assistant"]
    assert [one.message for one in trajectory.turns] == places[
        len(places) - len(trajectory.turns) :
    ]
    return tuple(dataclasses.replace(one, seconds=0.0, message=None) for one in trajectory.turns)
