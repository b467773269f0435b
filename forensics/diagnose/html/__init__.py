"""The parts of the report that opens in a browser: what its plots show, how they are drawn, and their markup."""
