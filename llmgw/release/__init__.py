"""What a release consists of, how it is signed, and where things lie on a machine that runs one."""
