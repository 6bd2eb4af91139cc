"""The original's import path of :mod:`atroposlib.generation.sessions.remote`."""

from atroposlib.generation.sessions.remote import ProxyManagedServer, create_proxy_session
