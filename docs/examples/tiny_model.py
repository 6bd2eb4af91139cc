"""Write a tiny model of random weights, with a token for each character.

    python docs/examples/tiny_model.py runs/tiny
    python docs/examples/tiny_model.py runs/tiny seed=2 hidden_size=64 num_layers=1
    python docs/examples/tiny_model.py runs/seeing family=llava

Names are those of ``write_tiny_model``, with a family those of ``write_tiny_vision_model``.
"""

import sys
from pathlib import Path

from atroposlib.testing.tiny import write_tiny_model
from atroposlib.testing.tiny_vision import write_tiny_vision_model

if __name__ == "__main__":
    directory, *words = sys.argv[1:]
    settings = dict(word.split("=", 1) for word in words)
    family = settings.pop("family", None)
    sizes = {name: int(value) for name, value in settings.items()}
    if family is None:
        write_tiny_model(Path(directory), **sizes)
    else:
        write_tiny_vision_model(Path(directory), family, **sizes)
