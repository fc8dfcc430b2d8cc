"""The operator's word for each verb: parse, call, print. No logic lives here."""
