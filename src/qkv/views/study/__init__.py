"""The page of a study: its results read from its folder, its picture, its server."""
