"""MedicalQA: what names an option, episodes with and without a search tool, tasks from files.

All contents are made up.

Changes of the code that turned these tests red, each tried once:

- A letter behind the last option accepted: ``test_what_names_no_option``.
- Letter and text that disagree accepted: ``test_what_names_no_option``.
- The text preferred to the letter: ``test_a_letter_is_a_letter``.
- The first of two equal options taken: ``test_what_names_no_option``.
- An unreadable answer graded as wrong: ``test_unreadable_answer_is_invalid``.
- The search tool offered without a corpus: ``test_episode_without_a_search_tool``.
- The context left out: ``test_context_is_shown_or_searched``; shown though it is searched: the same;
  the demo's shown: ``test_demo_does_not_give_the_answer_away``.
- The right option always A: ``test_demo_letters_are_even``.
- ``context`` not among the columns: ``test_tasks_come_from_the_file``.
"""

import json
from collections import Counter

import pytest

from agentic_trl.environments.qa.base import QuestionOracle
from agentic_trl.environments.qa.medical_qa import MedicalQA, read_choice
from agentic_trl.environments.registry import env_spec, make_env, resolve_environment
from agentic_trl.trainers.user_code.tasks import refuse_unknown_columns, task_dataset

TASK = {
    "question": "Which drug helps against Velitis?",
    "options": ["Doroil", "Zanazole", "Kirumab", "All of the above."],
    "answers": ["B"],
}
OPTIONS = tuple(TASK["options"])


@pytest.mark.parametrize(
    "answer",
    [
        "B",
        "b",
        "(B)",
        "(b)",
        "B.",
        "B)",
        "B:",
        "(B).",
        " B ",
        "Zanazole",
        "zanazole.",
        "ZANAZOLE",
        "B. Zanazole",
        "(B) zanazole",
        "B) Zanazole.",
        "B: Zanazole",
        "B Zanazole",
        "B.\nZanazole",
    ],
)
def test_what_names_an_option(answer):
    assert read_choice(answer, OPTIONS) == "B"


@pytest.mark.parametrize("answer", ["all of  the above", "D", "(d) All of the above"])
def test_texts_are_compared_without_case_spaces_and_full_stop(answer):
    assert read_choice(answer, OPTIONS) == "D"


@pytest.mark.parametrize(
    "answer",
    [
        "E",
        "Z",
        "(E)",
        "BB",
        "B, C",
        "A or B",
        "BC",
        "B. Kirumab",
        "E. Zanazole",
        "(B",
        "B))",
        ".",
        "Zana",
        "Zanazole helps",
        "The answer is B",
        "2",
        "ſ",
        "\u212a",
        "",
        "B - Zanazole",
    ],
)
def test_what_names_no_option(answer):
    assert read_choice(answer, OPTIONS) is None
    assert read_choice("same", ("same", "Same", "other")) is None


def test_a_letter_is_a_letter():
    assert read_choice("A", ("B", "C", "A")) == "A"
    assert read_choice("C", ("B", "C")) == "B"  # no third option, but a text
    assert read_choice("A fever", ("Cough", "a fever")) == "B"
    assert read_choice(".", ("x", "")) is None


def test_episode_without_a_search_tool():
    env = MedicalQA()
    observation, info = env.reset(options=TASK)
    assert observation == (
        "Question: Which drug helps against Velitis?\n"
        "A. Doroil\nB. Zanazole\nC. Kirumab\nD. All of the above."
    )
    assert info == {"success": False}
    assert env.action_format.tags == ("answer",)
    assert "search" not in env.instructions
    assert env.step("<search>Velitis</search>")[4]["invalid_action"]
    ended = {"success": True, "invalid_action": False}
    assert env.step("<answer>(b)</answer>") == ("Your answer is right.", 1.0, True, False, ended)
    env.reset(options=TASK)
    ended = {"success": False, "invalid_action": False}
    assert env.step("<answer>Doroil</answer>") == ("Your answer is wrong.", 0.0, True, False, ended)


def test_unreadable_answer_is_invalid():
    env = MedicalQA()
    env.reset(options=TASK)
    observation, reward, terminated, truncated, info = env.step("<answer>maybe B</answer>")
    assert observation == (
        "invalid action: Answer with <think>your reasoning</think> and then "
        "<answer>your answer</answer>. The answer is one letter, A to D."
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "invalid_action": True}
    assert env.step("<answer>B</answer>")[1] == 1.0


@pytest.mark.parametrize("corpus", [None, "own"])
def test_oracle(corpus):
    env, oracle = make_env("MedicalQA-v1", corpus=corpus), QuestionOracle()
    for task in MedicalQA.make_tasks(40, split="eval", corpus=corpus):
        env.reset(options=task)
        if corpus:
            found, reward, terminated, _, _ = env.step(oracle.act(env))
            right = task["options"]["ABCD".index(task["answers"][0])]
            assert right in found
            assert (reward, terminated) == (0.0, False)
        _, reward, terminated, _, info = env.step(oracle.act(env))
        assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_same_seed_same_episode():
    seen = [MedicalQA().reset(seed=seed) for seed in range(20)]
    assert [MedicalQA().reset(seed=seed) for seed in range(20)] == seen
    assert len({observation for observation, _ in seen}) > 10


def test_splits_are_disjoint():
    train = MedicalQA.make_tasks(512, split="train")
    held_out = MedicalQA.make_tasks(64, split="eval")
    keys = {(task["question"], *task["options"]) for task in [*train, *held_out]}
    assert len(keys) == 576


def test_demo_letters_are_even():
    tasks = MedicalQA.make_tasks(512, split="train")
    letters = Counter(task["answers"][0] for task in tasks)
    # 128 each, with a standard deviation of 9.8 at most
    assert set(letters) == set("ABCD")
    assert all(80 < number < 176 for number in letters.values())
    assert all(len(set(task["options"])) == 4 for task in tasks)


def test_demo_does_not_give_the_answer_away():
    for task in MedicalQA.make_tasks(100, split="train"):
        assert task["context"] == ""
        right = task["options"]["ABCD".index(task["answers"][0])]
        assert right not in task["question"]


@pytest.fixture
def pubmedqa(tmp_path):
    """Made-up questions in PubMedQA's form."""
    record = {"CONTEXTS": ["Velitis is a disease.", "30 got well."], "final_decision": "no"}
    path = tmp_path / "ori_pqal.json"
    path.write_text(json.dumps({str(n): {**record, "QUESTION": f"Is it {n}?"} for n in range(30)}))
    return {"data": str(path), "format": "pubmedqa"}


def test_context_is_shown_or_searched(pubmedqa):
    shown = MedicalQA(**pubmedqa)
    observation, _ = shown.reset(seed=0)
    assert observation.startswith(
        "Context: Velitis is a disease.\n30 got well.\n\nQuestion: Is it "
    )
    assert observation.endswith("?\nA. yes\nB. no\nC. maybe")
    searched = MedicalQA(**pubmedqa, corpus="own")
    observation, _ = searched.reset(seed=0)
    assert observation.startswith("Question: Is it ")
    assert "Velitis is a disease." in searched.step("<search>Velitis</search>")[0]


def test_tasks_come_from_the_file(pubmedqa):
    specs = {"": resolve_environment("MedicalQA-v1", pubmedqa)}
    tasks = task_dataset(specs, 20, "train")
    refuse_unknown_columns(specs, tasks)
    assert all(task["question"].startswith("Is it ") for task in tasks)
    assert all(task["options"] == ["yes", "no", "maybe"] for task in tasks)
    env = specs[""].make()
    observation, _ = env.reset(options=dict(tasks[0]))
    assert tasks[0]["question"] in observation
    assert observation.startswith("Context: Velitis")
    assert env.step("<answer>no</answer>")[1] == 1.0


@pytest.mark.parametrize(
    "changed",
    [{"options": None}, {"answers": None}, {"answers": ["E"]}, {"answers": ["A", "B"]}],
)
def test_incomplete_task_is_refused(changed):
    with pytest.raises(ValueError, match="expected a list of options and a list with the letter"):
        MedicalQA().reset(options={**TASK, **changed})


def test_formats_and_limits():
    with pytest.raises(ValueError, match="one of the formats medqa, medmcqa, pubmedqa"):
        MedicalQA(data="x", format="hotpotqa")
    with pytest.raises(ValueError, match="topk=0"):
        MedicalQA(topk=0)
    assert env_spec("MedicalQA-v1").max_turns == 5
