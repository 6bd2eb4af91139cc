"""The running environment: serve, process, evaluate, registration, sending, shutdown."""
