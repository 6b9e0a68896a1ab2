"""The training loop and what it is made of; start reading in loop.py."""
