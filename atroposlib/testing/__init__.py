"""What tests need and users may want: shipped fakes and a model made on the spot."""
