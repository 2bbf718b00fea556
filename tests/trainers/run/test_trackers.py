"""Episodes in the trackers of ``report_to``: which ones, in which form, and that no tracker ends a run.

Stand-ins for trackio and wandb record what they are given; the real packages are asked where they are installed.

Mutations seen red: a span's reward of the turn before; no bound on the episodes, or on the characters of one; a fence that a message can end; control characters kept;
calls of tools as text; an error of a tracker raised; the warning said at each step; episodes sent that are not logged; an error
of a callback or of TRL's timing raised; a tracker that cannot begin passed over; times sent outside of training.
"""

import importlib.util
import inspect
import json
import logging
import sqlite3
from types import SimpleNamespace

import pytest
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback
from trl.extras.profiling import ProfilingContext

from agentic_trl import AgenticGRPOTrainer
from agentic_trl.repeated import RepeatedWarnings
from agentic_trl.trainers.run import trackers
from agentic_trl.trainers.run.tracker_faults import guard_trackers, guarded_profiling
from agentic_trl.trainers.run.trackers import as_markdown, as_text, as_trace
from agentic_trl.trainers.run.trajectories import trace_lines
from agentic_trl.types import StopReason, Trajectory, Turn
from tests.tiny import Countdown, make_args, make_model, make_tokenizer, make_trainer

pytestmark = pytest.mark.trainer

HERE = {
    name: importlib.util.find_spec(name) is not None for name in ("tensorboard", "trackio", "wandb")
}


def needs(name):
    return pytest.mark.skipif(not HERE[name], reason=f"{name} is not installed")


def episode(content="b", **message):
    """A trajectory of two turns behind an example in the prompt, as it is written."""
    turns = tuple(
        Turn(
            observation_ids=(7,),
            response_ids=(8,) * n,
            response_logprobs=(-1.0,) * n,
            token_kinds=(2,) * n,
            reward=reward,
            extends=n > 1,
            action=action,
            seconds=0.25 * n,
            message=place,
        )
        for n, reward, action, place in ((1, 0.5, "left", 3), (2, 1.0, "up", 6))
    )
    said = [("user", "an example"), ("assistant", "of an answer"), ("user", "a")]
    said += [("assistant", "left"), ("assistant", "of a program"), ("user", content)]
    said += [("assistant", "up")]
    messages = [{"role": role, "content": text} for role, text in said]
    messages[-1] |= message
    one = Trajectory(
        turns=turns,
        group=3,
        member=1,
        stop=StopReason.TERMINATED,
        success=True,
        score=1.5,
        messages=tuple(messages),
        task={"seed": 5},
    )
    line = next(iter(trace_lines([one])))
    # The advantages of rows, which stand in the file: mean .5 and (-1 + 2) / 2 = .5 less 1.
    line["turns"][0]["advantages"], line["turns"][1]["advantages"] = [0.5], [-1.0, 0.0]
    return line


def test_a_trace_has_a_span_a_turn():
    calls = [{"function": {"name": "go", "arguments": {"to": "up"}}}]
    trace = as_trace(episode(tool_calls=calls), 4)
    assert [one["metadata"]["reward"] for one in trace["spans"]] == [0.5, 1.0]
    assert [one["metadata"]["advantage"] for one in trace["spans"]] == [0.5, -0.5]
    assert [one["duration_ms"] for one in trace["spans"]] == [250.0, 500.0]
    assert [one["usage"]["output_tokens"] for one in trace["spans"]] == [1, 2]
    assert [one["output"] for one in trace["spans"]] == ["left", "up"]
    facts = {"step": 4, "group": 3, "member": 1, "success": True, "score": 1.5, "turns": 2}
    facts |= {"stop": "terminated", "status": "ok", "task": '{"seed": 5}'}
    facts |= {"rewards": [0.5, 1.0], "advantages": [0.5, -0.5]}
    assert trace["metadata"] == facts
    assert trace["messages"][-1]["tool_calls"] == calls
    assert trace["messages"][0] == {"role": "user", "content": "an example"}
    json.dumps(trace)


def test_the_turns_stand_at_their_responses():
    text = as_text(episode())
    assert text.splitlines()[0] == "group 3, member 1: success, score 1.5, terminated, 2 turns"
    assert "[assistant]\nof an answer" in text
    assert "[assistant]\nof a program" in text
    assert "[assistant, turn 1, reward 0.5, advantage +0.5]\nleft" in text
    assert "[assistant, turn 2, reward 1, advantage -0.5]\nup" in text


def test_nothing_that_is_said_leaves_its_block():
    shown = as_markdown(episode("```\n<script>\x1b[2J````\n# no heading"))
    assert "\n`````text\n```\n<script>````\n# no heading\n`````" in shown
    assert "\x1b" not in shown


def test_an_episode_that_was_left_out_has_no_advantage():
    line = episode()
    line["turns"][0]["advantages"] = []
    assert as_trace(line, 0)["metadata"]["advantages"] == [None, -0.5]
    assert "[assistant, turn 1, reward 0.5]" in as_text(line)


class Module:
    """Stands for trackio and for wandb."""

    def __init__(self, fails=False):
        self.logged, self.fails = [], fails

    def Trace(self, **given):  # noqa: N802  # the packages' name
        return given

    def Table(self, **given):  # noqa: N802
        return given

    def log(self, given):
        if self.fails:
            raise ConnectionError("the server is gone")
        self.logged.append(given)


class Writer(list):
    """Stands for TensorBoard's."""

    def add_text(self, tag, text, step):
        self.append((tag, text, step))


def played(tmp_path, monkeypatch, callbacks, module, **knobs):
    """Run with these callbacks; their own doings are left out."""
    monkeypatch.setattr(trackers, "import_module", lambda name: module)
    trainer = make_trainer(tmp_path, max_steps=3, logging_steps=2, **knobs)
    for one in callbacks:
        trainer.add_callback(one)
    trainer.train()
    return trainer


def bare(kind, **attributes):
    """A callback of transformers' class that does nothing."""
    silent = type(
        kind.__name__, (kind,), {n: lambda *_, **__: None for n in dir(kind) if n.startswith("on_")}
    )
    one = silent.__new__(silent)
    vars(one).update(attributes)
    return one


def test_the_first_episodes_of_logged_generations_are_sent(tmp_path, monkeypatch):
    module, writer = Module(), Writer()
    callbacks = [
        bare(TrackioCallback),
        bare(WandbCallback),
        bare(TensorBoardCallback, tb_writer=writer),
    ]
    callbacks.append(bare(TensorBoardCallback, tb_writer=None))  # one that has not begun
    knobs = {"per_device_train_batch_size": 12, "num_train_tasks": 16}
    played(tmp_path, monkeypatch, callbacks, module, **knobs)
    # Of three generations those at steps 0 and 2 are logged; of 12 episodes 8 are sent.
    assert [one["train/global_step"] for one in module.logged] == [0, 0, 2, 2]
    traces, table = (one["episodes"] for one in module.logged[:2])
    places = [(one["metadata"]["group"], one["metadata"]["member"]) for one in traces]
    assert places == [(n // 4, n % 4) for n in range(8)]
    for one in traces:
        said = [message["role"] for message in one["messages"]]
        assert said.count("assistant") == one["metadata"]["turns"] == len(one["spans"])
    assert table["columns"] == list(trackers.COLUMNS)
    assert [row[1:3] for row in table["data"]] == [list(one) for one in places]
    assert [(tag, step) for tag, _, step in writer] == [
        (f"episodes/{n}", step) for step in (0, 2) for n in range(8)
    ]
    with (tmp_path / "trajectories" / "step_000002_rank_0.jsonl").open() as file:
        line = json.loads(next(file))
    assert module.logged[2]["episodes"][0]["metadata"]["score"] == line["score"]
    assert writer[8][1] == as_markdown(line)


@pytest.mark.parametrize("count", [0, 3])
def test_as_many_are_sent_as_wished(tmp_path, monkeypatch, count):
    module = Module()
    played(tmp_path, monkeypatch, [bare(TrackioCallback)], module, tracked_episodes=count)
    assert [len(one["episodes"]) for one in module.logged] == [count] * 2 * bool(count)


def test_an_episode_is_cut_as_a_whole():
    line = episode("b" * 19_938)  # behind 10 + 12 + 1 + 4 + 12 characters: 19 977, and 23 are left
    line["messages"].append({"role": "assistant", "content": "c" * 24})
    line["messages"].append({"role": "user", "content": "d"})
    line["turns"][0]["action"] = "e" * 30_000
    shown = trackers.bounded(line)
    contents = [one["content"] for one in shown["messages"]]
    assert contents[5:] == ["b" * 19_938, "up", trackers.CUT, trackers.CUT]
    assert [len(one["action"]) for one in shown["turns"]] == [20_000, len(trackers.CUT)]
    assert "[... 30000 characters in all ...]" in shown["turns"][0]["action"]
    assert len(line["turns"][0]["action"]) == 30_000  # what is written stays


def test_none_are_sent_where_none_are_logged(tmp_path, monkeypatch):
    module = Module()
    played(tmp_path, monkeypatch, [bare(TrackioCallback)], module, log_trajectories=False)
    assert module.logged == []


def test_a_tracker_that_fails_is_a_warning_once(tmp_path, monkeypatch, caplog, capsys):
    caplog.set_level(logging.WARNING)
    trainer = played(tmp_path, monkeypatch, [bare(TrackioCallback)], Module(fails=True))
    said = [one.getMessage() for one in caplog.records if "trackio" in one.getMessage()]
    assert said == [
        "The episodes of optimizer step 0 could not be sent to trackio (ConnectionError: the server is gone); the run goes on."
    ]
    assert trainer.state.global_step == 3
    assert "1 x episodes could not be sent to trackio" in capsys.readouterr().out


def failing(*_, **__):
    raise ConnectionError("the server is gone")


def test_a_tracker_that_fails_in_training_is_a_warning(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(trackers, "import_module", lambda name: Module())
    silent = bare(TrackioCallback)
    type(silent).on_log = type(silent).on_train_end = failing
    trainer = make_trainer(tmp_path, max_steps=3)
    trainer.add_callback(silent)
    guard_trackers(trainer)
    trainer.train()
    assert trainer.state.global_step == 3
    said = [one.getMessage() for one in caplog.records if "A tracker" in one.getMessage()]
    assert said == [
        f"A tracker of report_to failed (TrackioCallback.{event}; ConnectionError: the server is gone); the run goes on."
        for event in ("on_log", "on_train_end")
    ]


def test_a_tracker_that_cannot_begin_ends_the_run(tmp_path):
    silent = bare(TrackioCallback)
    type(silent).on_train_begin = failing
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.add_callback(silent)
    guard_trackers(trainer)
    with pytest.raises(ConnectionError):
        trainer.train()


@pytest.mark.parametrize(("training", "calls"), [(True, 2), (False, 0)])
def test_the_times_of_reward_functions_end_no_run(monkeypatch, caplog, training, calls):
    """In training each is sent, and fails with a warning; outside of it there is no run that they could be sent to."""
    met = []

    def send(context, duration):
        met.append(duration)
        failing()

    monkeypatch.setattr(ProfilingContext, "_log_metrics", send)
    host = SimpleNamespace(is_in_train=training, repeated=RepeatedWarnings())
    with guarded_profiling(host):
        for _ in range(2):
            with ProfilingContext(name="a", report_to=["trackio"]):
                pass
    assert ProfilingContext._log_metrics is send
    said = [one.getMessage() for one in caplog.records if "A tracker" in one.getMessage()]
    assert len(met) == calls
    assert len(said) == (1 if training else 0)


def test_the_writer_is_where_transformers_puts_it():
    assert "tb_writer" in inspect.signature(TensorBoardCallback.__init__).parameters


def test_other_ranks_send_nothing():
    host = SimpleNamespace(accelerator=SimpleNamespace(is_main_process=False))
    trackers.show_episodes(host, [episode()])  # it reads no callbacks


EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 2, "num_generations_eval": 2}


def logged_names(trainer):
    """What transformers' callbacks call the figures of a log."""
    names = {name for entry in trainer.state.log_history for name in entry}
    single = {name for name in names if name.startswith(("train_", "total_flos"))}
    held_out = {f"eval/{name[5:]}" for name in names if name.startswith("eval_")}
    rest = names - single - {"step"}
    return held_out | {f"train/{name}" for name in rest if not name.startswith("eval_")}


@needs("tensorboard")
def test_tensorboard_shows_scalars_and_episodes(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = make_trainer(tmp_path, report_to=["tensorboard"], **EVALUATED)
    trainer.train()
    board = EventAccumulator(str(tmp_path / "board"), size_guidance={"tensors": 0})
    board.Reload()
    found = set(board.Tags()["scalars"])
    assert logged_names(trainer) <= found
    assert {"eval/success_rate", "eval/pass^2", "train/success_rate"} <= found
    texts = board.Tensors("episodes/0/text_summary")
    assert [one.step for one in texts] == [0, 1]
    assert texts[0].tensor_proto.string_val[0].decode().startswith("**group 0, member 0: ")


@needs("trackio")
def test_trackio_shows_scalars_and_traces(tmp_path, monkeypatch):
    import orjson
    import trackio
    from trackio import sqlite_storage, utils

    monkeypatch.setattr(utils, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    trainer = make_trainer(
        tmp_path, report_to=["trackio"], project="lake", run_name="one", **EVALUATED
    )
    trainer.train()
    assert trackio.__version__
    (path,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(path) as database:
        rows = [orjson.loads(one) for (one,) in database.execute("select metrics from metrics")]
        traces = database.execute("select messages, metadata, spans from traces").fetchall()
    assert logged_names(trainer) <= {name for row in rows for name in row}
    assert len(traces) == 16
    messages, metadata, spans = map(orjson.loads, traces[0])
    assert [one["role"] for one in messages].count("assistant") == metadata["turns"]
    assert len(spans) == metadata["turns"]


@needs("trackio")
def test_held_out_tasks_are_played_before_and_after_a_run_that_trackio_follows(
    tmp_path, monkeypatch, caplog
):
    from trackio import sqlite_storage, utils

    monkeypatch.setattr(utils, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    given = {"report_to": ["trackio"], "project": "lake", "run_name": "one", "max_steps": 1}
    trainer = AgenticGRPOTrainer(
        make_model(),
        make_args(tmp_path, **given),
        environment=Countdown,
        reward_funcs=lambda completions, **_: [1.0] * len(completions),
        processing_class=make_tokenizer(),
    )
    assert "eval_return" in trainer.evaluate()
    trainer.train()
    assert "eval_return" in trainer.evaluate()
    assert not [one for one in caplog.records if "A tracker" in one.getMessage()]


@needs("wandb")
def test_wandb_shows_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    trainer = make_trainer(tmp_path, report_to=["wandb"], **EVALUATED)
    trainer.train()
    import wandb

    wandb.finish()
    tables = sorted(tmp_path.glob("wandb/offline-run-*/files/media/table/episodes_*.json"))
    assert len(tables) == 2
    first = json.loads(tables[0].read_text())
    assert first["columns"] == list(trackers.COLUMNS)
    assert len(first["data"]) == 8
