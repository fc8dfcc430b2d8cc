"""Anthropic's Messages API in front of engines that serve it, and of those that serve chat completions only."""
