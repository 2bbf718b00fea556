"""Texts of tokens: spaces, parts of characters, ids beyond the vocabulary; and where the tokenizer comes from.

Mutations seen red: bytes of a part of a character shown as U+FFFD; the space of a piece lost, one of several too; an id beyond the vocabulary raising;
the oldest checkpoint's tokenizer taken; ``trust_remote_code`` true; a missing tokenizer an error.
"""

import json

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentic_trl.assets import tiny_policy
from agentic_trl.page.runs import find_runs
from agentic_trl.page.tokens import find_tokenizer, token_texts
from tests.page.lines import line, turn, write_run


def tokenizer_of(pieces, decoder):
    core = Tokenizer(
        models.WordLevel({one: at for at, one in enumerate(pieces)}, unk_token=pieces[0])
    )
    core.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=core)


def test_bytes_of_a_part_of_a_character_are_shown():
    # The three bytes of U+4F60, E4 BD A0, as GPT-2's alphabet writes them, apart and together.
    tokenizer = tokenizer_of(["a", "Ġgo", "ä", "½ł", "ä½ł", "Ċ"], decoders.ByteLevel())
    texts = token_texts(tokenizer, [0, 1, 2, 3, 4, 5])
    assert texts == ["a", " go", "⟨E4⟩", "⟨BD A0⟩", "你", "\n"]


def test_the_space_before_a_piece_is_kept():
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer = tokenizer_of(["▁go", "ne", "<0xE4>", "▁", "▁▁", "▁▁▁▁", "▁▁a"], decoder)
    texts = token_texts(tokenizer, list(range(7)))
    assert texts == [" go", "ne", "⟨E4⟩", " ", "  ", "    ", "  a"]


def test_ids_beyond_the_vocabulary_are_shown_as_ids():
    tokenizer = tokenizer_of(["a"], decoders.ByteLevel())
    assert token_texts(tokenizer, [-1, 0, 9]) == ["⟨-1⟩", "a", "⟨9⟩"]


def test_tokens_of_the_tiny_policy_make_its_text():
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy())
    words = "<think>left is edge.</think><action>down</action>"
    ids = tokenizer(words, add_special_tokens=False)["input_ids"]
    assert "".join(token_texts(tokenizer, ids)) == words


def run_in(folder, model=None):
    return find_runs([write_run(folder, line(turn()), facts={"model": model} if model else None)])[
        0
    ]


def save(folder, word):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_of([word], decoders.ByteLevel()).save_pretrained(folder)


def first(run, given=None):
    tokenizer, _ = find_tokenizer(run, given)
    return tokenizer and tokenizer.convert_ids_to_tokens(0)


def test_the_tokenizer_is_that_of_the_folder_the_newest_checkpoint_or_the_model(tmp_path):
    run = run_in(tmp_path / "run", model=str(tmp_path / "model"))
    assert first(run) is None
    save(tmp_path / "model", "model")
    assert first(run) == "model"
    save(run.path / "checkpoint-9", "nine")
    save(run.path / "checkpoint-10", "ten")
    assert first(run) == "ten"
    save(run.path, "own")
    assert first(run) == "own"
    save(tmp_path / "given", "given")
    assert first(run, str(tmp_path / "given")) == "given"


def test_the_embedded_policy_is_known_by_its_short_name(tmp_path):
    assert find_tokenizer(run_in(tmp_path, model="tiny"), None)[0] is not None


def test_a_missing_tokenizer_is_a_sentence_and_no_error(tmp_path):
    tokenizer, said = find_tokenizer(run_in(tmp_path, model="no/such/model"), None)
    assert tokenizer is None
    assert "--tokenizer NAME" in said


def test_one_that_was_given_must_be_there(tmp_path):
    with pytest.raises(OSError, match="'no/such' cannot be loaded"):
        find_tokenizer(run_in(tmp_path), "no/such")


def test_code_in_the_folder_is_not_run(tmp_path):
    run = run_in(tmp_path)
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n"
    (tmp_path / "evil.py").write_text(code)
    auto = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Evil", "auto_map": auto})
    )
    assert find_tokenizer(run, None)[0] is None
    assert not (tmp_path / "ran").exists()
