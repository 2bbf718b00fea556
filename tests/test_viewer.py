"""Episodes in the console.

Mutations seen red: penalty left out; penalty of a turn without one shown; a role without a colour refused; a role
taken for markup; control characters of a role shown; a content that is no text taken for one; turns counted along the messages of the assistant.
"""

import dataclasses
import io

from rich.console import Console

from agentic_trl.viewer import render_trajectory
from tests.rollout.scripted import GO, Script, run_one, step


def test_a_turn_is_titled_with_what_it_earned_and_its_penalty():
    environment = Script(step("c", 1.0, invalid_action=True), step("d", 2.0, terminated=True))
    trajectory, _ = run_one(environment, [GO, GO], invalid_action_penalty=0.5)
    console = Console(file=io.StringIO(), width=100)
    console.print(render_trajectory(trajectory))
    shown = console.file.getvalue()
    assert "assistant | reward 1 | 4 tokens | no accepted action | penalty 0.5 " in shown
    assert "assistant | reward 2 | 4 tokens ─" in shown
    assert "terminated | success True | score 3" in shown


def test_turns_stand_at_their_responses():
    environment = Script(step("c", 1.0), step("d", 2.0, terminated=True))
    trajectory, _ = run_one(environment, [GO, GO])
    places = [turn.message for turn in trajectory.turns]
    responses = [at for at, one in enumerate(trajectory.messages) if one["role"] == "assistant"]
    assert places == responses
    assert trajectory.first_response == places[0]
    own = {"role": "assistant", "content": "a program's own"}
    first, second = trajectory.turns
    messages = (*trajectory.messages[: places[1]], own, *trajectory.messages[places[1] :])
    turns = (first, dataclasses.replace(second, message=places[1] + 1))
    console = Console(file=io.StringIO(), width=100)
    console.print(
        render_trajectory(dataclasses.replace(trajectory, messages=messages, turns=turns))
    )
    titles = [line for line in console.file.getvalue().splitlines() if "─ assistant" in line]
    assert ["reward" in title for title in titles] == [True, False, True]


def test_any_role_can_be_shown():
    trajectory, _ = run_one(Script(step("c", 1.0, terminated=True)), [GO])
    odd = {"role": "[red]tool\x1b[1m", "content": "\x1b[31mx[/]"}
    console = Console(file=io.StringIO(), width=100)
    console.print(
        render_trajectory(dataclasses.replace(trajectory, messages=(odd, *trajectory.messages)))
    )
    shown = console.file.getvalue()
    assert "[red]tool\\x1b[1m" in shown
    assert "\\x1b[31mx[/]" in shown
    assert "\x1b" not in shown


def test_any_role_and_content_is_shown():
    trajectory, _ = run_one(Script(step("d", 1.0, terminated=True)), [GO])
    more = (
        {"role": "tool", "content": "found 3"},
        {"role": "developer", "content": None},
        {"role": "critic", "content": [{"type": "text", "text": "part"}]},
        {"role": "ipython"},
    )
    shown = io.StringIO()
    Console(file=shown, width=100).print(
        render_trajectory(dataclasses.replace(trajectory, messages=trajectory.messages + more))
    )
    for text in ("tool", "found 3", "developer", "critic", "part", "ipython"):
        assert text in shown.getvalue()


def test_reasoning_and_calls_are_shown():
    trajectory, _ = run_one(Script(step("c", 1.0, terminated=True)), [GO])
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": {"n": "\x1b"}}}
    said = {"role": "assistant", "content": "up", "reasoning_content": "so", "tool_calls": [call]}
    (*before, _, last) = trajectory.messages
    shown = dataclasses.replace(trajectory, messages=(*before, said, last))
    console = Console(file=io.StringIO(), width=100)
    console.print(render_trajectory(shown))
    text = console.file.getvalue()
    assert [line.strip("│ ") for line in text.splitlines() if line[2:4] in ("so", "up", "fi")] == [
        "so",
        "up",
        'find({"n": "\\u001b"})',
    ]
