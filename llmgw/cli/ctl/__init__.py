"""`llmgw ctl …`: one module a command group."""
