"""Parts of bench_trainer.py: the rows, and one file per way to take the step."""
