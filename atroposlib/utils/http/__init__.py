"""HTTP servers: the gate before each of them, its checks, sockets and deadlines."""
