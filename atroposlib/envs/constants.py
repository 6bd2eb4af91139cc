"""Names of the settings' namespaces, at the import path of the original."""

from atroposlib.envs.settings.config import (
    ENV_NAMESPACE,
    NAMESPACE_SEP,
    OPENAI_NAMESPACE,
    SERVER_MANAGER_NAMESPACE,
)
