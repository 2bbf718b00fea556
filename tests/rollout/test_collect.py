"""The contract of the collecting loop, on scripted episodes whose every id is written out.

Mutations seen red: context limit one token later; token limit one token later; token limit before
context; turn limit overrides environment end; turn limit one later; truncated before terminated;
order of results by length; reset error not caught; step error not caught; interrupt swallowed;
failed episode succeeds; final observation of terminated; no final observation; nan reward
accepted; engine not finished; non-string accepted; end not counted; turn stores whole context;
state key after the step.
"""

import pytest

from agentic_trl.rollout.task import Limits
from agentic_trl.types import StopReason
from tests.rollout.scripted import (
    COMPLAINT,
    FORM,
    GO,
    SYSTEM,
    Script,
    run,
    run_one,
    start,
    step,
    timeless,
    turn,
    user,
)

FIRST = (*SYSTEM, *user("a"))


def test_an_episode_written_out():
    environment = Script(step("c d", 0.5), step("e", 2.0, terminated=True))
    answers = ["x y <go> b </go> <end>", "<go> c </go> z <end>"]
    trajectory, engine = run_one(
        environment, answers, starts=[start(3, task={"seed": 5, "environment": "x", "hole": 1})]
    )
    assert timeless(trajectory) == (
        turn(
            FIRST,
            (31, 32, 6, 9, 7, 1),
            (1, 1, 2, 2, 2, 2),
            reward=0.5,
            extends=False,
            action="b",
            state_key="left 2",
        ),
        turn(
            (4, 10, 11, 1, 5),
            (6, 10, 7, 33, 1),
            (2, 2, 2, 1, 2),
            reward=2.0,
            action="c",
            state_key="left 1",
        ),
    )
    assert all(one.seconds > 0 for one in trajectory.turns)
    assert [one.message for one in trajectory.turns] == [2, 4]
    assert (trajectory.group, trajectory.member) == (1, 1)
    assert trajectory.stop is StopReason.TERMINATED
    assert trajectory.score == 2.5
    assert trajectory.success
    assert trajectory.error is None
    assert trajectory.final_observation_ids == ()
    assert trajectory.task == {"seed": 5, "environment": "x", "hole": 1}
    assert [(m["role"], m["content"]) for m in trajectory.messages] == [
        ("system", FORM.describe()),
        ("user", "a"),
        ("assistant", "x y <go> b </go>"),
        ("user", "c d"),
        ("assistant", "<go> c </go> z"),
        ("user", "e"),
    ]
    assert environment.taken == ["b", "c"]
    assert [request.context_ids for request in engine.of(0)] == [
        FIRST,
        (*FIRST, 31, 32, 6, 9, 7, 1, 4, 10, 11, 1, 5),
    ]


# --- stop reasons


def test_results_keep_the_order_of_the_tasks():
    lengths = [3, 1, 4, 2]
    environments = [
        Script(*[step("c")] * (n - 1), step("d", float(n), terminated=True)) for n in lengths
    ]
    starts = [start(index, task={"seed": index}) for index in range(4)]
    rounds = []
    trajectories, engine = run(
        environments,
        [[GO] * n for n in lengths],
        starts=starts,
        progress=lambda turns, finished, tokens: rounds.append((turns, finished, tokens)),
    )
    assert [len(one.turns) for one in trajectories] == lengths
    assert [one.score for one in trajectories] == [3.0, 1.0, 4.0, 2.0]
    assert [one.task["seed"] for one in trajectories] == [0, 1, 2, 3]
    assert [[r.episode for r in batch] for batch in engine.requests] == [
        [0, 1, 2, 3],
        [0, 2, 3],
        [0, 2],
        [2],
    ]
    assert rounds == [(4, 1, 16), (3, 1, 12), (2, 1, 8), (1, 1, 4)]  # a GO is 4 tokens
    assert engine.finished >= 1


def test_truncated_by_the_environment():
    trajectory, _ = run_one(
        Script(step("c", 1.0), step("d", 2.0, truncated=True)), [GO, GO], max_turns=2
    )
    assert (
        trajectory.stop is StopReason.TRUNCATED
    )  # before the turn limit, reached in the same turn
    assert [one.reward for one in trajectory.turns] == [1.0, 2.0]
    assert not trajectory.success
    assert trajectory.final_observation_ids == user("d")


def test_terminated_comes_before_truncated_and_the_turn_limit():
    trajectory, _ = run_one(
        Script(step("c", 1.0, terminated=True, truncated=True)), [GO], max_turns=1
    )
    assert trajectory.stop is StopReason.TERMINATED


def test_turn_limit():
    trajectory, engine = run_one(Script(*[step("c", 1.0)] * 5), [GO] * 5, max_turns=3)
    assert trajectory.stop is StopReason.TURN_LIMIT
    assert [one.reward for one in trajectory.turns] == [1.0, 1.0, 1.0]
    assert trajectory.score == 3.0
    assert not trajectory.success
    assert trajectory.final_observation_ids == user("c")
    assert len(engine.requests) == 3


def test_turn_limit_comes_before_the_token_limits():
    for limits in ({"max_tokens_per_trajectory": 4}, {"max_context_tokens": len(FIRST) + 5}):
        trajectory, _ = run_one(Script(step("c")), [GO], max_turns=1, limits=limits)
        assert trajectory.stop is StopReason.TURN_LIMIT


def test_token_limit():
    # 4 + 4 sampled tokens, then 1 of the budget of 9 is left: the third answer is cut after it.
    trajectory, engine = run_one(
        Script(*[step("c", 1.0)] * 4), [GO] * 4, limits={"max_tokens_per_trajectory": 9}
    )
    assert trajectory.stop is StopReason.TOKEN_LIMIT
    assert [one.response_ids for one in trajectory.turns] == [(6, 9, 7, 1), (6, 9, 7, 1), (6,)]
    assert [one.truncated for one in trajectory.turns] == [False, False, True]
    assert [one.reward for one in trajectory.turns] == [1.0, 1.0, 0.0]
    assert [one.valid for one in trajectory.turns] == [True, True, False]
    assert [request.max_new_tokens for request in engine.of(0)] == [9, 5, 1]
    assert trajectory.sampled_tokens == 9
    assert trajectory.final_observation_ids == (1, 4, *COMPLAINT, 10, 1, 5)


def test_token_limit_used_up_exactly():
    trajectory, engine = run_one(
        Script(*[step("c")] * 4), [GO] * 4, limits={"max_tokens_per_trajectory": 8}
    )
    assert trajectory.stop is StopReason.TOKEN_LIMIT
    assert len(trajectory.turns) == len(engine.requests) == 2
    assert trajectory.final_observation_ids == user("c")


def test_context_overflow_at_the_first_turn():
    environment = Script(step("c"))
    trajectory, engine = run_one(environment, [GO], limits={"max_context_tokens": len(FIRST)})
    assert trajectory.stop is StopReason.CONTEXT_OVERFLOW
    assert trajectory.turns == ()
    assert trajectory.final_observation_ids == FIRST
    assert engine.requests == []
    assert environment.taken == []
    assert (trajectory.score, trajectory.success, trajectory.error) == (0.0, False, None)


def test_context_overflow_later():
    # FIRST + 4 sampled + 8 of the observation leave no room; with one token more there is room for one.
    room = len(FIRST) + 4 + len(user("c d e f g"))
    environment = Script(step("c d e f g", 1.0), step("c"))
    trajectory, _ = run_one(environment, [GO], limits={"max_context_tokens": room})
    assert trajectory.stop is StopReason.CONTEXT_OVERFLOW
    assert [one.reward for one in trajectory.turns] == [1.0]
    assert trajectory.final_observation_ids == user("c d e f g")
    environment = Script(step("c d e f g", 1.0), step("c"))
    trajectory, engine = run_one(environment, [GO, GO], limits={"max_context_tokens": room + 1})
    assert trajectory.stop is StopReason.CONTEXT_OVERFLOW
    assert [one.response_ids for one in trajectory.turns] == [(6, 9, 7, 1), (6,)]
    assert engine.of(0)[1].max_new_tokens == 1


def test_context_overflow_comes_before_the_token_limit():
    limits = {"max_tokens_per_trajectory": 4, "max_context_tokens": len(FIRST) + 4 + len(user("c"))}
    trajectory, _ = run_one(Script(step("c")), [GO], limits=limits)
    assert trajectory.stop is StopReason.CONTEXT_OVERFLOW


def test_environment_error_in_reset():
    trajectory, engine = run_one(Script(first=OSError("no disk")), [])
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert trajectory.failed
    assert trajectory.error == "OSError: no disk"
    assert trajectory.turns == ()
    assert trajectory.final_observation_ids == ()
    assert (trajectory.score, trajectory.success) == (0.0, False)
    assert engine.requests == []


def test_environment_error_in_step():
    environment = Script(step("c", 1.0, success=True), ValueError("lost"))
    trajectory, _ = run_one(environment, [GO, GO])
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert trajectory.error == "ValueError: lost"
    assert [one.reward for one in trajectory.turns] == [1.0]  # the turn that failed is not recorded
    assert trajectory.score == 1.0
    assert not trajectory.success
    assert trajectory.final_observation_ids == ()


@pytest.mark.parametrize(
    "bad",
    [
        step(3),
        step(None),
        ("c", 1.0, False),
        ("c", "much", True, False, {}),
        ("c", 1.0, True, False, None),
        step("c", float("nan")),
        step("c", float("inf"), terminated=True),
    ],
    ids=["number", "none", "short", "reward", "info", "nan", "infinite"],
)
def test_a_wrong_result_of_step_is_an_environment_error(bad):
    trajectory, _ = run_one(Script(bad, step("c")), [GO, GO])
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert trajectory.turns == ()
    assert (trajectory.score, trajectory.success) == (0.0, False)
    assert trajectory.error


def test_a_reset_without_text_is_an_environment_error():
    trajectory, _ = run_one(Script(first=["a"]), [])
    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert "observation of type list, expected a str" in trajectory.error


def test_an_error_in_state_key_is_an_environment_error():
    class Keyless(Script):
        def state_key(self):
            raise RuntimeError("no key")

    trajectory, _ = run_one(Keyless(step("c")), [GO])
    assert trajectory.error == "RuntimeError: no key"
    assert trajectory.turns == ()


def test_one_failing_environment_does_not_disturb_others():
    def good():
        return Script(step("c", 1.0), step("d", 1.0, terminated=True))

    alone = [run([good()], [[GO, GO]], starts=[start(i)])[0][0] for i in range(4)]
    environments = [good(), Script(first=OSError("x")), Script(ValueError("y")), good()]
    together, engine = run(environments, [[GO, GO] for _ in range(4)])
    assert [one.stop.value for one in together] == [
        "terminated",
        "environment_error",
        "environment_error",
        "terminated",
    ]
    for index in (0, 3):
        assert timeless(together[index]) == timeless(alone[index])
        assert together[index].score == 2.0
    assert [[r.episode for r in batch] for batch in engine.requests] == [[0, 2, 3], [0, 3]]


def test_an_interrupt_is_not_an_environment_error():
    class Interrupted(Script):
        def step(self, action):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(Interrupted(), [GO])


def test_the_engine_forgets_the_episodes_whatever_happens():
    from tests.rollout import scripted

    class Broken(scripted.Engine):
        def generate(self, requests):
            raise MemoryError

    engine = Broken()
    rollout = scripted.Rollout(
        engine=engine,
        chat=scripted.chat(),
        stop_ids=scripted.STOP,
        limits=Limits(max_tokens_per_turn=4),
    )
    with pytest.raises(MemoryError):
        scripted.collect(*scripted.given([start()], [Script(step("c"))]), rollout)
    assert engine.finished == 1
