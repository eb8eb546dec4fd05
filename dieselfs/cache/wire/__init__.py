"""The wires between nodes and on a node: messages, frames, connections, servers."""
