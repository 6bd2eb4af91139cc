"""The original's import path of the base class of the engine clients and its settings."""

from atroposlib.generation.configs import APIServerConfig, ServerBaseline, ServerManagerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.slots import AsyncSemWithAdaptiveWeight
from atroposlib.generation.sampling.reasoning import VALID_REASONING_EFFORTS, ReasoningConfig
