"""Real OpenSM, saquery and ibnetdiscover on simulated InfiniBand, and real systemd machines on real ssh."""
