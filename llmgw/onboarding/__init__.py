"""From a bare machine to a serving node: a VM provisioned, a node onboarded, over the system's ssh."""
