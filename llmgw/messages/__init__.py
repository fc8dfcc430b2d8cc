"""What the processes say to each other. Types only: no I/O, no clock, no other room."""
