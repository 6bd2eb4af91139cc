"""``python -m atroposlib.quickstart``: the command of ``example_trainer.quickstart``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("example_trainer.quickstart", run_name="__main__")
