"""From an item to a scored group: rollout pool, samples, filters, pacing."""
