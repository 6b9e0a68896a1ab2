"""The journal that rank 0 writes, and the trackers that the launcher fills from it."""
