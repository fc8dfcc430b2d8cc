"""The lab's machines: real systemd nodes in network namespaces of this machine, driven by `scripts/lab`.

For contributors and the tests; nothing of it is shipped. Every call changes the whole machine and needs root.
"""
