"""Made-up questions and passages, so that the environments run without files.

Nothing here is true: the towns, people, diseases, germs and drugs do not exist.
"""

from collections.abc import Iterator
from itertools import permutations

from agentic_trl.environments.qa.corpus import Passage, once
from agentic_trl.environments.qa.data import LETTERS, Question

_BEGINNINGS = ("Vel", "Zan", "Dor", "Kir", "Tas", "Quel", "Bru", "Osh")
_TOWNS = tuple(a + b for a in _BEGINNINGS for b in ("ora", "emis", "ulon", "athis", "ibra", "enke"))
_SURNAMES = ("Harrow", "Lind", "Castel", "Voss", "Tamm", "Okoro", "Brandt", "Sato")
_PEOPLE = tuple(
    f"{a}{b} {c}"
    for a, c in zip(_BEGINNINGS, _SURNAMES, strict=True)
    for b in ("da", "mo", "rit", "sel", "tho", "nia")
)
_CRAFTS = ("glass", "rope", "bells", "paper", "knives", "carpets", "cheese", "clocks")
_MONTHS = ("January", "March", "April", "June", "July", "September", "October")
_INSTRUMENTS = ("flute", "drum", "harp", "fiddle", "horn")
_TRADES = ("miller", "weaver", "surgeon", "mason", "pilot", "printer", "gardener")


@once
def towns() -> tuple[Question, ...]:
    """Return questions about 48 towns and their 48 founders, with free answers.

    A question takes one passage or two; the corpus of all is 96 passages.
    """
    return tuple(_town_questions())


def _town_questions() -> Iterator[Question]:
    count = len(_TOWNS)
    town_passages, person_passages, facts, lives = [], [], [], []
    for i, (town, person) in enumerate(zip(_TOWNS, _PEOPLE, strict=True)):
        fact = {
            "which river does {} lie on": f"{_TOWNS[(5 * i + 3) % count][::-1].capitalize()} River",
            "what is {} known for": _CRAFTS[(3 * i + i // 8) % len(_CRAFTS)],
            "in which month is the fair of {}": _MONTHS[(2 * i + i // 7) % len(_MONTHS)],
        }
        life = {
            "which instrument did {} play": _INSTRUMENTS[(2 * i + i // 5) % len(_INSTRUMENTS)],
            "what was the trade of {}": _TRADES[(3 * i + i // 7) % len(_TRADES)],
        }
        river, craft, month = fact.values()
        instrument, trade = life.values()
        birthplace = _TOWNS[(7 * i + 11) % count]
        town_passages.append(
            Passage(
                town,
                f"{town} is a town on the {river}. {person} founded it. It is known for its "
                f"{craft}, and its fair is held in {month}.",
            )
        )
        person_passages.append(
            Passage(
                person,
                f"{person}, a {trade} by trade, was born in {birthplace} and played the {instrument}.",
            )
        )
        facts.append(fact)
        lives.append(life)
    for i, (town, person) in enumerate(zip(_TOWNS, _PEOPLE, strict=True)):
        born = (7 * i + 11) % count
        here, there, who = town_passages[i], town_passages[born], person_passages[i]
        yield _ask(f"who founded {town}", person, here)
        yield _ask(f"in which town was {person} born", _TOWNS[born], who)
        yield _ask(f"in which town was the founder of {town} born", _TOWNS[born], here, who)
        for words, answer in facts[i].items():
            yield _ask(words.format(town), answer, here)
        for words, answer in lives[i].items():
            yield _ask(words.format(person), answer, who)
            yield _ask(words.format(f"the founder of {town}"), answer, here, who)
        for words, answer in facts[born].items():
            yield _ask(words.format(f"the birthplace of {person}"), answer, who, there)


def _ask(words: str, answer: str, *passages: Passage) -> Question:
    return Question(f"{words[0].upper()}{words[1:]}?", (answer,), (), passages)


_KINDS = {
    "disease": ("osis", "itis", "algia", "emia"),
    "germ": ("ella", "ococcus", "ivirus", "omonas"),
    "drug": ("oril", "azole", "umab", "ipine"),
    "marker": ("ase", "ogen", "ulin", "erin"),
    "sign": (" spots", " fever", " cough", " gait"),
}
_SAID = {
    "disease": "the disease {}",
    "germ": "the germ {}",
    "drug": "the drug {}",
    "marker": "raised {}",
    "sign": "{}",
}


@once
def medicine() -> tuple[Question, ...]:
    """Return questions about 32 invented diseases, with four options each.

    Each disease has a germ, a drug, a marker and a sign; a question gives one of the five and asks
    for another. The corpus of all is 32 passages.
    """
    return tuple(_medicine_questions())


def _medicine_questions() -> Iterator[Question]:
    steps = {"disease": 1, "germ": 3, "drug": 5, "marker": 7, "sign": 9}  # odd: all 32 occur
    names = {kind: [a + b for a in _BEGINNINGS for b in ends] for kind, ends in _KINDS.items()}
    cases = [
        {kind: names[kind][(step * i + step) % 32] for kind, step in steps.items()}
        for i in range(32)
    ]
    for i, case in enumerate(cases):
        passage = Passage(
            case["disease"],
            f"{case['disease']} is caused by the germ {case['germ']}. Its sign is {case['sign']}; the "
            f"blood shows raised {case['marker']}. It is treated with the drug {case['drug']}.",
        )
        for turn, (given, asked) in enumerate(permutations(_KINDS, 2)):
            right = (i + turn) % 4
            options = [cases[(i + 5 * n + turn % 10) % 32][asked] for n in (1, 2, 3)]
            options.insert(right, case[asked])
            words = f"Which {asked} goes with {_SAID[given].format(case[given])}?"
            yield Question(words, (LETTERS[right],), tuple(options), (passage,))
