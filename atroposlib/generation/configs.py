"""Settings of inference servers, merged from code defaults, YAML and flags; their addresses."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Union

from pydantic import BaseModel, ConfigDict, Field
from pydantic_cli.argparse import FailedExecutionException

from atroposlib.errors import ConfigError
from atroposlib.utils.cli import extract_namespace


class AmbiguousServer(ConfigError, FailedExecutionException):
    """Overrides for a single server meet a list of several servers.

    Environments of the original catch the second base class.
    """

    def __init__(self, message: str) -> None:
        FailedExecutionException.__init__(self, 2, message)


ServerType = Literal["openai", "trl", "sglang", "vllm"]


class ServerBaseline(BaseModel):
    """Settings that every server has. Alone (not in a list) its URLs are generated."""

    model_config = ConfigDict(protected_namespaces=())

    timeout: int = Field(
        default=1200,
        gt=0,
        description="Seconds allowed for one request, and for an unhealthy server to recover.",
    )
    num_max_requests_at_once: int = Field(
        default=512, ge=1, description="Training requests in flight to this server."
    )
    num_requests_for_eval: int = Field(
        default=64,
        ge=1,
        description="Evaluation requests in flight, on top of the training ones.",
    )
    model_name: str = Field(default="default", description="Name of the model on the server.")
    rolling_buffer_length: int = Field(
        default=1000, ge=1, description="Calls kept for the timing metrics."
    )
    server_type: ServerType = Field(default="openai", description="Protocol of the server.")
    tokenizer_name: str = Field(
        default="none", description="Tokenizer to load; 'none' means that of model_name."
    )


class APIServerConfig(ServerBaseline):
    """A server at a known address.

    An empty ``base_url`` of type openai means the official API; an empty ``api_key`` is then
    read from OPENAI_API_KEY, which is sent only to that API.
    """

    api_key: Optional[str] = Field(default="", description="Bearer token; empty sends none.")
    base_url: Optional[str] = Field(
        default="",
        description="Such as http://localhost:9001/v1. directory:// takes the servers that announce"
        " themselves to the rollout API, all with the other settings of this one.",
    )
    n_kwarg_is_ignored: bool = Field(
        default=False,
        description="The server ignores n and returns one choice: n requests are sent instead.",
    )
    health_check: bool = Field(
        default=True, description="GET /health before the first call and after a failed one."
    )
    sampling: dict[str, Any] = Field(
        default={},
        description="Sampling parameters of training requests where the environment gives none, "
        "such as top_p, stop; max_tokens also bounds what it gives.",
    )
    eval_sampling: dict[str, Any] = Field(
        default={}, description="The same for evaluation requests."
    )


class ServerManagerConfig(BaseModel):
    """Un-namespaced settings of the manager."""

    slurm: bool = Field(
        default=False, description="Find the servers through SLURM's variables."
    )
    testing: bool = Field(
        default=False, description="Use one ServerHarness instead of real servers."
    )
    max_n_completions: int = Field(
        default=8, ge=1, description="Larger n is split into requests of at most this many."
    )
    proxy_url: Optional[str] = Field(
        default=None,
        description="Address of a managed-server proxy, which then keeps the sessions.",
    )
    tool_parser: Optional[str] = Field(
        default=None,
        description="Format of tool calls: hermes, llama3_json, mistral, qwen3_coder or one of"
        " vLLM's. None: hermes for functions; classes get calls unparsed.",
    )


OpenaiConfig = APIServerConfig  # former name, which environments of the original import

ServerConfigs = Union[ServerBaseline, Sequence[APIServerConfig]]


def as_server_list(configs: ServerConfigs) -> list[APIServerConfig] | None:
    """The servers with known addresses, or None where addresses have to be generated.

    A lone :class:`APIServerConfig` is a list of 1 server. Raises ConfigError for an empty
    list.
    """
    if isinstance(configs, APIServerConfig):
        return [configs]
    if isinstance(configs, ServerBaseline):
        return None
    servers = list(configs)
    if not servers:
        raise ConfigError(
            "server configs: an empty list; at least one APIServerConfig is required"
        )
    for server in servers:
        if not isinstance(server, APIServerConfig):
            raise ConfigError(
                f"server configs: a list holds APIServerConfig, not {type(server).__name__}"
            )
    return servers


def resolve_openai_configs(
    default_server_configs: ServerConfigs,
    openai_config_dict: Mapping[str, Any] | None = None,
    yaml_config: Mapping[str, Any] | None = None,
    cli_passed_flags: Mapping[str, Any] | None = None,
    logger: logging.Logger | None = None,
) -> ServerBaseline | list[APIServerConfig]:
    """Servers that result from code defaults, the YAML ``openai`` key and ``--openai.*``.

    A list if the code or the file has a list, else a single config. Raises AmbiguousServer.

    Args:
        openai_config_dict: values for a single server, flags over YAML; class defaults are
            ignored.
        yaml_config: the whole YAML file; only its ``openai`` key is read.
        cli_passed_flags: flags of the command line, with keys like ``openai.base_url``.
    """
    flags = extract_namespace(cli_passed_flags or {}, "openai.")
    from_yaml = (yaml_config or {}).get("openai")
    merged, usual = openai_config_dict or {}, APIServerConfig().model_dump()
    listed = (
        from_yaml if isinstance(from_yaml, list) else as_server_list(default_server_configs)
    )
    of_several = len(listed or ()) > 1  # then only flags are overrides of a server
    explicit = {
        name: value
        for name, value in merged.items()
        if name in flags or (value != usual.get(name) and not of_several)
    }
    return resolve_servers(
        default_server_configs, from_yaml, {**flags, **explicit}, logger=logger
    )


def resolve_servers(
    defaults: ServerConfigs,
    from_yaml: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    flags: Mapping[str, Any],
    namespace: str = "openai",
    logger: logging.Logger | None = None,
) -> ServerBaseline | list[APIServerConfig]:
    """Servers that result from code, file and flags of a namespace. Raises AmbiguousServer.

    If the code has a single config and no list, the result is a single config, because
    environments of the original read its fields. A baseline stays a baseline, with new values,
    unless a field that only :class:`APIServerConfig` has is overridden: then it becomes a
    server. Servers are of the class that the code has.
    """
    listed = as_server_list(defaults) or []  # []: addresses are generated
    server_cls = type(listed[0]) if listed else APIServerConfig
    bare = isinstance(defaults, ServerBaseline) and isinstance(from_yaml or {}, Mapping)
    settings = dict(flags)
    if isinstance(from_yaml, Mapping):
        settings = {**from_yaml, **flags}
    elif from_yaml and len(from_yaml) > 1:
        _reject_overrides(len(from_yaml), flags, namespace)
        return [server_cls(**entry) for entry in from_yaml]
    elif from_yaml:
        if len(listed) > 1:
            listed = [server_cls()]  # the file's list replaces the code's
        settings = {**from_yaml[0], **flags}
    if len(listed) > 1:
        _reject_overrides(len(listed), settings, namespace)
        return listed
    if not settings:
        return defaults if isinstance(defaults, ServerBaseline) else listed
    if logger is not None:
        logger.debug("%s settings overridden: %s", namespace, ", ".join(sorted(settings)))
    alone = defaults if isinstance(defaults, ServerBaseline) else listed[0]
    values = {**alone.model_dump(), **settings}
    if not listed and set(settings) <= set(type(alone).model_fields):
        return type(alone)(**values)
    server = server_cls(**values)
    return server if bare else [server]


def server_fields(configs: ServerConfigs | None) -> list[str]:
    """Settings that a file may give to a server: those of the class that the code has."""
    listed = as_server_list(configs) if configs else None
    return [*(type(listed[0]) if listed else APIServerConfig).model_fields]


def _reject_overrides(servers: int, overrides: Mapping[str, Any], namespace: str) -> None:
    if overrides:
        named = ", ".join(f"{namespace}.{name}" for name in sorted(overrides))
        raise AmbiguousServer(
            f"{named}: ambiguous, which of {servers} servers is meant; "
            "edit the list of servers in the YAML file or in config_init"
        )


DIRECTORY = "directory://"  # base_url for servers that the rollout API lists


def directory_template(servers: Sequence[APIServerConfig]) -> APIServerConfig | None:
    """The settings of every server of the directory; None: the servers have addresses.

    Raises ConfigError for a directory among several servers.
    """
    if not any((server.base_url or "").startswith(DIRECTORY) for server in servers):
        return None
    if len(servers) > 1:
        raise ConfigError(
            f"base_url {DIRECTORY}: the only server of its list, not one of several"
        )
    return servers[0]


# --- generated addresses: local ports, or the nodes of a SLURM job -------------------

LOCAL_URLS = tuple(f"http://localhost:{port}/v1" for port in range(9004, 9008))
FIRST_NODE_PORT = 9000
GPUS_PER_NODE = 8
SCONTROL_TIMEOUT_S = 30.0
GENERATED_API_KEY = "x"  # local servers need no key, but some clients require a key


def node_urls(
    hostnames: Sequence[str], training_nodes: int, infer_tp: int, gpus: int = GPUS_PER_NODE
) -> list[str]:
    """Servers on the nodes after the training nodes: ``gpus // infer_tp`` each, from port 9000.

    Fewer than two nodes give an empty list. Raises ConfigError if all nodes train.
    """
    if len(hostnames) < 2:
        return []
    servers_per_node = gpus // infer_tp
    if servers_per_node == 0:
        raise ConfigError(f"INFER_TP: a node has {gpus} GPUs, fewer than {infer_tp}")
    if training_nodes >= len(hostnames):
        raise ConfigError(
            f"NUM_TRAINING_NODES: {training_nodes} of {len(hostnames)} nodes train, "
            "which leaves none for inference"
        )
    return [
        f"http://{host}:{FIRST_NODE_PORT + i}/v1"
        for host in hostnames[training_nodes:]
        for i in range(servers_per_node)
    ]


def slurm_urls(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Addresses from SLURM_JOB_NODELIST, NUM_TRAINING_NODES (1) and INFER_TP (1).

    A node has GPUS_PER_NODE GPUs, else SLURM_GPUS_ON_NODE, else 8.

    Empty outside a SLURM job and in a job of a single node.
    """
    nodelist = environ.get("SLURM_JOB_NODELIST")
    if not nodelist:
        return []
    return node_urls(
        _hostnames(nodelist),
        training_nodes=_whole_number("NUM_TRAINING_NODES", environ, least=0),
        infer_tp=_whole_number("INFER_TP", environ, least=1),
        gpus=_whole_number(
            "GPUS_PER_NODE" if environ.get("GPUS_PER_NODE") else "SLURM_GPUS_ON_NODE",
            environ,
            least=1,
            usual=GPUS_PER_NODE,
        ),
    )


def generated_configs(baseline: ServerBaseline, urls: Sequence[str]) -> list[APIServerConfig]:
    """A server per address, with every setting of ``baseline``."""
    settings = {"api_key": GENERATED_API_KEY, **baseline.model_dump()}
    return [APIServerConfig(**{**settings, "base_url": url}) for url in urls]


def _hostnames(nodelist: str) -> list[str]:
    try:
        shown = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist],
            capture_output=True,
            text=True,
            check=True,
            timeout=SCONTROL_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as cause:
        raise ConfigError(
            f"SLURM_JOB_NODELIST is set, but scontrol cannot list its nodes: {cause}"
        ) from cause
    return shown.stdout.split()


def _whole_number(name: str, environ: Mapping[str, str], least: int, usual: int = 1) -> int:
    text = environ.get(name) or str(usual)
    if not text.isdigit() or int(text) < least:
        raise ConfigError(f"{name}: a whole number from {least}, not {text!r}")
    return int(text)
