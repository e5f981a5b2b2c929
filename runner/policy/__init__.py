"""What `impyard policy` does: check, explain, test, suggest, allow, replay and presets. Docker is not known here."""
