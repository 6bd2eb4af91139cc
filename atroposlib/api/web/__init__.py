"""HTTP: routes, bodies, streamed batches, and the response of each error."""
