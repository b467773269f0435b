"""`tailrace diagnose`: why the tail is slow, in milliseconds that add up, with the cause that would give most of
them back."""
