"""Questions and the files that they are read from, each format as its authors publish it."""

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentic_trl.environments.qa.corpus import Passage, as_text, once, read_lines
from agentic_trl.task_splits import split_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of options, in order."""

HELD_OUT_SHARE = 8
"""One in this many questions is for evaluation where no file of its own is given."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question and what answers it."""

    question: str
    """The question."""
    answers: tuple[str, ...]
    """Accepted answers, one or more; the letter of the right option if there are options."""
    options: tuple[str, ...] = ()
    """Choices, in the order of ``LETTERS``; empty if the answer is free."""
    passages: tuple[Passage, ...] = ()
    """Passages that belong to the question, helpful or not."""

    @property
    def text(self) -> str:
        """Question and options, a line each."""
        return "\n".join([self.question, *self.options])

    def digest(self) -> bytes:
        """Return a hash of question and options, the same in every process."""
        return hashlib.sha256(self.text.encode()).digest()


class RecordError(ValueError):
    """A record that is no question; the message says why."""


def _texts(values: Any) -> tuple[str, ...]:
    """Return a list of texts as a tuple; a single text is none.

    Raises:
        TypeError: If it is something else.
    """
    if not isinstance(values, list):
        raise TypeError(f"got {values!r}, expected a list of texts")
    return tuple(map(as_text, values))


def _hotpotqa(record: Any) -> Question:
    # HotpotQA's sentences begin with a space, those of 2Wiki do not.
    passages = [
        Passage(title, " ".join(one.strip() for one in sentences))
        for title, sentences in record["context"]
    ]
    return Question(as_text(record["question"]), (as_text(record["answer"]),), (), tuple(passages))


def _musique(record: Any) -> Question | None:
    if not record.get("answerable", True):
        return None
    return Question(
        as_text(record["question"]),
        (as_text(record["answer"]), *_texts(record["answer_aliases"])),
        (),
        tuple(Passage(one["title"], one["paragraph_text"]) for one in record["paragraphs"]),
    )


def _nq(record: Any) -> Question:
    return Question(as_text(record["question"]), _texts(record["answer"]))


def _flashrag(record: Any) -> Question:
    return Question(as_text(record["question"]), _texts(record["golden_answers"]))


def _popqa(record: Any) -> Question:
    return Question(as_text(record["question"]), _texts(json.loads(record["possible_answers"])))


def _medqa(record: Any) -> Question:
    letters = sorted(record["options"])
    if letters != list(LETTERS[: len(letters)]):
        raise RecordError(f"options are named {letters}, expected letters from A on")
    options = _texts([record["options"][letter] for letter in letters])
    return Question(as_text(record["question"]), (as_text(record["answer_idx"]),), options)


def _medmcqa(record: Any) -> Question:
    number = record["cop"]
    if number not in (1, 2, 3, 4):
        raise RecordError(
            f"cop is {number!r}, expected 1 to 4 as in the authors' files (copies elsewhere count from "
            "0, and the test set has none)"
        )
    options = _texts([record[f"op{letter}"] for letter in "abcd"])
    return Question(as_text(record["question"]), (LETTERS[number - 1],), options)


def _pubmedqa(record: Any) -> Question:
    options = ("yes", "no", "maybe")
    if record["final_decision"] not in options:
        raise RecordError(
            f"final_decision is {record['final_decision']!r}, expected one of {options}"
        )
    letter = LETTERS[options.index(record["final_decision"])]
    passages = tuple(Passage(record["QUESTION"], as_text(text)) for text in record["CONTEXTS"])
    return Question(as_text(record["QUESTION"]), (letter,), options, passages)


def _whole(path: str) -> Iterator[tuple[int, Any]]:
    """Records of a file that is one JSON list, or one object whose values are the records.

    Raises:
        ValueError: If the file cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"The file {path} cannot be read as one JSON value in UTF-8: {error}. Correct the path, or "
            "the format."
        ) from error
    records = content.values() if isinstance(content, dict) else content
    yield from enumerate(records if isinstance(content, list | dict) else [content], start=1)


def _table(path: str) -> Iterator[tuple[int, Any]]:
    """Records of a file of tab-separated columns with a header.

    Raises:
        ValueError: If the file cannot be read.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as lines:
            yield from enumerate(csv.DictReader(lines, delimiter="\t"), start=1)
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(
            f"The file {path} cannot be read as a table in UTF-8: {error}. Correct the path, or the "
            "format."
        ) from error


Reader = Callable[[str], Iterator[tuple[int, Any]]]

FREE_FORMATS: Mapping[str, tuple[Reader, Callable[[Any], Question | None]]] = MappingProxyType(
    {
        "hotpotqa": (_whole, _hotpotqa),
        "2wiki": (_whole, _hotpotqa),
        "musique": (read_lines, _musique),
        "nq": (read_lines, _nq),
        "popqa": (_table, _popqa),
        "flashrag": (read_lines, _flashrag),
    }
)
"""Formats of questions with free answers: the file's reader and the record's."""

CHOICE_FORMATS: Mapping[str, tuple[Reader, Callable[[Any], Question | None]]] = MappingProxyType(
    {
        "medqa": (read_lines, _medqa),
        "medmcqa": (read_lines, _medmcqa),
        "pubmedqa": (_whole, _pubmedqa),
    }
)
"""Formats of questions with options."""


@once
def read_questions(path: str, format: str) -> tuple[Question, ...]:
    """Read all questions of a file; a file is read a single time in a process.

    Args:
        path: The file.
        format: A key of ``FREE_FORMATS`` or ``CHOICE_FORMATS``.

    Returns:
        The questions in the order of the file, each once; those without an answer are left out.

    Raises:
        ValueError: If the file cannot be read, or is not of this format; the record is named.
    """
    reader, convert = {**FREE_FORMATS, **CHOICE_FORMATS}[format]
    questions: dict[bytes, Question] = {}
    for number, record in reader(path):
        try:
            question = convert(record)
            if question is not None:
                question = _checked(question)
                questions.setdefault(question.digest(), question)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            reason = str(error) if isinstance(error, RecordError) else repr(error)
            raise ValueError(
                f"Record {number} of {path} is no record of the format {format!r}: {reason}. Give the "
                "file as its authors publish it, or another format."
            ) from error
    if not questions:
        raise ValueError(f"The file {path} holds no question with an answer; give another one.")
    return tuple(questions.values())


def _checked(question: Question) -> Question:
    """Return the question, without empty answers, if it can be asked and graded.

    Raises:
        RecordError: If it cannot.
    """
    answers = tuple(text for text in question.answers if text.strip())
    if not answers or not question.question.strip():
        raise RecordError(f"the question {question.question!r} or its answers {answers} are empty")
    if question.options and question.answers[0] not in LETTERS[: len(question.options)]:
        raise RecordError(f"the answer {question.answers[0]!r} names none of {question.options}")
    return replace(question, answers=answers)


def split_questions(
    questions: tuple[Question, ...], held_out: tuple[Question, ...] | None
) -> dict[str, list[Question]]:
    """Divide questions between training and evaluation.

    Args:
        questions: Questions for training, or for both.
        held_out: Questions for evaluation; those that training has, too, are left out. ``None``
            takes one in ``HELD_OUT_SHARE`` of ``questions``, chosen by a hash.

    Returns:
        Lists under ``"train"`` and ``"eval"``, disjoint, in an order that a hash decides: any
        first few are a sample of all.
    """
    keyed = {one.digest(): one for one in questions}
    if held_out is None:
        parts: dict[str, dict[bytes, Question]] = {"train": {}, "eval": {}}
        for key, one in keyed.items():
            parts[split_of(one.text, one_in=HELD_OUT_SHARE)][key] = one
    else:
        others = {one.digest(): one for one in held_out}
        parts = {"train": keyed, "eval": {k: others[k] for k in others if k not in keyed}}
    return {split: [part[key] for key in sorted(part)] for split, part in parts.items()}
