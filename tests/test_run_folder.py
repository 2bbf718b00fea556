"""The folder of a run as commands read it: what is missing, broken, cut or foreign.

Mutations seen red: files in the order of their names; checkpoints likewise; a cut line, text that is none, or nesting that is too deep
not caught; a name that only holds the pattern; a list taken for facts; a folder taken for a file; separators inside a text as
ends of lines.
"""

import json

import pytest

from agentic_trl.run_folder import (
    EpisodeFile,
    episode_files,
    read_facts,
    read_log,
    update_files,
)

RECORD = {"step": 1, "loss": 0.5}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def lines(*records):
    return "".join(json.dumps(one) + "\n" for one in records)


def test_an_empty_folder_has_nothing(tmp_path):
    assert read_facts(tmp_path) == {}
    assert read_log(tmp_path) == []
    assert episode_files(tmp_path) == []
    assert update_files(tmp_path) == []


def test_a_line_ends_where_a_file_says_so_and_not_in_a_text(tmp_path):
    record = {"step": 1, "note": "a\u2028b\u0085c\x1dd"}
    write(tmp_path / "metrics.jsonl", json.dumps(record, ensure_ascii=False) + "\n")
    assert read_log(tmp_path) == [record]


def test_so_has_one_that_is_not_there(tmp_path):
    folder = tmp_path / "gone"
    assert (read_facts(folder), read_log(folder), episode_files(folder)) == ({}, [], [])


def test_facts(tmp_path):
    write(tmp_path / "run.json", {"method": "grpo"})
    assert read_facts(tmp_path) == {"method": "grpo"}


@pytest.mark.parametrize(
    "content",
    ["", '{"method": "gr', "[1, 2]", "null", b"\xff\xfe\x00", "[" * 100_000],
    ids=["empty", "cut", "a_list", "null", "no_text", "too_deep"],
)
def test_facts_that_are_broken_are_none(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert read_facts(tmp_path) == {}


def test_a_folder_in_the_place_of_a_file_is_none(tmp_path):
    (tmp_path / "run.json").mkdir()
    (tmp_path / "metrics.jsonl").mkdir()
    assert read_facts(tmp_path) == {}
    assert read_log(tmp_path) == []


def test_the_log_without_what_is_cut_or_no_record(tmp_path):
    text = lines({"step": 0}, RECORD) + '\n[3]\nword\n{"step": 2, "loss": 0.'
    write(tmp_path / "metrics.jsonl", text)
    assert read_log(tmp_path) == [{"step": 0}, RECORD]


def test_a_log_that_is_cut_inside_of_a_character(tmp_path):
    start = lines(RECORD).encode()
    (tmp_path / "metrics.jsonl").write_bytes(start + '{"step": 2, "ü'.encode()[:-1])
    assert read_log(tmp_path) == [RECORD]


def state(folder, number, history):
    write(folder / f"checkpoint-{number}" / "trainer_state.json", {"log_history": history})


def test_where_the_log_is_read_from_in_order(tmp_path):
    """The file; the newest checkpoint that has records, by number and not by name; ``metrics.json``."""
    write(tmp_path / "metrics.json", {"history": [{"step": 7}]})
    assert read_log(tmp_path) == [{"step": 7}]
    state(tmp_path, 9, [{"step": 9}])
    state(tmp_path, 10, [{"step": 9}, {"step": 10}])
    state(tmp_path, 11, [])
    write(tmp_path / "checkpoint-12" / "trainer_state.json", '{"log_hi')
    (tmp_path / "checkpoint-13").mkdir()
    state(tmp_path, "old", [{"step": 1}])
    write(tmp_path / "checkpoint-99", "a file")
    assert read_log(tmp_path) == [{"step": 9}, {"step": 10}]
    write(tmp_path / "metrics.jsonl", lines(RECORD))
    assert read_log(tmp_path) == [RECORD]
    write(tmp_path / "metrics.jsonl", "")  # a run that has begun: nothing of an earlier one
    assert read_log(tmp_path) == []


def test_files_of_episodes_and_of_updates_by_step_and_rank(tmp_path):
    folder = tmp_path / "trajectories"
    names = [
        *("step_000004_rank_1.jsonl", "step_000004_rank_0.jsonl", "step_000000_rank_0.jsonl"),
        *("step_000008_rank_0.partial", "step_notes.jsonl", "step_x_rank_0.jsonl", "other.jsonl"),
        *("update_000005_rank_0.jsonl", "step_000001_rank_0.json", "my_step_000001_rank_0.jsonl"),
        *("updates/update_000005_rank_0.jsonl", "updates/step_000005_rank_0.jsonl"),
        *("updates/update_000007_rank_0.partial", "updates/update_000003_rank_2.jsonl"),
    ]
    for name in names:
        write(folder / name, "{}\n")
    assert episode_files(tmp_path) == [
        EpisodeFile(step=0, rank=0, path=folder / names[2]),
        EpisodeFile(step=4, rank=0, path=folder / names[1]),
        EpisodeFile(step=4, rank=1, path=folder / names[0]),
    ]
    assert update_files(tmp_path) == [
        EpisodeFile(step=3, rank=2, path=folder / "updates" / "update_000003_rank_2.jsonl"),
        EpisodeFile(step=5, rank=0, path=folder / "updates" / "update_000005_rank_0.jsonl"),
    ]


def test_ranks_and_steps_are_numbers(tmp_path):
    """Rank 10 comes behind rank 2, and step 1000000 behind 999999."""
    for name in ("step_1000000_rank_0", "step_999999_rank_10", "step_999999_rank_2"):
        write(tmp_path / "trajectories" / f"{name}.jsonl", "{}\n")
    found = [(one.step, one.rank) for one in episode_files(tmp_path)]
    assert found == [(999999, 2), (999999, 10), (1000000, 0)]
