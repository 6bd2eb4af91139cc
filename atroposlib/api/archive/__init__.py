"""Archive of rollouts: index of their facts, its writer, and the reader behind /explore."""
