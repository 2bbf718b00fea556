"""Files of questions: every format on a small made-up file in the shape that its authors publish.

The contents are made up; the names of the fields, the nesting and the types are those of the published
files.

Changes of the code that turned these tests red, each tried once:

- Sentences joined without a space: ``test_2wiki``; not stripped: ``test_hotpotqa``.
- Unanswerable questions of MuSiQue kept, or aliases left out: ``test_musique``.
- PopQA split at tabs without quotes: ``test_popqa``.
- ``cop`` read from 0: ``test_medmcqa``; its range not checked: ``test_a_wrong_record_is_named``.
- Options of MedQA in the order of the file: ``test_medqa``.
- ``yes`` and ``no`` exchanged: ``test_pubmedqa``.
- A question of the file kept twice: ``test_questions_are_kept_once``.
- The digest without the options: ``test_questions_are_kept_once``.
- Empty answers kept: ``test_nq``; none left accepted: ``test_a_wrong_record_is_named``.
- Questions for evaluation that training has kept: ``test_a_file_for_evaluation``.
- Held-out questions left in training: ``test_held_out_share``.
- The order of a set kept in the splits: ``test_held_out_share``.
"""

import json

import pytest

from agentic_trl.environments.qa.corpus import Passage
from agentic_trl.environments.qa.data import Question, read_questions, split_questions


def lines(*records):
    return "".join(json.dumps(one) + "\n" for one in records)


@pytest.fixture
def read(tmp_path):
    def read_text(text, format):
        path = tmp_path / f"made_up_{format}"
        path.write_text(text, encoding="utf-8")
        return read_questions(str(path), format)

    return read_text


HOTPOT = {
    "_id": "5a7a06935542990198eaf050",
    "question": "On which river does the birthplace of Ada Harrow lie?",
    "answer": "Sihtalev River",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Ada Harrow", 0], ["Velora", 1]],
    "context": [
        ["Ada Harrow", ["Ada Harrow was born in Velora.", " She was a pilot."]],
        ["Velora", ["Velora is a town.", " It lies on the Sihtalev River."]],
    ],
}


def test_hotpotqa(read):
    assert read(json.dumps([HOTPOT]), "hotpotqa") == (
        Question(
            "On which river does the birthplace of Ada Harrow lie?",
            ("Sihtalev River",),
            (),
            (
                Passage("Ada Harrow", "Ada Harrow was born in Velora. She was a pilot."),
                Passage("Velora", "Velora is a town. It lies on the Sihtalev River."),
            ),
        ),
    )


def test_2wiki(read):
    record = {
        **HOTPOT,
        "context": [["Velora", ["Velora is a town.", "It lies on the Sihtalev River."]]],
        "evidences": [["Velora", "river", "Sihtalev River"]],
    }
    (question,) = read(json.dumps([record]), "2wiki")
    assert question.passages == (
        Passage("Velora", "Velora is a town. It lies on the Sihtalev River."),
    )
    assert question.answers == ("Sihtalev River",)


def test_musique(read):
    record = {
        "id": "2hop__1_2",
        "paragraphs": [
            {"idx": 0, "title": "Velora", "paragraph_text": "A town.", "is_supporting": True},
            {"idx": 1, "title": "Zanemis", "paragraph_text": "Bells.", "is_supporting": False},
        ],
        "question": "Who founded the town?",
        "question_decomposition": [{"id": 1, "question": "q", "answer": "a"}],
        "answer": "Ada Harrow",
        "answer_aliases": ["A. Harrow"],
        "answerable": True,
    }
    other = {**record, "question": "Who did not?", "answerable": False}
    without = {k: v for k, v in record.items() if k != "answerable"} | {"question": "Who else?"}
    first, last = read(lines(record, other, without), "musique")
    passages = (Passage("Velora", "A town."), Passage("Zanemis", "Bells."))
    assert first == Question("Who founded the town?", ("Ada Harrow", "A. Harrow"), (), passages)
    assert last.question == "Who else?"


def test_nq(read):
    record = {"question": "when is the fair of velora", "answer": ["March", "", "in March"]}
    assert read(lines(record), "nq") == (
        Question("when is the fair of velora", ("March", "in March")),
    )


def test_flashrag(read):
    record = {"id": "test_0", "question": "who founded velora", "golden_answers": ["Ada Harrow"]}
    assert read(lines(record), "flashrag") == (Question("who founded velora", ("Ada Harrow",)),)


def test_popqa(read):
    text = (
        "id\tsubj\tprop\tobj\ts_aliases\tquestion\tpossible_answers\n"
        '1\tAda\toccupation\tpilot\t"[""A\\tda""]"\tWhat is Ada\'s occupation?\t'
        '"[""pilot"", ""flyer""]"\n'
    )
    assert read(text, "popqa") == (Question("What is Ada's occupation?", ("pilot", "flyer")),)


def test_medqa(read):
    record = {
        "question": "Which drug helps against Velitis?",
        "answer": "Zanazole",
        "options": {"B": "Zanazole", "A": "Doroil", "C": "Kirumab", "D": "Oshipine", "E": "None"},
        "meta_info": "step1",
        "answer_idx": "B",
    }
    assert read(lines(record), "medqa") == (
        Question(
            "Which drug helps against Velitis?",
            ("B",),
            ("Doroil", "Zanazole", "Kirumab", "Oshipine", "None"),
        ),
    )


MEDMCQA = {
    "question": "Which germ causes Velitis?",
    "exp": "Made up.",
    "cop": 1,
    "opa": "Velomonas",
    "opb": "Dorella",
    "opc": "Kirococcus",
    "opd": "Oshivirus",
    "subject_name": "Microbiology",
    "topic_name": None,
    "id": "45258d3d-b974-44dd-a161-c3fccbdadd88",
    "choice_type": "single",
}


def test_medmcqa(read):
    last = {**MEDMCQA, "question": "And now?", "cop": 4}
    options = ("Velomonas", "Dorella", "Kirococcus", "Oshivirus")
    assert read(lines(MEDMCQA, last), "medmcqa") == (
        Question("Which germ causes Velitis?", ("A",), options),
        Question("And now?", ("D",), options),
    )


PUBMEDQA = {
    "QUESTION": "Does Zanazole help against Velitis?",
    "CONTEXTS": ["Velitis is a disease.", "Of 40 patients 30 got well."],
    "LABELS": ["BACKGROUND", "RESULTS"],
    "MESHES": [],
    "YEAR": "2001",
    "reasoning_required_pred": "yes",
    "reasoning_free_pred": "yes",
    "final_decision": "yes",
    "LONG_ANSWER": "It does.",
}


def test_pubmedqa(read):
    records = {
        "21645374": PUBMEDQA,
        "16418930": {**PUBMEDQA, "QUESTION": "Does it not?", "final_decision": "no"},
        "9488747": {**PUBMEDQA, "QUESTION": "Might it?", "final_decision": "maybe"},
    }
    questions = read(json.dumps(records), "pubmedqa")
    assert questions[0] == Question(
        "Does Zanazole help against Velitis?",
        ("A",),
        ("yes", "no", "maybe"),
        (
            Passage("Does Zanazole help against Velitis?", "Velitis is a disease."),
            Passage("Does Zanazole help against Velitis?", "Of 40 patients 30 got well."),
        ),
    )
    assert [one.answers for one in questions] == [("A",), ("B",), ("C",)]


NQ = {"question": "q", "answer": ["a"]}


@pytest.mark.parametrize(
    ("format", "text", "sentence"),
    [
        (
            "nq",
            lines(NQ, {"question": "q"}),
            r"Record 2 of .* the format 'nq': KeyError\('answer'\)",
        ),
        ("nq", lines({"question": "q", "answer": []}), "Record 1 .* are empty"),
        ("nq", lines({"question": "q", "answer": ["", " "]}), "Record 1 .* are empty"),
        ("nq", lines({"question": "q", "answer": [3]}), "got 3, expected a text"),
        (
            "nq",
            lines({"question": "q", "answer": "Beijing"}),
            "'Beijing', expected a list of texts",
        ),
        ("nq", lines({"question": None, "answer": ["a"]}), "got None, expected a text"),
        ("nq", lines("text"), "Record 1 of "),
        ("nq", "", "holds no question with an answer"),
        ("nq", json.dumps([NQ], indent=1), "is no JSON in UTF-8 behind line 0"),
        ("hotpotqa", lines(NQ, NQ), "cannot be read as one JSON value"),
        ("hotpotqa", json.dumps([NQ]), "Record 1 of .* 'hotpotqa'"),
        ("hotpotqa", json.dumps([{**HOTPOT, "answer": ["a"]}]), "expected a text"),
        ("hotpotqa", "3", "Record 1 of "),
        ("popqa", "id\tquestion\n1\tq\n", r"Record 1 .*KeyError\('possible_answers'\)"),
        ("popqa", "question\tpossible_answers\nq\t['a']\n", "Record 1 of "),
        ("medmcqa", lines({**MEDMCQA, "cop": 0}), "cop is 0, expected 1 to 4"),
        ("medmcqa", lines({**MEDMCQA, "cop": 5}), "cop is 5, expected 1 to 4"),
        ("medmcqa", lines({**MEDMCQA, "opd": None}), "got None, expected a text"),
        (
            "medqa",
            lines({"question": "q", "options": {"B": "x"}, "answer_idx": "B"}),
            "letters from A",
        ),
        (
            "medqa",
            lines({"question": "q", "options": {"A": "x"}, "answer_idx": "B"}),
            "names none of",
        ),
        (
            "pubmedqa",
            json.dumps({"1": {**PUBMEDQA, "final_decision": "?"}}),
            "final_decision is '?'",
        ),
    ],
)
def test_a_wrong_record_is_named(read, format, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(text, format)


@pytest.mark.parametrize("format", ["nq", "hotpotqa", "popqa"])
def test_a_missing_file_is_named(tmp_path, format):
    with pytest.raises(ValueError, match=r"none cannot be read.*Correct the path"):
        read_questions(str(tmp_path / "none"), format)


def test_questions_are_kept_once(read):
    other = {**NQ, "question": "other"}
    again = {**NQ, "answer": ["b"]}
    assert [one.answers for one in read(lines(NQ, other, again), "nq")] == [("a",), ("a",)]
    # "Which is true?" is asked with many sets of options
    more = {**MEDMCQA, "opa": "another"}
    assert len(read(lines(MEDMCQA, more, MEDMCQA), "medmcqa")) == 2


MANY = tuple(Question(f"question {i}", (str(i),)) for i in range(800))


def test_held_out_share():
    splits = split_questions(MANY, None)
    train, held_out = splits["train"], splits["eval"]
    assert len(train) + len(held_out) == 800
    assert {*train, *held_out} == set(MANY)
    # One in eight: 100, with a standard deviation of 9.4.
    assert 60 < len(held_out) < 140
    # The order is neither the file's nor that of another file's beginning ...
    numbers = [int(one.answers[0]) for one in train]
    assert numbers != sorted(numbers)
    assert train == sorted(train, key=Question.digest)
    # ... and a question stays on its side, whatever else is in the file.
    fewer = split_questions(MANY[:300], None)
    assert set(fewer["eval"]) == set(held_out) & set(MANY[:300])


def test_a_file_for_evaluation():
    splits = split_questions(MANY[:20], MANY[15:30])
    assert set(splits["train"]) == set(MANY[:20])
    assert set(splits["eval"]) == set(MANY[20:30])
