"""A metric of your own: a function of a finished training that returns a number."""


def spread(finished):
    """The standard deviation of the embeddings, W_E."""
    return finished.parts.catalogue.view("W_E").std().item()
