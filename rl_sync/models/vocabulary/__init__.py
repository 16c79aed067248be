"""Tables with a row for each token of the vocabulary, cut over devices: lookups and the loss."""
