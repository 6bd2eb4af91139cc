"""Settings of the trainer, a file per section; ``config`` joins them."""
