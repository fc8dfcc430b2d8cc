"""What requests did lately: the last of them, and rates and latencies of the last hour, in memory."""
