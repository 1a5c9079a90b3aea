"""The page of `vanilla demo`: a model to try in the browser."""
