"""Turns say which policy sampled them: in the loop, in programs, in files, on the screen and in the metrics.

Mutations seen red: the version not given to the record; not given to the rollout; the trainer's step not given;
the column left out; the viewer naming turns of no version; staleness a mean over turns; failed episodes counted in it;
the version of an episode's first turn taken for all.
"""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from agentic_trl.evaluation import EpisodeRecord, summarize_staleness
from agentic_trl.trainers.evaluate import evaluate
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.run.trajectories import trace_lines
from agentic_trl.types import StopReason
from agentic_trl.viewer import render_trajectory
from tests.rollout.scripted import GO, Script, run_one, step
from tests.rollout.test_served import asking, play, said, user
from tests.tiny import Countdown, make_model, make_tokenizer, make_trainer


def versions(trajectory):
    return [turn.policy_version for turn in trajectory.turns]


def script():
    return Script(step("c", 1.0), step("d", 2.0, terminated=True))


@pytest.mark.parametrize("version", [None, 0, 3])
def test_every_turn_has_the_version_of_its_rollout(version):
    trajectory, _ = run_one(script(), [GO, GO], version=version)
    assert versions(trajectory) == [version, version]


def test_an_attempt_after_a_failed_one_has_it_too():
    trajectory, _ = run_one(
        [Script(ConnectionError("gone")), script()], [GO, GO, GO], version=3, retries=1
    )
    assert len(trajectory.faults) == 1
    assert versions(trajectory) == [3, 3]


def test_turns_of_a_program_and_of_its_sub_agent_have_it():
    def program():
        answer = yield asking(user("a"))
        yield asking(user("b"))  # another conversation
        yield asking(user("a"), said(answer["content"]), user("c"))
        return 1.0

    trajectory, _, _ = play(program, "a <end>", "b <end>", "c <end>", version=5)
    assert len({turn.conversation for turn in trajectory.turns}) == 2
    assert versions(trajectory) == [5, 5, 5]


def test_files_and_the_screen_show_it():
    trajectory, _ = run_one(script(), [GO, GO], version=3)
    first, second = trajectory.turns
    mixed = dataclasses.replace(
        trajectory, turns=(first, dataclasses.replace(second, policy_version=None))
    )
    (line,) = trace_lines([mixed])
    assert [turn["policy_version"] for turn in line["turns"]] == [3, None]
    console = Console(file=io.StringIO(), width=100)
    console.print(render_trajectory(mixed))
    shown = console.file.getvalue()
    assert "assistant | reward 1 | 4 tokens | policy after 3 steps ─" in shown
    assert "assistant | reward 2 | 4 tokens ─" in shown


def episode(*turns, failed=False):
    """A record of turns given as pairs of version and number of tokens."""
    trajectory, _ = run_one(script(), [GO, GO])
    base = trajectory.turns[0]
    made = tuple(
        dataclasses.replace(
            base,
            policy_version=version,
            response_ids=(6,) * count,
            response_logprobs=(0.0,) * count,
            token_kinds=(1,) * count,
        )
        for version, count in turns
    )
    stop = StopReason.TIMEOUT if failed else StopReason.TERMINATED
    return EpisodeRecord.of(dataclasses.replace(trajectory, turns=made, stop=stop))


def test_staleness_is_a_mean_over_the_sampled_tokens_of_all_episodes():
    records = [episode((4, 10), (6, 2)), episode((4, 3)), episode((0, 99), failed=True)]
    # (10 x 3 + 2 x 1 + 3 x 3) / 15
    assert summarize_staleness(records, step=7) == {"rollout/staleness": pytest.approx(41 / 15)}


def test_tokens_of_no_version_have_no_staleness():
    assert summarize_staleness([episode((2, 4), (None, 40))], step=3) == {"rollout/staleness": 1}
    assert summarize_staleness([episode((None, 4))], step=3) == {}
    assert summarize_staleness([episode((1, 4), failed=True)], step=3) == {}


class Stale(AgenticGRPOTrainer):
    """Keeps the versions of its episodes, and makes those of training an optimizer step older."""

    age = 0

    def play(self, starts, **more):
        played = super().play(starts, **more)
        said = {version for one in played for version in versions(one)}
        name = "training" if self.model.training else "evaluation"
        self.__dict__.setdefault("kept", {}).setdefault(name, []).append(sorted(said))
        return [
            dataclasses.replace(
                one,
                turns=tuple(
                    dataclasses.replace(turn, policy_version=turn.policy_version - self.age)
                    for turn in one.turns
                ),
            )
            for one in played
        ]


def run(tmp_path, cls):
    trainer = make_trainer(
        tmp_path, cls=cls, max_steps=5, num_iterations=2, eval_strategy="steps", eval_steps=3
    )
    trainer.train()
    entries = trainer.state.log_history
    return trainer, [e["rollout/staleness"] for e in entries if "rollout/staleness" in e]


@pytest.mark.trainer
def test_a_trainer_gives_the_optimizer_steps_that_its_weights_have_seen(tmp_path):
    trainer, staleness = run(tmp_path, Stale)
    assert trainer.kept == {"training": [[0], [2], [4]], "evaluation": [[3], [5]]}
    assert staleness == [0, 0, 0]
    paths = sorted((tmp_path / "trajectories").glob("*.jsonl"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    written = {(one["step"], turn["policy_version"]) for one in lines for turn in one["turns"]}
    assert written == {(0, 0), (2, 2), (4, 4)}


@pytest.mark.trainer
def test_older_episodes_are_logged_as_stale(tmp_path):
    _, staleness = run(tmp_path, type("Older", (Stale,), {"age": 1}))
    assert staleness == [1, 1, 1]


@pytest.mark.trainer
def test_evaluate_says_no_version():
    result = evaluate(make_model(), environment=Countdown, tokenizer=make_tokenizer(), num_tasks=2)
    assert {version for one in result.trajectories for version in versions(one)} == {None}
