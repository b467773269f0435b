"""What the sides must agree on: the wire, the events, the rules, and the one package that speaks Redis."""
