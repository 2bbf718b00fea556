"""Curves of runs: which runs are one curve, its numbers by hand, what the files hold, and what is refused.

Mutations seen red: the seed or the folder among what tells experiments; another knob not; each of what stands beside the configuration left out; what differs from another method in a name; runs without a configuration as one;
steps that one run has; the normal quantile for Student's; the first figure of a step; ``null`` as a number; the band of
the log left out; three fields of a name and no more; the same name twice; dollars as they are; a label's first `_`; the file's date kept; text as outlines; the axis from the first step; held-out tasks not drawn; one
format; the same seed twice let through; the tasks before training of an older run left out.
"""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentic_trl.__main__ import main
from agentic_trl.commands.curves import Run, by_experiment, read_run
from agentic_trl.commands.plot import draw
from agentic_trl.experiments import curve


def write(folder, records, **facts):
    """A run's folder by its contract."""
    folder.mkdir(parents=True, exist_ok=True)
    if facts:
        own = {"seed": facts["seed"], "output_dir": str(folder)}
        told = {"method": "grpo", "environment": "E", "model": "m", "trainer": "T", **facts}
        told["args"] = {"method": told["method"], **facts.get("args", {}), **own}
        (folder / "run.json").write_text(json.dumps(told))
    lines = [json.dumps(one) for one in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def held_out(step, rate, **more):
    return {"step": step, "eval_success_rate": rate, **more}


@pytest.fixture
def three(tmp_path):
    """Three seeds of an experiment, evaluated at other steps, and another experiment."""
    rates = {0: {0: 0.2, 2: 0.4, 3: 0.9}, 1: {0: 0.4, 2: 0.4}, 2: {0: 0.6, 2: 0.7, 4: 0.9}}
    folders = [
        write(tmp_path / f"s{seed}", [held_out(*one) for one in of.items()], seed=seed)
        for seed, of in rates.items()
    ]
    more = write(tmp_path / "other", [held_out(0, 0.5)], seed=0, args={"learning_rate": 1.0})
    return [*folders, more]


def test_runs_that_differ_in_the_seed_alone_are_one_curve(three):
    named = by_experiment([read_run(one) for one in three])
    assert list(named) == ["grpo, 3 seeds", str(three[3])]
    assert [one.folder for one in named["grpo, 3 seeds"]] == three[:3]


OTHER = [
    ("world_size", 1, 8),
    ("peft", None, {"peft_type": "LORA", "r": 16}),
    ("peft", {"peft_type": "LORA", "r": 8}, {"peft_type": "LORA", "r": 16}),
    ("critic", "ValueModel", "an adapter on the policy"),
    ("reward_funcs", [], ["length"]),
    ("advantage_function", None, "mine"),
    ("train_dataset", {"rows": 8, "fingerprint": "a"}, {"rows": 8, "fingerprint": "b"}),
    ("eval_dataset", {"rows": 8, "fingerprint": "a"}, {"rows": 9, "fingerprint": "a"}),
]


@pytest.mark.parametrize(
    ("name", "one", "two"), OTHER, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(OTHER)]
)
def test_what_stands_beside_the_configuration_tells_experiments(name, one, two, tmp_path):
    runs = [
        read_run(write(tmp_path / f"{i}{seed}", [held_out(0, 0.5)], seed=seed, **{name: value}))
        for i, value in enumerate((one, two))
        for seed in (0, 1)
    ]
    groups = by_experiment(runs)
    assert [len(group) for group in groups.values()] == [2, 2]
    assert all(name in label for label in groups)


def test_experiments_are_told_by_what_differs(tmp_path):
    runs = [
        read_run(
            write(
                tmp_path / f"{method}{rate}{seed}",
                [held_out(0, 0.5)],
                seed=seed,
                method=method,
                args={"learning_rate": rate},
            )
        )
        for method, rate in (("grpo", 1.0), ("grpo", 2.0), ("ppo", 1.0))
        for seed in (0, 1)
    ]
    assert list(by_experiment(runs)) == [
        "grpo, learning_rate=1.0, 2 seeds",
        "grpo, learning_rate=2.0, 2 seeds",
        "ppo, 2 seeds",
    ]


def experiment_of(folder, args):
    return [
        read_run(write(folder / str(seed), [held_out(0, 0.5)], seed=seed, args=args))
        for seed in (0, 1)
    ]


def test_a_name_tells_as_many_fields_as_it_takes(tmp_path):
    first, second = (
        {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1},
        {"a": 2, "b": 2, "c": 2, "d": 2, "e": 2},
    )
    runs = [
        *experiment_of(tmp_path / "one", first),
        *experiment_of(tmp_path / "two", second),
        *experiment_of(tmp_path / "three", first | {"e": 3}),
    ]
    assert list(by_experiment(runs)) == [
        "grpo, a=1, b=1, c=1, e=1, 2 seeds",
        "grpo, a=2, b=2, c=2, 2 seeds",
        "grpo, a=1, b=1, c=1, e=3, 2 seeds",
    ]


def test_names_that_are_the_same_have_a_folder(tmp_path):
    one, two = (
        experiment_of(tmp_path / "one", {"a": 1, "b": 2}),
        experiment_of(tmp_path / "two", {"a": 1}),
    )
    three = experiment_of(tmp_path / "three", {"c": 1})
    assert list(by_experiment([*one, *two, *three])) == [
        "grpo, a=1, b=2, 2 seeds",
        "grpo, a=1, 2 seeds",
        "grpo, c=1, 2 seeds",
    ]
    single = Run(folder=Path("grpo, c=1, 2 seeds"), facts={}, log=one[0].log)
    assert list(by_experiment([*one, *three, single]))[1:] == [
        f"grpo, c=1, 2 seeds, {three[0].folder}",
        "grpo, c=1, 2 seeds, grpo, c=1, 2 seeds",
    ]


def test_names_of_folders_are_no_formulas_and_are_in_the_legend(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = ["cost $1_{ vs $2", "_hidden"]
    for name in names:
        write(Path(name), [held_out(0, 0.5, **{"eval_$x_{": 1.0, "eval_y$": 2.0})])
    chosen = ["--metrics", "success_rate", "$x_{", "y$"]
    assert main(["plot", *names, *chosen]) == 0
    capsys.readouterr()
    texts = [text.lstrip("\u200b") for text in svg("curves.svg")]
    assert {f"{name}, held-out" for name in names} | {"$x_{", "y$"} <= set(texts)


def test_the_mean_and_its_interval_by_hand(three):
    found = curve([read_run(one).figures for one in three[:3]], "eval_success_rate")
    assert found.steps == [0, 2]
    assert found.values == pytest.approx([0.4, 0.5])
    # Step 0: .2 .4 .6, s = .2; step 2: .4 .4 .7, s = sqrt(.06 / 2) = .17321. t(.975, 2) = 4.303, over sqrt(3).
    half = [4.303 * 0.2 / 3**0.5, 4.303 * 0.03**0.5 / 3**0.5]
    # The rounding of 4.303 to its last digit, 5e-4, times .2 / sqrt(3).
    assert found.low == pytest.approx([0.4 - half[0], 0.5 - half[1]], abs=1e-4)
    # The same rounding.
    assert found.high == pytest.approx([0.4 + half[0], 0.5 + half[1]], abs=1e-4)


def test_a_run_has_the_interval_of_its_log(tmp_path):
    ends = {"eval_success_rate/low": 0.3, "eval_success_rate/high": 0.8}
    records = [held_out(0, 0.5, **ends), held_out(4, None), {"step": 4, "eval_kl": 1.0}]
    records += [held_out(8, 0.6, **ends), held_out(8, 0.7, **ends)]
    one = read_run(write(tmp_path / "one", records)).figures
    found = curve([one], "eval_success_rate")
    assert (found.steps, found.values) == ([0, 8], [0.5, 0.7])
    assert (found.low, found.high) == ([0.3, 0.3], [0.8, 0.8])
    assert curve([one], "eval_kl").low == ()
    assert curve([one], "kl") is None


def test_runs_without_a_configuration_are_a_curve_each(tmp_path):
    runs = [read_run(write(tmp_path / name, [held_out(0, 0.5)])) for name in "ab"]
    assert list(by_experiment(runs)) == [str(one.folder) for one in runs]


def test_an_older_run_has_its_tasks_before_training(tmp_path):
    numbers = {"before": {"success_rate": 0.25}, "history": [{"step": 5, "success_rate": 0.5}]}
    (tmp_path / "metrics.json").write_text(json.dumps(numbers))
    assert read_run(tmp_path).figures["eval_success_rate"] == {0: 0.25}
    state = tmp_path / "checkpoint-7" / "trainer_state.json"
    state.parent.mkdir()
    state.write_text(json.dumps({"log_history": [held_out(7, 0.75)]}))
    assert read_run(tmp_path).figures["eval_success_rate"] == {0: 0.25, 7: 0.75}
    assert "success_rate" not in read_run(tmp_path).figures


def svg(path):
    """The texts of a picture."""
    root = ElementTree.parse(path).getroot()
    return ["".join(one.itertext()).strip() for one in root.iter() if one.tag.endswith("}text")]


def test_two_files_that_are_the_same_at_every_call(three, tmp_path, monkeypatch, capsys):
    seen = []
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert main(["plot", *map(str, three)]) == 0
        assert capsys.readouterr().out.split() == ["curves.png", "curves.svg"]
        seen.append([(tmp_path / folder / f"curves.{end}").read_bytes() for end in ("png", "svg")])
    assert seen[0] == seen[1]
    assert seen[0][0].startswith(b"\x89PNG")
    assert b"dc:date" not in seen[0][1]
    texts = svg("curves.svg")
    assert {"success", "optimizer step", "grpo, 3 seeds, held-out"} <= set(texts)
    assert "turns per episode" not in texts


def test_a_run_is_drawn_into_its_folder_with_training_and_held_out_tasks(tmp_path, capsys):
    records = [held_out(0, 0.5), {"step": 10, "success_rate": 0.7, "kl": 0.1}, held_out(10, 0.8)]
    folder = write(tmp_path / "run", records)
    assert main(["plot", str(folder)]) == 0
    assert capsys.readouterr().out.split() == [str(folder / f"curves.{e}") for e in ("png", "svg")]
    texts = svg(folder / "curves.svg")
    assert {"success", "KL to the reference, nats"} <= set(texts)
    assert {f"{folder}, training", f"{folder}, held-out"} <= set(texts)
    assert "0" in texts  # the first tick of the axis


def test_axes_start_before_training_and_bands_are_drawn(three, tmp_path, monkeypatch):
    figures = []
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: figures.append(figure))
    draw([read_run(one) for one in three], [tmp_path / "x.svg"])
    (axis,) = figures[0].axes
    assert axis.get_xlim()[0] == 0
    assert axis.get_ylim() == (-0.03, 1.03)
    first, second = axis.get_lines()
    assert list(first.get_xdata()) == [0, 2]
    assert list(second.get_ydata()) == [0.5]
    (band,) = axis.collections
    assert band.get_paths()[0].vertices[:, 0].min() == 0


def test_metrics_are_chosen(tmp_path, capsys):
    records = [{"step": 1, "return": 0.5, "success_rate": 1.0, "eval_return": 0.25}]
    folder = write(tmp_path / "run", records)
    path = tmp_path / "new" / "picture.svg"
    assert main(["plot", str(folder), "--metrics", "return", "--output", str(path)]) == 0
    assert {"return", f"{folder}, training", f"{folder}, held-out"} <= set(svg(path))
    assert "success" not in svg(path)
    assert main(["plot", str(folder), "--metrics", "eval_return", "--output", str(path)]) == 0
    assert f"{folder}, training" not in svg(path)
    assert not (folder / "curves.png").exists()
    capsys.readouterr()


def refused(capsys, *words):
    assert main(["plot", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_cannot_be_drawn_is_a_sentence(tmp_path, capsys, monkeypatch):
    folder = write(tmp_path / "run", [{"step": 1, "success_rate": 1.0, "note": "x"}], seed=1)
    assert "holds no log of a run" in refused(capsys, tmp_path / "nowhere")
    assert "Did you mean 'success_rate'?" in refused(capsys, folder, "--metrics", "sucess_rate")
    assert "'note', which no run has logged" in refused(capsys, folder, "--metrics", "note")
    empty = write(tmp_path / "empty", [{"step": 1, "loss": 1.0}])
    assert "none of success_rate, turns/mean" in refused(capsys, empty)
    again = write(tmp_path / "again", [{"step": 1, "success_rate": 1.0}], seed=1)
    assert "one configuration and one seed, 1" in refused(capsys, folder, again)
    assert "hold a folder twice" in refused(capsys, empty, empty)
    (tmp_path / "file").write_text("")
    assert "file" in refused(capsys, folder, "--output", tmp_path / "file" / "x.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert 'Run: pip install "agentic_trl[plots]"' in refused(capsys, folder)


def test_another_format_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["plot", str(tmp_path), "--output", "x.pdf"])
    assert stopped.value.code == 2
    assert re.search(r"got 'x\.pdf', expected a file \.png or \.svg", capsys.readouterr().err)


def test_figures_that_are_none_are_passed_over():
    log = [
        {"step": 1, "a": "text"},
        {"a": 1.0},
        {"step": 2, "a": float("nan")},
        {"step": 3, "a": 4},
    ]
    assert Run(folder=Path(), facts={}, log=log).figures["a"] == {3: 4.0}
