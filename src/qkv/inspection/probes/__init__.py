"""What can be read off vectors by a linear map: by logistic regression, and by a discriminant in closed form."""
