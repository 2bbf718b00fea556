"""The runs that a page shows: a folder each, or a lone file of episodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentic_trl.methods import DEFAULTS, METHODS
from agentic_trl.run_folder import (
    EPISODES,
    EpisodeFile,
    episode_files,
    read_facts,
    read_log,
    update_files,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is known of a run."""

    name: str
    """What the page calls it."""
    path: Path
    """Its folder, or its file."""
    episodes: list[EpisodeFile]
    """Files of episodes, by step and rank."""
    updates: list[EpisodeFile] = field(default_factory=list)
    """Files of what the policy said to them at their last update."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What ``run.json`` says."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """Records of its log."""

    def knob(self, name: str) -> Any:
        """Return the value of a knob of the configuration, as the method sets it if it was not given.

        Args:
            name: Its name.

        Returns:
            The value; ``None`` if the run says nothing of it.
        """
        args = self.facts.get("args")
        if not isinstance(args, dict) or name not in args:
            return None
        method = METHODS.get(str(self.facts.get("method")))
        set_by_method = method.settings.get(name, DEFAULTS.get(name)) if method else None
        return set_by_method if args[name] is None else args[name]


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the runs of some paths, each under a name of its own.

    Args:
        paths: Folders of runs, and files of episodes.

    Raises:
        FileNotFoundError: If one is not there, or none of them holds anything that can be shown.
    """
    found = [_run(path, name) for path, name in zip(paths, _names(paths), strict=True)]
    empty = [one for one in found if not one.episodes and not one.log]
    if empty:
        raise FileNotFoundError(
            f"{empty[0].path} holds no episodes and no log, expected {EPISODES}/step_*_rank_*.jsonl, metrics.jsonl, or a "
            "file that `agentic_trl evaluate --output` wrote. Name the output_dir of a run, or train with "
            "log_trajectories=True."
        )
    return found


def _run(path: Path, name: str) -> Run:
    if path.is_file():
        return Run(name=name, path=path, episodes=[EpisodeFile(step=0, rank=0, path=path)])
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is not there, expected the folder of a run or a file of episodes. Correct the path."
        )
    return Run(
        name=name,
        path=path,
        episodes=episode_files(path),
        updates=update_files(path),
        facts=read_facts(path),
        log=read_log(path),
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the last parts of paths, as many as tell them apart; a path that is given twice has a number."""
    whole = [path.resolve() for path in paths]
    for parts in range(1, max((len(one.parts) for one in whole), default=1) + 1):
        names = ["/".join(one.parts[-parts:]) for one in whole]
        if len(set(names)) == len(set(whole)):
            break
    else:
        names = [str(one) for one in whole]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: at + 1].count(name)})"
        for at, name in enumerate(names)
    ]
