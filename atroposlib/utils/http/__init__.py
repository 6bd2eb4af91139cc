"""HTTP servers: the gate before each server, its checks, sockets and deadlines."""
