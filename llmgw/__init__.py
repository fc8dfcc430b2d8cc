"""llmgw serves language models on GPU machines that people own, without Kubernetes."""

__version__ = "0.1.0"
