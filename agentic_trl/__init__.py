"""TRL trainers for agents that act over many turns.

Names are imported on first use, so that ``import agentic_trl`` is cheap and the tensor layer
(``types``, ``ops``, ``algorithms``, ``batching``) never imports TRL.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentic_trl.old_names import accept_old_modules

if TYPE_CHECKING:
    from agentic_trl.assets import tiny_policy
    from agentic_trl.environments.agents.factory import AgentEnv
    from agentic_trl.environments.base import ActionFormat, TextEnv
    from agentic_trl.environments.registry import env_spec, make_env, register_env
    from agentic_trl.rollout.demonstrate import demonstrate
    from agentic_trl.rollout.engines.base import Sampling
    from agentic_trl.rollout.manager import RolloutSettings
    from agentic_trl.rollout.task import Limits
    from agentic_trl.rollout.text.chat import WindowHistory
    from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
    from agentic_trl.trainers.config.ppo import AgenticPPOConfig, PPOConfig
    from agentic_trl.trainers.evaluate import evaluate
    from agentic_trl.trainers.grpo import AgenticGRPOTrainer
    from agentic_trl.trainers.ppo import AgenticPPOTrainer, PPOTrainer
    from agentic_trl.types import StopReason, Trajectory, Turn, TurnTable

__version__ = "0.1.0"

_HOMES = {
    "ActionFormat": "agentic_trl.environments.base",
    "AgentEnv": "agentic_trl.environments.agents.factory",
    "AgenticGRPOConfig": "agentic_trl.trainers.config.grpo",
    "AgenticGRPOTrainer": "agentic_trl.trainers.grpo",
    "AgenticPPOConfig": "agentic_trl.trainers.config.ppo",
    "AgenticPPOTrainer": "agentic_trl.trainers.ppo",
    "Limits": "agentic_trl.rollout.task",
    "PPOConfig": "agentic_trl.trainers.config.ppo",
    "PPOTrainer": "agentic_trl.trainers.ppo",
    "RolloutSettings": "agentic_trl.rollout.manager",
    "Sampling": "agentic_trl.rollout.engines.base",
    "StopReason": "agentic_trl.types",
    "TextEnv": "agentic_trl.environments.base",
    "Trajectory": "agentic_trl.types",
    "Turn": "agentic_trl.types",
    "TurnTable": "agentic_trl.types",
    "WindowHistory": "agentic_trl.rollout.text.chat",
    "demonstrate": "agentic_trl.rollout.demonstrate",
    "env_spec": "agentic_trl.environments.registry",
    "evaluate": "agentic_trl.trainers.evaluate",
    "make_env": "agentic_trl.environments.registry",
    "register_env": "agentic_trl.environments.registry",
    "tiny_policy": "agentic_trl.assets",
}

__all__ = [
    "ActionFormat",
    "AgentEnv",
    "AgenticGRPOConfig",
    "AgenticGRPOTrainer",
    "AgenticPPOConfig",
    "AgenticPPOTrainer",
    "Limits",
    "PPOConfig",
    "PPOTrainer",
    "RolloutSettings",
    "Sampling",
    "StopReason",
    "TextEnv",
    "Trajectory",
    "Turn",
    "TurnTable",
    "WindowHistory",
    "demonstrate",
    "env_spec",
    "evaluate",
    "make_env",
    "register_env",
    "tiny_policy",
]

accept_old_modules()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agentic_trl' has no attribute {name!r}")
    try:
        module = import_module(_HOMES[name])
    except AttributeError as error:  # `from agentic_trl import name` would hide it
        raise ImportError(f"{_HOMES[name]} could not be imported: {error}") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
