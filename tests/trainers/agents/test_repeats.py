"""A sequential agent's run repeats bit for bit, and a resumed one is the uninterrupted one.

Functions and commands, by themselves, with workers in threads and in processes, GRPO and PPO.

Mutations seen red: uniform numbers of chance; seeds of an address instead of the generation.
"""

import pytest

from tests.trainers.agents.runs import COMMAND, PROGRAMS, make_run, policy_of
from tests.trainers.run.outcomes import differences, outcome

pytestmark = pytest.mark.trainer

KNOBS = {
    "max_steps": 3,  # two generations of two steps each, the second cut short
    "num_iterations": 2,
    "per_device_train_batch_size": 4,
    "save_strategy": "steps",
    "save_steps": 1,
}
AGENTS = {name: {"program": PROGRAMS[name][0]} for name in ("loop", "tools", "summary")}
AGENTS |= {"command": {"command": COMMAND}}
THREADS = {"env_workers": 2, "env_worker_kind": "thread"}
PROCESSES = {"env_workers": 2, "env_worker_kind": "process"}
RUNS = {name: (name, {}) for name in AGENTS}
RUNS |= {
    "loop-threads": ("loop", THREADS),
    "command-processes": ("command", PROCESSES),
    "loop-ppo": ("loop", {"ppo": True}),
    "command-ppo": ("command", {"ppo": True}),
}


@pytest.mark.parametrize("name", RUNS)
def test_it_repeats_and_resumes_bit_for_bit(tmp_path, name):
    agent, knobs = RUNS[name]

    def make(folder):
        return make_run(folder, **AGENTS[agent], **policy_of(agent), **KNOBS, **knobs)

    found, turns = [], []
    for number in range(2):
        folder = tmp_path / str(number)
        one = make(folder)
        one.train()
        found.append(outcome(one, folder))
        turns.append([turn.response_ids for episode in one.kept for turn in episode.turns])
    assert differences(*found) == []
    assert turns[0] == turns[1]
    assert len(set(turns[0])) > 4
    part = make(tmp_path / "1")
    part.train(resume_from_checkpoint=str(tmp_path / "1" / "checkpoint-1"))
    assert differences(found[0], outcome(part, tmp_path / "1")) == []
    # Only the second generation was played again.
    assert len(part.sampled) == len(turns[0]) + sum(one.unused_turns for one in part.kept)
