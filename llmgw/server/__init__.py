"""The control process: agents' endpoint, the loop that carries out what `fleet` decides, store, admin API."""
