"""Tasks of a function environment: loading, held-out split, order, resumable position.

list | iterable | callable | "file.jsonl" | "hub:name/split" --load--> rows
rows --split--> (trained on, held out) --Cursor--> tasks in order, resumable
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict

from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.rewards import call_user
from atroposlib.envs.rollout.groups import content_digest, plain
from atroposlib.errors import ConfigError, boundary

logger = logging.getLogger(__name__)
HUB = "hub:"
DATA_OPTION = "the data set of @environment"
SHOWN_CHARS = 200  # length limit of a task in an error
MAX_EVAL_ITEMS = 100_000  # an endless eval data set is an error, not a wait


class TaskItem(TypedDict):
    """Task with its id and position.

    Example: {"id": "3+4", "task": {"id": "3+4", "a": 3, "b": 4}, "place": 17, "epoch": 0}
    """

    id: str
    task: Any
    place: int  # number of tasks handed out before it
    epoch: int


def item_of(task: Any, place: int, epoch: int = 0, *, is_unique: bool = False) -> TaskItem:
    """The item of a task. Its id names the group, which shares a baseline.

    If ids may repeat, the task's own id gets a digest of the task: two tasks with the same id
    are two groups.
    """
    name = task_id(task)
    if not is_unique and _has_id(task) and len(task) > 1:
        name = f"{name}~{content_digest(task)[:DIGEST_CHARS]}"
    return {"id": name, "task": task, "place": place, "epoch": epoch}


MAX_NAME_CHARS = 40  # a longer text is identified by its hash in logs and files
DIGEST_CHARS = 8


def task_id(task: Any) -> str:
    """The task's ``id``, the task if it is a short text, else a hash. Stable across runs."""
    if _has_id(task):
        return str(task["id"])
    if isinstance(task, str) and 0 < len(task) <= MAX_NAME_CHARS:
        return task
    return content_digest(task)[:16]


def _has_id(task: Any) -> bool:
    return isinstance(task, Mapping) and task.get("id") is not None


def require_unique_ids(rows: Sequence[Any], *, env: str) -> None:
    """Raise ConfigError if two different tasks have the same id; equal tasks may."""
    first: dict[str, int] = {}
    for i in range(len(rows)):
        task = rows[i]
        if not _has_id(task):
            continue
        j = first.setdefault(str(task["id"]), i)
        if j != i and content_digest(rows[j]) != content_digest(task):
            raise ConfigError(
                f"{env}: rows {j} and {i} are different tasks with the id {task['id']!r}, so "
                f"their rewards would share a baseline: {_task_text(rows[j])} and {_task_text(task)}. "
                "Make the ids unique, for example with the name of the part in front, or leave "
                "them out"
            )


def _task_text(task: Any) -> str:
    text = repr(plain(task))
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


async def prepare_tasks(
    dataset: Any, eval_dataset: Any, config: FunctionEnvConfig, *, env: str
) -> tuple[Indexed | Stream, list[TaskItem]]:
    """Source of the training tasks, and the list of evaluation tasks.

    Raises as :func:`load`; ConfigError also if the data set is empty.
    """
    rows, levels = await _leveled(dataset, config, env=env)
    tested = await load(eval_dataset, config, env=env, split="test")
    held_out: list[Any] = []
    source: Indexed | Stream = Stream(rows, epochs=config.epochs)
    if is_indexed(rows):
        fraction = config.eval_fraction if tested is None else 0.0
        trained, apart = await call_user(split_held_out, rows, fraction)
        if not trained:
            raise ConfigError(f"{env}: the data set is empty")
        await call_user(require_unique_ids, rows, env=env)
        held_out = [rows[i] for i in apart]
        logger.info("%d of %d tasks are held out", len(apart), len(rows))
        source = Indexed(
            rows,
            trained,
            seed=config.seed,
            shuffle=config.shuffle,
            epochs=config.epochs,
            levels=levels,
        )
    if tested is not None:
        held_out = eval_rows(tested, config.eval_items)
        require_unique_ids(held_out, env=f"{env}, tasks of the evaluation")
    most = len(held_out) if config.eval_items < 0 else config.eval_items
    tasks = enumerate(held_out[:most])
    return source, [item_of(task, i, is_unique=True) for i, task in tasks]


async def _leveled(
    dataset: Any, config: FunctionEnvConfig, *, env: str
) -> tuple[Any, list[int] | None]:
    """The rows, of all levels that the curriculum names, and the level of each.

    The levels are None if the curriculum names none, or the loader takes no level.
    """
    levels = config.curriculum.sampler.settings.get("levels")
    if not takes_level(dataset) or not isinstance(levels, int):
        return await load(dataset, config, env=env, split="train"), None
    rows: list[Any] = []
    level_of: list[int] = []
    for level in range(1, levels + 1):
        loaded: Any = await load(dataset, config, env=env, split="train", level=level)
        if not is_indexed(loaded):
            raise ConfigError(f"{env}: curriculum: tasks of a level have to be a list")
        rows += [loaded[i] for i in range(len(loaded))]
        level_of += [level] * len(loaded)
    return rows, level_of


# --- loading ------------------------------------------------------------------------


async def load(
    spec: Any, config: Any, *, env: str, split: str, level: int | None = None
) -> Iterable[Any] | None:
    """Rows of ``spec``; None if "test" has no rows of its own.

    ``split`` selects a part of a folder or of a hub data set.

    Raises:
        ConfigError: the result cannot be iterated.
        DatasetUnavailable: a file or a hub data set cannot be read.
        RolloutError: a callable failed.
    """
    if callable(spec) and not _is_data(spec):
        with boundary(env, None, f"loading the {split} data"):
            takes_config = takes_an_argument(spec)
            words = {} if level is None else {"level": level}
            spec = await call_user(spec, *([config] if takes_config else []), **words)
    if spec is None and split == "test":
        return None
    if isinstance(spec, (str, Path)):
        spec = await call_user(named_rows, str(spec), split)
    if isinstance(spec, Mapping) or not _is_data(spec):
        raise ConfigError(
            f"{env}: a data set is a list or another iterable of tasks, a callable that "
            f"returns one, a file, or '{HUB}name/split', not {type(spec).__name__}"
        )
    rows: Iterable[Any] = spec
    return rows


def named_rows(name: str, split: str) -> list[dict[str, Any]]:
    """Rows of a file or folder, or of the hub as ``hub:[owner/]name[:subset]/split``."""
    from atroposlib.utils.datasets import load_rows

    if not name.startswith(HUB):
        return load_rows(name, split, path=name, option=DATA_OPTION)
    source, _, part = name[len(HUB) :].rpartition("/")
    if not source:
        raise ConfigError(
            f"{name!r}: write {HUB}name/split, such as {HUB}openai/gsm8k:main/train"
        )
    source, _, subset = source.partition(":")
    return load_rows(source, part, subset=subset or None, option=DATA_OPTION)


def takes_an_argument(function: Any) -> bool:
    """Whether a callable of the user may be given an argument, the settings."""
    return any(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in inspect.signature(function).parameters.values()
    )


def takes_level(loader: Any) -> bool:
    """Whether a loader has the keyword ``level``: ``def tasks(config, *, level=1)``."""
    if not callable(loader) or _is_data(loader):
        return False
    parameter = inspect.signature(loader).parameters.get("level")
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY


def manager_of(lifespan: Callable[..., Any], config: Any) -> Any:
    """The async context manager of ``lifespan(config)`` or ``lifespan()``."""
    return lifespan(config) if takes_an_argument(lifespan) else lifespan()


def _is_data(spec: Any) -> bool:
    return hasattr(spec, "__iter__") or is_indexed(spec)


def is_indexed(rows: Any) -> bool:
    """Whether rows have a length and an index: a list, a Hugging Face data set."""
    return hasattr(rows, "__len__") and hasattr(rows, "__getitem__")


# --- held out -----------------------------------------------------------------------


def split_held_out(rows: Sequence[Any], fraction: float) -> tuple[list[int], list[int]]:
    """Indices of the training rows, and of the held-out rows.

    The split uses a hash of each task's id, so it depends neither on the seed nor on the
    other rows. With two rows or more and ``fraction`` above 0 each side has at least a
    row.
    """
    if fraction <= 0 or len(rows) < 2:
        return list(range(len(rows))), []
    names = (f"held out/{task_id(rows[i])}" for i in range(len(rows)))
    drawn = [hashlib.sha256(name.encode()).digest()[:8] for name in names]  # uniform
    held_out = [
        i for i, number in enumerate(drawn) if int.from_bytes(number, "big") / 2**64 < fraction
    ]
    if not held_out:
        held_out = [min(range(len(rows)), key=drawn.__getitem__)]
    if len(held_out) == len(rows):
        held_out.remove(max(range(len(rows)), key=drawn.__getitem__))
    apart = set(held_out)
    return [i for i in range(len(rows)) if i not in apart], held_out


def eval_rows(rows: Iterable[Any], most: int) -> list[Any]:
    """The first ``most`` rows; -1 means all.

    Raises ConfigError: all rows are wanted and there are over MAX_EVAL_ITEMS.
    """
    if most >= 0:
        return list(itertools.islice(rows, most))
    items = list(itertools.islice(rows, MAX_EVAL_ITEMS + 1))
    if len(items) > MAX_EVAL_ITEMS:
        raise ConfigError(f"eval_dataset: over {MAX_EVAL_ITEMS} items; set --env.eval_items")
    return items


# --- order and place ----------------------------------------------------------------


@dataclass
class Indexed:
    """Rows in an order drawn anew for every pass from ``seed`` and the pass."""

    rows: Sequence[Any]
    indices: Sequence[int]
    seed: int
    shuffle: bool
    epochs: int
    levels: Sequence[int] | None = None  # a level per row, where the loader takes it
    _order: tuple[int, Sequence[int]] = (-1, ())  # the pass, and its indices

    def at(self, place: int) -> TaskItem | None:
        epoch, position = divmod(place, len(self.indices))
        if 0 <= self.epochs <= epoch:
            return None
        if self._order[0] != epoch:
            self._order = (epoch, self._order_of(epoch))
        task = self.rows[self._order[1][position]]
        return item_of(task, place, epoch, is_unique=True)

    def training_rows(self) -> list[Any]:
        return [self.rows[i] for i in self.indices]

    def _order_of(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return self.indices
        rng = random.Random(f"{self.seed}/{epoch}")
        return rng.sample(self.indices, len(self.indices))


class Stream:
    """Rows of unknown number in their given order; a restartable iterable has several passes."""

    def __init__(self, rows: Iterable[Any], *, epochs: int) -> None:
        self.rows = rows
        self._restarts = not isinstance(rows, Iterator)
        self._epochs = epochs
        self._reading = iter(rows)
        self._epoch = 0
        self._next = 0  # the place of the next row
        self._began = 0  # the place of this pass's first row

    def at(self, place: int) -> TaskItem | None:
        while True:
            for task in self._reading:
                self._next += 1
                if self._next > place:
                    return item_of(task, place, self._epoch)
            empty = self._next == self._began
            last = 0 <= self._epochs <= self._epoch + 1
            if empty or last or not self._restarts:
                return None
            self._epoch, self._began = self._epoch + 1, self._next
            self._reading = iter(self.rows)


class TaskSource(Protocol):
    """Tasks by the number of tasks handed out before them."""

    def at(self, place: int) -> TaskItem | None: ...


class Cursor:
    """Hands out tasks and tracks the unfinished tasks.

    The state is small enough for a checkpoint. A restart repeats the unfinished tasks.
    """

    def __init__(self, source: TaskSource) -> None:
        self._source = source
        self._place = 0
        self._open: set[int] = set()
        self._again: deque[int] = deque()  # ascending, all below _place
        self._ended = False

    def next(self) -> TaskItem | None:
        """The next task; None at the end of the data."""
        fresh = not self._again
        place = self._place if fresh else self._again.popleft()
        item = self._source.at(place)
        if item is None:
            if not self._ended:
                logger.warning("the data set is used up after %d tasks", place)
            self._ended = True
            return None
        self._place += fresh
        self._open.add(place)
        return item

    def done(self, item: TaskItem) -> None:
        """Record that ``item`` is finished, with or without a group."""
        self._open.discard(item["place"])

    def state(self) -> dict[str, Any]:
        """Position, for example {"place": 12, "open": [9, 11]}: 12 handed out, 2 unfinished."""
        return {"place": self._place, "open": sorted({*self._open, *self._again})}

    def seek_later(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state`` unless the present position is beyond it."""
        if int(state["place"]) >= self._place:
            self.seek(state)

    def seek(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state``."""
        self._place = int(state["place"])
        self._again = deque(sorted(int(place) for place in state["open"]))
        self._open = set()
