"""The audit log: who asked for which change, from where, and how it ended. History says what came of it."""
