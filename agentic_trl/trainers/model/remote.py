"""Playing with a model behind an OpenAI-compatible URL: the part of ``evaluate`` that differs.

Contract: what needs the model's own tokens (its tokenizer, limits of the context and of a trajectory, a prefill, ways of
sampling that the interface has no words for) is refused; the trajectories hold texts, and no ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentic_trl.environments.spec import EnvSpec
from agentic_trl.evaluation import EpisodeRecord
from agentic_trl.rollout.engines.base import Engine, Sampling
from agentic_trl.rollout.engines.remote.engine import RemoteEngine
from agentic_trl.rollout.engines.remote.model import RemoteModel
from agentic_trl.rollout.manager import RolloutManager, RolloutSettings
from agentic_trl.rollout.text.bytes_tokenizer import bytes_tokenizer
from agentic_trl.types import Trajectory, Turn
from agentic_trl.user_values import quoted

COUNTED = ("tokens_per_turn", "tokens_per_episode", "tokens_per_turn/success")
"""Metrics of tokens."""


@dataclass(slots=True)
class RemotePlay:
    """A model behind a URL, and the numbers of tokens that its server counted."""

    model: RemoteModel
    """The model."""
    tokens: dict[int, int | None] = field(default_factory=dict)
    """Tokens of each episode; ``None`` where the server did not count."""

    def manager(self, specs: Mapping[str, EnvSpec], settings: RolloutSettings) -> RolloutManager:
        """Return what plays with the model.

        Args:
            specs: The environments by name.
            settings: How episodes are played.

        Raises:
            ValueError: If they ask for what no server can be told.
        """
        _refuse_local(settings)
        tokenizer = bytes_tokenizer()

        def engine(model: RemoteModel, sampling: Sampling) -> Engine:
            return RemoteEngine(
                model,
                sampling,
                tokenizer=tokenizer,
                tokens=self.tokens,
                stop_strings=settings.stop_strings,
                slots=settings.engine_slots,
            )

        stop_ids = frozenset({tokenizer.eos_token_id})
        return RolloutManager(
            specs, settings, tokenizer=tokenizer, stop_ids=stop_ids, engine=engine
        )

    def records(self, trajectories: Sequence[Trajectory]) -> list[EpisodeRecord]:
        """Return the records of episodes, with the server's numbers of tokens.

        Args:
            trajectories: The episodes in the order in which they were played, without ids.
        """
        return [
            replace(EpisodeRecord.of(one), tokens=self.tokens.get(index) or 0)
            for index, one in enumerate(trajectories)
        ]

    def counted(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return metrics without those of tokens that nobody counted.

        Args:
            metrics: Metrics of all episodes.
        """
        unknown = () if all(one is not None for one in self.tokens.values()) else COUNTED
        left_out = (*unknown, "rollout/unused_tokens")
        return {name: value for name, value in metrics.items() if name not in left_out}


def without_ids(trajectory: Trajectory) -> Trajectory:
    """Return an episode whose turns hold no ids: they stood for texts, which ``messages`` has.

    Args:
        trajectory: An episode.
    """
    turns = tuple(map(_bare, trajectory.turns))
    return replace(trajectory, turns=turns, final_observation_ids=(), unused_tokens=0)


def _bare(turn: Turn) -> Turn:
    return replace(turn, observation_ids=(), response_ids=(), response_logprobs=(), token_kinds=())


def _refuse_local(settings: RolloutSettings) -> None:
    """Refuse settings that need the model's own tokens.

    Raises:
        ValueError: If there are any.
    """
    sampling, limits = settings.sampling, settings.limits
    given = {
        "max_context_tokens": limits.max_context_tokens,
        "max_tokens_per_trajectory": limits.max_tokens_per_trajectory,
        "response_prefill": settings.response_prefill or None,
        "template_kwargs": settings.template_kwargs or None,
        "engine_max_cache_tokens": settings.engine_max_cache_tokens,
        "top_k": sampling.top_k or None,
        "min_p": sampling.min_p,
        "repetition_penalty": None
        if sampling.repetition_penalty == 1
        else sampling.repetition_penalty,
    }
    said = [f"{name}={quoted(value)}" for name, value in given.items() if value is not None]
    if said:
        raise ValueError(
            f"base_url: got {', '.join(said)} with it, expected settings that an OpenAI-compatible server can be told: "
            "temperature, top_p, max_tokens_per_turn, max_turns, history_window, stop_strings. Leave the others out."
        )
