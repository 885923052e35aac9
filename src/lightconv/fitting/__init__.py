"""`lightconv fit`: from one's own text to a model, with every choice made and explained."""
