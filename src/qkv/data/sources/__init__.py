"""Where data comes from: files, folders, tables, images, the hub, and the corpus inside Python itself."""
