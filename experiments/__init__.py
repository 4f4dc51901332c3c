"""Launchers: `python -m experiments.<name> --config=configs/<page>.py:<choices> --workdir=<folder>`."""
