"""What this machine can do, and what a network really computes in: for ``python -m src.doctor``."""
