"""The workbench: all runs of a folder on one page, live from a server or as one file."""
