"""Tokenizers whose chat template does not fit training, with one that does."""
