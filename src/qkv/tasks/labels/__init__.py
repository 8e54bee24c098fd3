"""Labels of other shapes than one class for each text: sets of labels, and numbers."""
