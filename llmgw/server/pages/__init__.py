"""The admin pages: rendered here from what the API answers, readable without a script, and better with one."""
