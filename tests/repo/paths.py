"""How much of the product runs, and must be read, for one everyday operation.

    python -m tests.repo.paths              figures of every operation, its deepest stack, files
    python -m tests.repo.paths --functions  the functions of each file as well

Figures: functions, the lines of their definitions, and the deepest stack of calls of the
product. Each operation runs once before it is recorded, so imports, connections and caches do
not count. The bounds are in test_paths.py.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.repo.sources import PACKAGES, ROOT, Source

FAKES = "atroposlib/testing/"  # the other side of a connection, not the operation
GROUP = {
    "tokens": [[1, 5, 9], [1, 5, 7]],
    "masks": [[-100, -100, 9], [-100, -100, 7]],
    "scores": [1.0, 0.0],
    "inference_logprobs": [[1.0, 1.0, -0.2], [1.0, 1.0, -0.4]],
    "versions": [[-1, -1, 0], [-1, -1, 0]],
}

# Bodies that CPython 3.12 runs without a separate frame.
INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")
IN_THE_BACKGROUND = ("indexer",)  # threads that work behind the operations, at any time

Functions = dict[str, dict[int, str]]  # names by the line of their code, by file


@dataclass(frozen=True)
class Recording:
    """What one operation ran."""

    functions: Functions
    deepest: tuple[str, ...]

    @property
    def figures(self) -> dict[str, int]:
        """The figures that are bounded."""
        ran = [definitions(source_of(file), names) for file, names in self.functions.items()]
        return {
            "functions": sum(functions for functions, _ in ran),
            "function lines": sum(lines for _, lines in ran),
            "deepest stack": len(self.deepest),
        }


def source_of(file: str) -> Source:
    """The source of a file of the product."""
    return Source(Path(file), (ROOT / file).read_text(encoding="utf-8"))


def definitions(source: Source, first_lines: Collection[int]) -> tuple[int, int]:
    """How many functions begin at one of the lines, and how many lines they have.

    The lines of a function inside of another one count once. A lambda is a part of the function
    around it.
    """
    ran = [
        node
        for node in source.nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        # The code of a function begins at its first decorator.
        and min([node.lineno, *(d.lineno for d in node.decorator_list)]) in first_lines
    ]
    lines = {n for node in ran for n in range(node.lineno, (node.end_lineno or 0) + 1)}
    return len(ran), len(lines)


def name_of(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))


class Recorder:
    """Records the functions that every thread runs while it is on.

    It must be installed before the threads of the operation begin.
    """

    def __init__(self) -> None:
        self.on = False
        self.functions: Functions = defaultdict(dict)
        self.deepest: tuple[str, ...] = ()
        self._known: dict[str, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.on or event != "call":
            return
        if threading.current_thread().name in IN_THE_BACKGROUND:
            return
        file = self._file_of(frame.f_code)
        if file is not None:
            self.functions[file][frame.f_code.co_firstlineno] = name_of(frame.f_code)
            stack = self._stack_of(frame)
            if len(stack) > len(self.deepest):
                self.deepest = stack

    def _file_of(self, code: CodeType) -> str | None:
        """The file of a function of the product; None for all others."""
        if code.co_name == "<module>" or code.co_name in INLINED:
            return None
        if code.co_filename not in self._known:
            self._known[code.co_filename] = product_file(code.co_filename)
        return self._known[code.co_filename]

    def _stack_of(self, frame: FrameType | None) -> tuple[str, ...]:
        """Functions of the product in the calls that led to ``frame``, the first one first."""
        names: list[str] = []
        while frame is not None:
            if self._file_of(frame.f_code) is not None:
                names.append(name_of(frame.f_code))
            frame = frame.f_back
        return tuple(reversed(names))

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = sys.getprofile()
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)  # type: ignore[arg-type]  # typeshed lacks None

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on = False


def product_file(filename: str) -> str | None:
    """The path from the root of a file of the product; None for all others."""
    path = Path(filename)
    if not path.is_relative_to(ROOT):
        return None
    relative = path.relative_to(ROOT).as_posix()
    if relative.startswith(FAKES) or relative.partition("/")[0] not in PACKAGES:
        return None
    return relative


# --- the operations -------------------------------------------------------------------


@contextmanager
def api() -> Iterator[str]:
    """The address of an API on SQLite, whose run has started."""
    from atroposlib.api.server import create_app
    from atroposlib.api.store import open_store
    from tests.serving import served

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(open_store("sqlite", Path(folder)))
        with served(app) as url:
            yield url
        app.state.service.close()


@contextmanager
def trainer(url: str) -> Iterator[Any]:
    from atroposlib.client import RolloutClient
    from atroposlib.wire import Registration

    with RolloutClient(url) as client:
        client.register(
            Registration(
                wandb_group="g",
                wandb_project="p",
                batch_size=2,
                max_token_len=64,
                checkpoint_dir="",
                save_checkpoint_interval=1,
                starting_step=0,
                num_steps=4,
            )
        )
        client.claim(wait_s=0)  # this starts the run
        yield client


@asynccontextmanager
async def environment(url: str) -> AsyncIterator[tuple[Any, dict[str, Any], str]]:
    """An environment's client, a group of that environment, and the run id."""
    from atroposlib.client import AsyncRolloutClient
    from atroposlib.wire import RegisterEnv

    body = RegisterEnv(max_token_length=64, desired_name="e", weight=1.0, group_size=2)
    async with AsyncRolloutClient(url, binary=True) as client:
        joined = await client.register_env(body)
        assert joined is not None
        yield client, GROUP | {"env_id": joined.env_id}, joined.run_id


async def _post(url: str, recorder: Recorder) -> None:
    async with environment(url) as (client, group, run_id):
        await client.send_groups([group], run_id=run_id)
        with recorder.recording():
            sent = await client.send_groups([group], run_id=run_id)
        assert sent.accepted == 1


def post(recorder: Recorder) -> None:
    """Post one binary group: from the client's call to its reply, SQLite commit included."""
    with api() as url, trainer(url):
        asyncio.run(_post(url, recorder))


async def _send_two(url: str) -> None:
    async with environment(url) as (client, group, run_id):
        for _ in range(2):
            await client.send_groups([group], run_id=run_id)


def claim(recorder: Recorder) -> None:
    """Claim a batch: from the client's call to the decoded groups."""
    with api() as url, trainer(url) as client:
        asyncio.run(_send_two(url))
        assert client.claim(wait_s=0, binary=True).batch_no == 1
        with recorder.recording():
            claimed = client.claim(wait_s=0, binary=True)
        assert claimed.batch_no == 2 and claimed.batch is not None


async def _row(manager: Any, tokenizer: Any) -> list[Any]:
    async with manager.managed_server(tokenizer=tokenizer) as managed:
        await managed.chat_completion(messages=[{"role": "user", "content": "hello"}])
        return list(managed.get_state()["nodes"])


async def _managed(url: str, recorder: Recorder) -> None:
    from atroposlib.generation.configs import APIServerConfig
    from atroposlib.generation.routing.manager import ServerManager
    from atroposlib.testing.tiny import char_tokenizer

    tokenizer = char_tokenizer()
    manager = ServerManager([APIServerConfig(base_url=f"{url}/v1", server_type="vllm")])
    try:
        await _row(manager, tokenizer)
        with recorder.recording():
            nodes = await _row(manager, tokenizer)
        assert len(nodes) == 1
    finally:
        await manager.close()


def managed_row(recorder: Recorder) -> None:
    """One managed session over a fake vLLM server: one chat completion to its node."""
    from atroposlib.testing.fake_inference import FakeInference

    with FakeInference().running() as url:
        asyncio.run(_managed(url, recorder))


OPERATIONS: dict[str, Callable[[Recorder], None]] = {
    "post one group": post,
    "managed row": managed_row,
    "claim a batch": claim,
}


def record(operation: str) -> Recording:
    """What ``operation`` runs, sorted by file."""
    recorder = Recorder()
    with recorder.installed():
        OPERATIONS[operation](recorder)
    return Recording(dict(sorted(recorder.functions.items())), recorder.deepest)


def main() -> None:
    from tests.repo.test_paths import BOUNDS

    for operation in OPERATIONS:
        recording = record(operation)
        print(f"{operation}:")
        for figure, today in recording.figures.items():
            bound, target = BOUNDS[operation][figure]
            print(f"  {figure:16}{today:>6}, bound {bound}, target {target}")
        print("  " + " > ".join(recording.deepest))
        for file, names in recording.functions.items():
            listed = (
                f": {', '.join(sorted(names.values()))}" if "--functions" in sys.argv else ""
            )
            print(f"  {file} {len(names)}{listed}")


if __name__ == "__main__":
    main()
