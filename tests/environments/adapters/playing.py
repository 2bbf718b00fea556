"""Whole episodes by scripted policies, through the collecting loop and a real chat template.

``play(environments, tasks, policy)`` lets ``policy(environment)`` say each action; the answers are
tokens of a byte-level tokenizer with Qwen2.5's template, sampled by no model.
"""

import functools

from agentic_trl.rollout.collect import Rollout, collect
from agentic_trl.rollout.engines.base import Sample
from agentic_trl.rollout.task import Limits, Start
from agentic_trl.rollout.text.chat import ChatFormat, full_history
from tests.rollout.scripted import Waves, given
from tests.tokenizers import build


@functools.cache
def chat():
    return ChatFormat(build("byte_level", "qwen2_5"))


class Oracle(Waves):
    """Answers with what the policy says about the environment as it is; keeps the prompts as text."""

    def __init__(self, environments, policy, form):
        self.environments, self.policy, self.form = environments, policy, form
        self.prompts = [[] for _ in environments]

    def generate(self, requests):
        samples = []
        for one in requests:
            self.prompts[one.episode].append(chat().decode(one.context_ids))
            said = self.form.format(self.policy(self.environments[one.episode]))
            ids = (*chat().encode(said, first=False), chat().tokenizer.eos_token_id)
            assert len(ids) <= one.max_new_tokens
            samples.append(Sample(ids=ids, logprobs=(0.0,) * len(ids), truncated=False))
        return samples


def play(
    environments,
    tasks,
    policy,
    *,
    max_turns=60,
    history=full_history,
    form="<think>so</think><action>{}</action>",
):
    """Return the trajectories and the prompts of each episode."""
    engine = Oracle(environments, policy, form)
    rollout = Rollout(
        engine=engine,
        chat=chat(),
        stop_ids=frozenset({chat().tokenizer.eos_token_id}),
        limits=Limits(max_tokens_per_turn=400),
        history=history,
    )
    starts = [
        Start(task=task, group=index, member=0, seed=(3, 0, index), max_turns=max_turns)
        for index, task in enumerate(tasks)
    ]
    return collect(*given(starts, environments), rollout), engine.prompts
