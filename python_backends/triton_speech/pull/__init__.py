"""Brings checkpoints to a folder, by revision and checked, before a server starts. No server imports this."""
