"""Scripts that reproduce findings; each stands alone, and is given out as text."""
