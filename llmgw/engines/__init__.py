"""One file an engine: profile to command line, environment, sidecars, readiness and stopping. No I/O on start."""
