"""The contract of stages at run time: their results are checked, and a document that makes one raise is isolated."""
