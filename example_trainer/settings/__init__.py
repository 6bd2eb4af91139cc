"""Settings of the trainer, one file per section; ``config`` joins them."""
