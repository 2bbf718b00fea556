"""Texts that try to become markup or script, everywhere that a run can hold a text."""

from tests.page.lines import line, turn, write_run

HOSTILE = (
    "<script>window.injected = 1; alert(1)</script>",
    "<img src=x onerror=\"window.injected = 2; alert(2)\">",
    "</script><script>window.injected = 3; alert(3)</script>",
    "<svg onload=\"window.injected = 4\">",
    "<a href=\"javascript:window.injected = 5\">click</a>",
    "javascript:window.injected = 6",
    "\" onmouseover=\"window.injected = 7\" x=\"",
    "<iframe srcdoc=\"<script>parent.injected = 8</script>\"></iframe>",
    "<style>body { display: none }</style>",
    "<!--", "]]>", "<base href=\"//elsewhere.invalid/\">", "${window.injected = 9}", "__proto__", "constructor",
    "\u202egnp.exe\u2066 \x1b[31mred\x07 \x00 \ud800 \u200b",
)  # fmt: skip


def hostile_run(folder):
    """A run whose every text is hostile, as is its name; the paths of its folder and of a lone file."""
    everything = "\n".join(HOSTILE)
    lines = []
    for at, word in enumerate(HOSTILE):
        credit = {word: 1.0, "trajectory": 0.5}
        one = line(
            turn(action=word, state_key=word, credit=credit),
            turn(),
            member=at,
            task=word,
            stop=word,
            error=everything,
        )
        one["messages"] = [
            {"role": word, "content": everything, word: word},
            {"role": "user", "content": word, "tool_calls": word},
            {"role": "assistant", "content": word, "reasoning_content": word},
            {"role": "assistant", "content": word},
            {"role": word, "content": word},
        ]
        lines.append(one)
    name = "<img src=x onerror=window.injected=10> ' \" & <script>alert(10)<script>"
    facts = {
        "method": HOSTILE[0],
        "environment": HOSTILE[1],
        "model": HOSTILE[2],
        "seed": HOSTILE[4],
    }
    facts["args"] = {word: word for word in HOSTILE}
    log = [
        {"step": step, **{word: float(step) for word in HOSTILE}, "success_rate": 0.5}
        for step in (1, 2, 3)
    ]
    run = write_run(folder / name, *lines, f"{{{HOSTILE[2]}", facts=facts, log=log)
    lone = folder / f"{name}.jsonl"
    lone.write_text(
        (run / "trajectories" / "step_000004_rank_0.jsonl").read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    return [run, lone]
