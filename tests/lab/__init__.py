"""Real OpenSM, saquery and ibnetdiscover on simulated InfiniBand."""
