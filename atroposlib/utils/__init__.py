"""Small functions that know nothing of environments or servers."""
