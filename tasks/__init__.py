"""Task sets: what is to be done."""
