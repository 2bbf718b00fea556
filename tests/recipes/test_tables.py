"""The tables of recipes/README.md: they are what the records give.

Changes of the code that turned these tests red, each tried once:

- A number of the README's table changed by hand: ``test_the_readme_shows_the_records``.
- The mean taken over the seeds' rounded rates, the first of two records of a seed kept, records of another
  length or learning rate accepted: ``test_table_by_hand``, each.
- A record of GRPO counted for every method of its recipe: ``test_table_by_hand``.
- ``num_iterations`` left out of ``updates``: ``test_updates``.
- Records of any method, the first of a seed, intervals of another number of tasks: ``test_agents_by_hand``, each.
"""

import importlib.util
import json

import pytest

from recipes import records, staleness_arms, tables
from tests.recipes.running import RECIPES


def record(seed, successes, *, turns=6.0, tokens=10.0, before=None, **knobs):
    """A record of the recipe of GRPO with sixteen held-out episodes."""
    written = tables.Row("grpo").written
    own = {key: value for key, value in written.items() if key not in tables.FREE}
    del own["method"]  # GRPO is the default, which no record holds
    metrics = {"turns/success_mean": turns, "tokens_per_turn/success": tokens}
    return {
        "seed": seed,
        "knobs": own | {"max_steps": tables.ROLLOUTS} | knobs,
        "before": before,
        "after": {"successes": successes, "episodes": 16, "tasks": 16, "metrics": metrics},
    }


def test_the_readme_shows_the_records():
    text = tables.README.read_text()
    assert tables.with_table(text, tables.render(tables.ROWS)) == text
    assert tables.with_table(text, tables.render_agents(), name="agents") == text
    assert tables.with_table(text, staleness_arms.render(), name="staleness") == text


def test_agents_by_hand(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "AGENTS", {"clerk": ("grpo", "planpo")})
    start = record(0, 0)["after"]
    lines = [
        {"seed": 0, "knobs": {"method": "grpo"}, "before": start, "after": start},
        {
            "seed": 0,
            "knobs": {"method": "grpo"},
            "before": start,
            "after": record(0, 8, turns=3.0)["after"],
        },
        {"seed": 1, "knobs": {"method": "planpo"}, "before": start, "after": start},
    ]
    (tmp_path / "agent-clerk.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    z = (
        1.96**2 / 16
    )  # Wilson: of 0 in 16 up to z / (1 + z), of 8 in 16 half of sqrt((1 + z) z) / (1 + z) around .5
    assert f"{z / (1 + z):.3f}" == "0.194"
    assert f"{0.5 * (z / (1 + z)) ** 0.5:.3f}" == "0.220"
    assert tables.render_agents().splitlines()[2:] == [
        "| clerk | grpo | 0 | .000 (.000 to .194) | .500 (.280 to .720) | 6.00 to 3.00 |",
        "| clerk | grpo | 1 | - | - | - |",
        "| clerk | grpo | 2 | - | - | - |",
        "| clerk | planpo | 0 | - | - | - |",
        "| clerk | planpo | 1 | .000 (.000 to .194) | .000 (.000 to .194) | 6.00 to 6.00 |",
        "| clerk | planpo | 2 | - | - | - |",
    ]


def test_table_by_hand(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    start = {"successes": 4, "episodes": 16, "tasks": 16, "metrics": {}}
    lines = [
        record(0, 1),
        record(0, 9, turns=6.0, tokens=10.0, before=start),  # the last of a seed counts: .5625
        record(1, 16, turns=7.0, tokens=20.0),
        record(2, 0, max_steps=2),  # a trial run
        record(2, 0, learning_rate=1.0),  # another recipe
        record(2, 8, method="gigpo", turns=5.0),
    ]
    text = "\n".join(map(json.dumps, lines))
    (tmp_path / "frozen_lake-grpo.jsonl").write_text(text + "\n")
    rows = (tables.Row("grpo"), tables.Row("grpo", "gigpo"), tables.Row("planpo"))
    assert tables.render(rows).splitlines()[2:] == [
        "| before |  |  | .250 | - | - |",
        # The mean of .5625 and 1 is .78125, of 6 and 7 turns 6.5, of 10 and 20 tokens 15.
        "| `grpo` | 1 | .562, 1.000, - | .781 | 6.50 | 15.00 |",
        "| `grpo` with `--method gigpo` | 1 | -, -, .500 | .500 | 5.00 | 10.00 |",
        "| `planpo` | 1 | -, -, - | - | - | - |",
    ]


def test_updates():
    assert tables.updates({}) == 1
    assert tables.updates({"num_iterations": 4}) == 4
    assert tables.updates({"steps_per_generation": 8}) == 8
    assert tables.updates({"steps_per_generation": 8, "gradient_accumulation_steps": 4}) == 2


def test_a_table_without_its_comments_is_refused():
    with pytest.raises(ValueError, match=r"Got a text without <!-- table: frozen_lake -->"):
        tables.with_table("# Recipes\n", "")


def test_reproduction_leaves_out_what_is_recorded(monkeypatch, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location(
        "reproduction", RECIPES / "reproduction" / "frozen_lake.py"
    )
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    (tmp_path / "frozen_lake-grpo.jsonl").write_text(json.dumps(record(1, 9)) + "\n")
    words = ["run", "--dry", "--only", "grpo", "so-grpo", "grpo:gspo"]
    monkeypatch.setattr("sys.argv", words)
    runner.main()
    printed = capsys.readouterr().out.splitlines()
    of_grpo = [line for line in printed if "/grpo.yaml" in line and "--method" not in line]
    assert [line.split("--seed ")[1][0] for line in of_grpo] == ["0", "2"]
    # 30 rollouts, of 4 updates each for SO-GRPO.
    assert all("--max_steps 120" in line for line in printed if "so-grpo" in line)
    assert sum("--method gspo" in line for line in printed) == 3
    assert all("--record true" in line for line in printed)
    assert len(printed) == 2 + 3 + 3
