"""The original's import path of :mod:`atroposlib.generation.proxy.main`."""

from atroposlib.generation.proxy.main import ProxyLimits, create_app, main

if __name__ == "__main__":
    main()
