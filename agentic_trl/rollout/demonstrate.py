"""Episodes of an environment's oracle, in the very tokens that a policy would see and say.

A model can be taught with them before it is trained by reward. Contract: the episodes go through the
rollout that training uses, so that prompts, limits, history and stop reasons are the same; each response is
the oracle's action as the environment's format writes it, without reasoning, and the end-of-turn token. With tools an
action is a message, or a text that is its content, and the chat template writes it; what is not read back as the same
message is refused.
``supervised_examples`` gives the rows of a data set for TRL's ``SFTTrainer``: the loss is taken at the
tokens of the responses alone.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from agentic_trl.batching import build_rows
from agentic_trl.chat_messages import plain_message
from agentic_trl.environments.base import Environment, Oracle
from agentic_trl.environments.spec import EnvSpec
from agentic_trl.rollout.engines.base import Request, Sample
from agentic_trl.rollout.env_pool.env_attributes import read_setup
from agentic_trl.rollout.manager import RolloutManager, RolloutSettings
from agentic_trl.rollout.text.answers import said_key
from agentic_trl.rollout.text.chat import ChatFormat
from agentic_trl.rollout.text.tool_format import shared
from agentic_trl.types import Trajectory
from agentic_trl.user_values import quoted


def demonstrate(
    spec: EnvSpec,
    tasks: Sequence[Mapping[str, Any]],
    *,
    tokenizer: Any,
    settings: RolloutSettings,
    seed: int = 0,
) -> list[Trajectory]:
    """Play tasks with the environment's oracle.

    Args:
        spec: An environment that has an oracle.
        tasks: Dataset rows.
        tokenizer: Tokenizer of the model that is to learn, with a chat template.
        settings: How episodes are played; sampling, stop strings and workers have no part here.
        seed: Seed of the episodes' noise.

    Returns:
        A trajectory for each task, in order; an oracle may fail where the environment is random, and an
        episode may be cut by a limit. The log-probabilities are zero.

    Raises:
        ValueError: If the environment has no oracle, or the settings prefill responses.
    """
    if settings.response_prefill:
        raise ValueError(
            f"response_prefill: got {settings.response_prefill!r}, expected '' for demonstrations, whose "
            "responses hold nothing but an action; leave it empty, or write the responses yourself."
        )
    oracle = spec.make_oracle()
    environment = spec.make(**spec.oracle_kwargs)
    alone = replace(spec, entry_point=lambda: environment, kwargs={})
    inline = replace(settings, env_workers=0, env_timeout=None, env_retries=0, stop_strings=())
    end = tokenizer.eos_token_id
    manager = RolloutManager(
        {"": alone},
        inline,
        tokenizer=tokenizer,
        stop_ids=frozenset({end}),
        engine=lambda model, sampling: _OracleEngine(oracle, environment, manager.chat, end),
    )
    starts = [
        manager.start(task, group=index, member=0, seed=(seed, index))
        for index, task in enumerate(tasks)
    ]
    with closing(manager):
        return manager.play(nn.Identity(), starts)


def supervised_examples(trajectories: Sequence[Trajectory]) -> list[dict[str, list[int]]]:
    """Return the sequences that a model is to imitate.

    Args:
        trajectories: Episodes, successful ones as a rule.

    Returns:
        For each sequence of a trajectory (one, or one per turn where the history is a window)
        ``input_ids`` and ``completion_mask``, 1 at the tokens of the responses.
    """
    return [
        {
            "input_ids": row.input_ids.tolist(),
            "completion_mask": (row.turn_of_token >= 0).long().tolist(),
        }
        for row in build_rows(trajectories)
    ]


@dataclass(slots=True)
class _OracleEngine:
    """An engine whose responses are the oracle's; one episode at a time, in the one environment that it looks at."""

    oracle: Oracle
    environment: Environment
    chat: ChatFormat
    end: int
    slots: int | None = 1
    collective: bool = False
    waiting: list[Request] = field(default_factory=list)

    def submit(self, requests: Sequence[Request]) -> None:
        self.waiting += requests

    def advance(self) -> list[tuple[int, Sample]]:
        requests, self.waiting = self.waiting, []
        return [(one.episode, self._sample(one)) for one in requests]

    def release(self, episode: int) -> None:
        del episode

    def finish(self) -> None:
        self.waiting = []

    def _sample(self, request: Request) -> Sample:
        action = self.oracle.act(self.environment)
        if request.tools:
            text = _written(self.chat, request, action)
        elif isinstance(action, Mapping):
            raise TypeError(
                f"The oracle's action is {quoted(action)}, expected a text: the environment shows no tools. Return the "
                "text that `step` is to receive, or give the environment `tools`."
            )
        else:
            text = read_setup(self.environment).action_format.write(str(action))
        ids = (*self.chat.encode(text, first=False), self.end)
        said = ids[: request.max_new_tokens]
        return Sample(ids=said, logprobs=(0.0,) * len(said), truncated=len(said) < len(ids))


def _written(chat: ChatFormat, request: Request, action: Any) -> str:
    """Return a message as the chat template writes it behind a prompt, without the end of the turn.

    Args:
        chat: The format of the conversation.
        request: The prompt.
        action: The message, whose calls need no ids, or the text of one.

    Raises:
        ValueError: If the template writes something that is read as another message.
    """
    given = action if isinstance(action, Mapping) else {"content": str(action)}
    message = plain_message({**given, "role": "assistant"})
    for number, call in enumerate(message.get("tool_calls") or ()):
        call.setdefault("id", f"call{number:05d}")
    prompt = chat.render(request.messages, request.tools)
    whole = chat.render([*request.messages, message], request.tools, generation=False)
    end = chat.tokenizer.eos_token
    text = whole[shared(prompt, whole) :].split(end)[0].rstrip()
    answer = chat.tool_format.read(text, end=end, prompt=prompt, tools=request.tools)
    if answer.malformed or answer.key[1:] != said_key(message):
        raise ValueError(
            f"The oracle's action {quoted(action)} cannot be demonstrated: the chat template writes it as {quoted(text)}, "
            "which is read as another message. Leave marks of calls out of its text, or take another chat template."
        )
    return text
