"""Names of the configuration namespaces: ``--env.group_size``, ``--openai.base_url``."""

from __future__ import annotations

ENV_NAMESPACE = "env"
OPENAI_NAMESPACE = "openai"
SERVER_MANAGER_NAMESPACE = "server"
NAMESPACE_SEP = "."

STATUS_POLL_S = 0.1  # how often an environment asks the rollout API how full the queue is
HEARTBEAT_S = 2.0  # how often it says what it does
MAX_BACK_OFF_S = 10.0  # longest pause between rollouts while all of them fail
