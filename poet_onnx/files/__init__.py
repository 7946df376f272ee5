"""Files that are written whole or not at all, and models whose weights lie beside them."""
