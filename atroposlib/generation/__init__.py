"""How a rollout samples a model: engines, routing, token-exact sessions, agent proxy."""
