"""From a command line to jobs: pre-flight, directories, and Hydra's run or sweep."""
