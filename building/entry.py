"""Where a build with its own Python begins: PyInstaller wants a script."""

from llmgw.__main__ import main

main()
