"""Local data of an environment of a function, which its runtime checks before any wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, cast

from atroposlib.envs.function_env.data import DATA_OPTION, HUB, Cursor
from atroposlib.envs.journal.journal_records import DataPlace
from atroposlib.envs.journal.journalled_rollout import LeftWork
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.utils.datasets import PATH_OPTION


class _HasCursor(Protocol):
    @property
    def cursor(self) -> Cursor: ...


class FunctionRuntime(EnvRuntime):
    """The runtime of an environment of a function."""

    repeats_tasks = True

    def place_of(self, item: Any) -> int | None:
        place: int = item["place"]
        return place

    @classmethod
    def score_range(cls, env_cls: Any) -> tuple[float, float]:
        card = env_cls.definition.card
        return (0.0, 1.0) if card is None else (card.floor, card.best)

    def number_of(self, item: Any) -> int | None:
        number: int | None = item.get("number")
        return number

    def go_on_from(self, left: LeftWork) -> DataPlace | None:
        cursor = cast(_HasCursor, self.env).cursor
        self.curriculum.go_on(left.sampler, left.sampler_events, left.numbers)
        if left.place is not None:
            place = left.place
            cursor.seek_later({"place": place.next_place, "open": place.open_places})
        state = cursor.state()
        return DataPlace(state["place"], state["open"])

    @classmethod
    def local_data(cls, env_cls: Any, config: BaseEnvConfig) -> dict[str | Path, str]:
        """Paths of marked settings, of ``dataset_path``, and among the sources of the definition."""
        paths = super().local_data(env_cls, config)
        named = getattr(config, "dataset_path", None)
        if isinstance(named, (str, Path)) and str(named):
            paths[named] = PATH_OPTION
        for source in (env_cls.definition.dataset, env_cls.definition.eval_dataset):
            if isinstance(source, (str, Path)) and not str(source).startswith(HUB):
                paths[source] = DATA_OPTION
        return paths
