"""Is one training better than another? A sequential test with an error rate, over a whole night of tries.

sequential    the test: evidence from the signs of paired differences, intervals, and how the error is divided
tries         the ledger of tries: append-only, checked whenever it is read
trial         two configurations, trained on one seed after another until the test decides
"""
