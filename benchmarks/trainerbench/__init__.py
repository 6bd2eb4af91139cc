"""Parts of bench_trainer.py: the rows, and the ways to take the step."""
