"""`datapipe mixtures`: weights for many small runs over one snapshot, and the mixture that their losses speak for."""
