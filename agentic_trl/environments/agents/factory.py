"""``AgentEnv``: what a trainer is given, and makes the environment of an episode when it is called."""

import functools
from typing import Any

from agentic_trl.environments.agents.env import AgentEpisode


class AgentEnv(functools.partial[AgentEpisode]):
    """An agent to train: give it to a trainer as ``environment``; calling it makes the environment of an episode.

    ``AgentEnv(solve)`` with a function ``solve(task, endpoint)``, or ``AgentEnv(command=["python", "solve.py"])``. The
    arguments are those of ``AgentEpisode``.
    """

    def __new__(cls, solve: Any = None, **arguments: Any) -> "AgentEnv":
        """Bind an agent.

        Args:
            solve: See ``AgentEpisode``.
            **arguments: See ``AgentEpisode``.
        """
        given = arguments if solve is None else {"solve": solve, **arguments}
        return super().__new__(cls, AgentEpisode, **given)
