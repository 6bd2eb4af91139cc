"""Recovery after a crash, and exported models."""
