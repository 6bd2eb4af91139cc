"""What stands before every route: who may call, how much, and how slowly."""
