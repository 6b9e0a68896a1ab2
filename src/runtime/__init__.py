"""What every process of a run needs: who it is, its seeds, its log."""
