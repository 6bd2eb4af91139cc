"""Groups as bytes: read, checked and kept as received, turned only where somebody asks."""
