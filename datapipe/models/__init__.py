"""`datapipe classifier`: labelled data from documents, training, evaluation, and annotation by language models."""
