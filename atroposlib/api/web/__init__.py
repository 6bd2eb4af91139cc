"""HTTP: routes, replies, and how each error looks on the wire."""
