"""The proxy's configuration: which model, and which inference servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.template import load_tokenizer
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.proxy.apis.request import Json, parsed
from atroposlib.generation.routing.manager import ServerManager

logger = logging.getLogger(__name__)

DEFAULT_SERVER_TYPE = "vllm"


class Setup(msgspec.Struct, kw_only=True):
    """The file of ``--config``, and the body of POST /setup.

    Example: {"model_name": "org/model", "servers": [{"base_url": "http://localhost:9001/v1"}]}
    """

    model_name: str
    servers: list[dict[str, Any]]
    tokenizer_name: str | None = None  # None: that of the model

    @classmethod
    def of(cls, raw: Json) -> Setup:
        """
        Raises:
            InferenceRefused: 400; names the field that is missing or wrong.
        """
        return parsed(raw, cls)

    @classmethod
    def read(cls, path: Path) -> Setup:
        """
        Raises:
            ConfigError: the file cannot be read, or is none.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise ConfigError(f"--config {path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise ConfigError(f"--config {path}: {error}") from error

    def manager(self) -> ServerManager:
        """
        Raises:
            ConfigError: there is no server, or one of them makes no sense.
        """
        if not self.servers:
            raise ConfigError("servers: at least one")
        return ServerManager([self._server(i, entry) for i, entry in enumerate(self.servers)])

    def _server(self, i: int, entry: Mapping[str, Any]) -> APIServerConfig:
        unknown = sorted(set(entry) - set(APIServerConfig.model_fields))
        if unknown:
            logger.warning("servers[%d]: %s: no such settings", i, ", ".join(unknown))
        defaults = {
            "model_name": self.model_name,
            "tokenizer_name": self.tokenizer_name or self.model_name,
            "server_type": DEFAULT_SERVER_TYPE,
        }
        try:
            return APIServerConfig(**{**defaults, **entry})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"servers[{i}].{where}: {first['msg']}") from error


def tokenizer_of(setup: Setup) -> Any:
    """
    Raises:
        ConfigError: there is none of that name.
    """
    name = setup.tokenizer_name or setup.model_name
    return load_tokenizer(APIServerConfig(model_name=setup.model_name, tokenizer_name=name))
