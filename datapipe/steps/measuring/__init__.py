"""What map tasks measure beside their work, for the report and for `datapipe browse`: distributions and clusters by size."""
