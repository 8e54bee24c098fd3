"""From the results of a study to what may be said: statistics, comparisons, power, and the words."""
